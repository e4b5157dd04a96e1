"""`python driver.py APP WHAT SIZES...`: the side that enqueues. Prints one line of JSON.

APP is one of the modules beside this one. It has `one(n)`, which enqueues a job, and `ask()`, which enqueues one, waits
for its result and gives back when its handler began; `many(values)` if the peer has a bulk call, and `TOGETHER` if it
has an asyncio interface. `ANSWERS = False`: the peer does not notify when a job has ended. WHAT is one of

    install                         make the peer's tables
    enqueue BULK SINGLES TOGETHER   jobs a second, in each of the ways there are
    fill JOBS SIZE                  JOBS jobs, with a text of SIZE characters if that is not 0
    waits TIMES                     milliseconds on an idle queue
    naps JOBS                       JOBS jobs of 10 ms each, by the app's `nap()`
    crowd TIMES                     milliseconds until each of TIMES jobs began, one enqueued every 20 ms
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time

WARM_UP = 30
CHUNK = int(os.environ.get("BENCH_CHUNK", "1000"))
EVERY = 0.02


async def install(app) -> dict:
    await app.install()
    return {}


async def enqueue(app, bulk: int, singles: int, together: int) -> dict[str, float]:
    rates: dict[str, float] = {}
    await app.one(0)
    if hasattr(app, "many"):
        began = time.perf_counter()
        await _put(app, range(bulk))
        rates["bulk enqueue"] = bulk / (time.perf_counter() - began)
    else:
        singles = bulk  # One by one fills the queue.
    began, cpu = time.perf_counter(), time.process_time()
    for n in range(singles):
        await app.one(n)
    rates["awaited enqueue"] = singles / (time.perf_counter() - began)
    rates["enqueue, processor time"] = (time.process_time() - cpu) / singles * 1e6
    if getattr(app, "TOGETHER", False):
        began = time.perf_counter()
        await asyncio.gather(*(app.one(n) for n in range(together)))
        rates["concurrent enqueue"] = together / (time.perf_counter() - began)
    return rates


async def fill(app, jobs: int, size: int) -> dict:
    await _put(app, ["x" * size] * jobs if size else range(jobs))
    return {}


async def _put(app, values) -> None:
    if hasattr(app, "many"):
        for start in range(0, len(values), CHUNK):
            await app.many(values[start : start + CHUNK])
        return
    for value in values:
        await app.one(value)


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


async def naps(app, jobs: int) -> dict:
    for _ in range(jobs):
        await app.nap()
    return {}


async def crowd(app, times: int) -> dict[str, list[float]]:
    async def ask(number: int) -> float:
        await asyncio.sleep(EVERY * number)
        asked = time.monotonic()
        return (await app.ask() - asked) * 1000

    return {"small tenants": await asyncio.gather(*map(ask, range(times)))}


async def main(name: str, what: str, *sizes: int) -> None:
    app = importlib.import_module(name)
    asked = {subject.__name__: subject for subject in (install, enqueue, fill, waits, naps, crowd)}[what]
    if hasattr(app, "begin") and what != "install":
        await app.begin()
    print(json.dumps(await asked(app, *sizes)), flush=True)
    if hasattr(app, "end") and what != "install":
        await app.end()


if __name__ == "__main__":
    name, what, *sizes = sys.argv[1:]
    asyncio.run(main(name, what, *map(int, sizes)))
