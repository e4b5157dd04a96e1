"""A worker of the old or of the new version of one application: `python -m tests.chaos.rolling VERSION URL`."""

import asyncio
import sys
import time

from holdfast import Queue, Worker, job

TENANT = "acme"


def application(version):
    """The jobs of one version. All have one attempt: whatever counts one that did not run kills the job."""
    if version == 1:

        @job(name="mail", max_attempts=1)
        async def mail(to: str) -> str:
            await asyncio.sleep(0.02)
            return to

        @job(name="crunch", max_attempts=1)
        def crunch(n: int) -> int:
            time.sleep(0.02)
            return n

        return {"mail": mail, "crunch": crunch}

    @job(name="mail", version=2, max_attempts=1)
    async def new_mail(address: str) -> str:
        await asyncio.sleep(0.02)
        return address

    @new_mail.upcast(1)
    def _(payload: dict) -> dict:
        return {"address": payload["to"]}

    @job(name="crunch", max_attempts=1)
    def crunch(n: int) -> int:
        time.sleep(0.02)
        return n

    @job(name="report", max_attempts=1)
    async def report(n: int) -> int:
        return n

    return {"mail": new_mail, "crunch": crunch, "report": report}


async def main(version, url):
    async with Queue(url, tenant=TENANT) as queue:
        worker = Worker(queue, jobs=list(application(version).values()), concurrency=4, shutdown_grace=20)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
