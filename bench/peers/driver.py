"""`python driver.py APP enqueue BULK SINGLES CONCURRENT` or `python driver.py APP waits TIMES`: the side that enqueues.

APP is one of the modules beside this one: `one(n)` enqueues a job, `ask()` enqueues one, waits for its result and gives
back when its handler began; `bulk(jobs)` and `TOGETHER` are there if the peer has a bulk call, or an asyncio interface.
`ANSWERS = False`: the peer tells nobody when a job has ended. `python driver.py APP install` makes a peer's tables.
Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time

WARM_UP = 30


async def enqueue(app, bulk: int, singles: int, together: int) -> dict[str, float]:
    rates: dict[str, float] = {}
    await app.one(0)
    if hasattr(app, "bulk"):
        began = time.perf_counter()
        await app.bulk(bulk)
        rates["bulk enqueue"] = bulk / (time.perf_counter() - began)
        bulk = 0
    began, cpu = time.perf_counter(), time.process_time()
    for n in range(bulk or singles):  # Without a bulk call, one by one fills the queue.
        await app.one(n)
    rates["awaited enqueue"] = (bulk or singles) / (time.perf_counter() - began)
    rates["enqueue, processor time"] = (time.process_time() - cpu) / (bulk or singles) * 1e6
    if getattr(app, "TOGETHER", False):
        began = time.perf_counter()
        await asyncio.gather(*(app.one(n) for n in range(together)))
        rates["concurrent enqueue"] = together / (time.perf_counter() - began)
    return rates


async def waits(app, times: int) -> dict[str, list[float]]:
    to_start: list[float] = []
    to_answer: list[float] = []
    for _ in range(WARM_UP):
        await app.ask()
    for _ in range(times):
        await asyncio.sleep(0.005)
        asked = time.monotonic()
        started = await app.ask()
        to_answer.append((time.monotonic() - asked) * 1000)
        to_start.append((started - asked) * 1000)
    answers = {"request/response": to_answer} if getattr(app, "ANSWERS", True) else {}
    return {"idle enqueue to start": to_start, **answers}


async def main(name: str, what: str, *sizes: int) -> None:
    app = importlib.import_module(name)
    if what == "install":
        await app.install()
        print("{}")
        return
    if hasattr(app, "begin"):
        await app.begin()
    print(json.dumps(await {"enqueue": enqueue, "waits": waits}[what](app, *sizes)), flush=True)
    if hasattr(app, "end"):
        await app.end()


if __name__ == "__main__":
    name, what, *sizes = sys.argv[1:]
    asyncio.run(main(name, what, *map(int, sizes)))
