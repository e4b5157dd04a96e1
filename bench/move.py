"""How fast a tenant moves from a directory to Valkey: in process, or with --spark by tasks on two cores.

python -m bench.move [--jobs 200000] [--queues 4] [--spark]
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections import Counter

from holdfast.core.job import Envelope, JobKey, NewJob
from holdfast.migrate import MovePlan, move
from holdfast.opening import open_store
from holdfast.testing.servers import ValkeyServer

TENANT = "acme"
CHUNK = 1000


async def fill(url, jobs, queues):
    store = await open_store(url)
    payload = b'{"to":"customer@example.com","template":"welcome","n":%d}'
    for start in range(0, jobs, CHUNK):
        await store.enqueue([
            NewJob(JobKey(TENANT, f"q{n % queues}", f"job-{n}"), Envelope("send", payload % n, request_id=str(n)))
            for n in range(start, min(jobs, start + CHUNK))
        ])  # fmt: skip
    await store.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, ValkeyServer() as server:
        source = f"file:{place}/store"
        asyncio.run(fill(source, options.jobs, options.queues))
        plan = MovePlan(source, server.url(), TENANT)
        walker = None
        if options.spark:
            from holdfast.pipeline.move import spark_walker
            from holdfast.pipeline.session import make_session

            spark = make_session("local[2]")
            walker = spark_walker(spark, plan)
        spent = Counter()

        @contextlib.contextmanager
        def clocked(step, _total):
            began = time.perf_counter()
            yield lambda _: None
            spent[step] += time.perf_counter() - began

        began = time.perf_counter()
        done = asyncio.run(move(plan, walker, clocked))
        seconds = time.perf_counter() - began
        assert done.jobs == options.jobs
        assert all(one.source_sum == one.target_sum for one in done.queues)
        parts = ", ".join(f"{step} {part:.1f} s" for step, part in spent.items())
        how = "on Spark local[2]" if options.spark else "in process"
        rate = done.jobs / seconds
        print(f"{how}: {done.jobs} jobs in {options.queues} queues, {seconds:.1f} s, {rate:.0f}/s ({parts})")
        if options.spark:
            spark.stop()


if __name__ == "__main__":
    main()
