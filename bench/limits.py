"""On Valkey: what the server could do at most."""

from __future__ import annotations

import time

from bench.measure import MOVED, SETTLED, Figures
from bench.valkey import Server

BATCH = 100
MOVES = 600

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
