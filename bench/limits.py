"""On Valkey: what the server could do at most, and how much memory a job takes."""

from __future__ import annotations

import time

from bench.jobs import JOBS, letter
from bench.measure import Figures
from bench.ours import Settings
from bench.valkey import Server
from bench.worker import drain
from holdfast import Queue, Worker

BATCH = 100
MOVES = 600
LETTERS = 20_000
TEXT = "x" * 100
WARM_UP = 200

CLAIM = """
local ids = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
local add, moved = {}, {}
for n = 1, #ids, 2 do
  add[n], add[n + 1], moved[(n + 1) / 2] = ids[n + 1], ids[n], ids[n]
end
redis.call('ZADD', KEYS[2], unpack(add))
return moved
"""
ACKNOWLEDGE = "return redis.call('ZREM', KEYS[1], unpack(ARGV))"
MOVED, SETTLED = "raw: ids moved", "raw: ids moved and removed"
WAITING, FINISHED = "bytes of a waiting job", "bytes of a finished job"


def raw(figures: Figures, server: Server) -> None:
    """Scripts that only move ids between two sorted sets, 100 a call, on one connection: no jobs, no rules."""
    server.empty()
    claim, acknowledge = map(server.client.register_script, (CLAIM, ACKNOWLEDGE))
    for measure, settle in ((MOVED, False), (SETTLED, True)):
        for start in range(0, BATCH * MOVES, 1000):
            server.client.zadd("ready", {f"{n:026}": n for n in range(start, start + 1000)})
        began = time.perf_counter()
        for _ in range(MOVES):
            ids = claim(keys=["ready", "leased"], args=[BATCH])
            if settle:
                acknowledge(keys=["leased"], args=ids)
        figures.add(measure, "Valkey", BATCH * MOVES / (time.perf_counter() - began))


async def memory(figures: Figures, server: Server, settings: Settings) -> None:
    """What the server holds more with jobs of a text of 100 characters waiting, and with the same jobs finished."""
    server.empty()
    async with Queue(server.url, tenant="bench") as queue:
        await _letters(queue, settings, WARM_UP)
        before = server.memory()
        await queue.enqueue_many(letter.message(TEXT) for _ in range(LETTERS))
        figures.add(WAITING, "valkey", (server.memory() - before) / LETTERS)
        await drain(queue, _worker(queue, settings), LETTERS)
        figures.add(FINISHED, "valkey", (server.memory() - before) / LETTERS)


async def _letters(queue: Queue, settings: Settings, jobs: int) -> None:
    await queue.enqueue_many(letter.message(TEXT) for _ in range(jobs))
    await drain(queue, _worker(queue, settings), jobs)


def _worker(queue: Queue, settings: Settings) -> Worker:
    return Worker(queue, JOBS, concurrency=settings.concurrency, prefetch=settings.prefetch)
