"""PgQueuer on asyncpg. It keeps no results: a waiter learns that a job has ended, and how."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from datetime import timedelta

import asyncpg
import stamps
import uvloop
from first import first
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.queries import Queries

URL = os.environ["BENCH_URL"]
TOGETHER = True

_mine = contextlib.AsyncExitStack()
_waiting: dict = {}


async def work(batch_size):
    """As `pgq run` does, which does not start with the newest typer."""
    async with asyncpg.create_pool(URL, min_size=4, max_size=10) as pool:
        pgq = PgQueuer.from_asyncpg_pool(pool)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pgq.shutdown.set)

        @pgq.entrypoint("noop")
        async def noop(job):  # noqa: ARG001 - a payload, as every job has one
            first()

        @pgq.entrypoint("stamp")
        async def stamp(job):  # noqa: ARG001
            stamps.send()

        await pgq.run(batch_size=batch_size)


async def install():
    await begin()
    await _queries().install()
    await end()


async def begin():
    pool = await _mine.enter_async_context(asyncpg.create_pool(URL, min_size=4, max_size=10))
    _waiting["queries"] = Queries.from_asyncpg_pool(pool)
    await _mine.enter_async_context(_queries().driver)


async def end():
    await _mine.aclose()


async def one(n):
    await _queries().enqueue("noop", str(n).encode())


async def many(values):
    await _queries().enqueue(["noop"] * len(values), [str(n).encode() for n in values], [0] * len(values))


async def ask():
    if "watcher" not in _waiting:
        # At once on every notice, where 50 ms is the default.
        watcher = CompletionWatcher(_queries().driver, queries=_queries(), debounce=timedelta(0))
        _waiting["stamps"] = await _mine.enter_async_context(stamps.Stamps())
        _waiting["watcher"] = await _mine.enter_async_context(watcher)
    (id,) = await _queries().enqueue("stamp", None)
    status = await _waiting["watcher"].wait_for(id)
    assert status == "successful", status
    return await _waiting["stamps"].next()


def _queries():
    return _waiting["queries"]


if __name__ == "__main__":
    uvloop.run(work(int(sys.argv[1])))
