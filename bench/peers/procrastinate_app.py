"""Procrastinate on psycopg. It keeps no results and does not notify when a job has ended."""

from __future__ import annotations

import os

import stamps
from first import first
from procrastinate import App, PsycopgConnector

TOGETHER = True
ANSWERS = False

app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_URL"], min_size=4, max_size=20))
_waiting: dict = {}


@app.task(name="noop", queue="bench")
async def noop(n):  # noqa: ARG001 - a payload, as every job has one
    first()


@app.task(name="stamp", queue="bench")
async def stamp():
    stamps.send()


async def install():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def begin():
    await app.open_async()


async def end():
    await app.close_async()


async def one(n):
    await noop.defer_async(n=n)


async def many(values):
    await noop.batch_defer_async(*({"n": n} for n in values))


async def ask():
    if "stamps" not in _waiting:
        _waiting["stamps"] = await stamps.Stamps().__aenter__()
    await stamp.defer_async()
    return await _waiting["stamps"].next()
