"""Claims: on one shard, or on all of them in fair shares. [CLAIM-1, TENANT-4]"""

from __future__ import annotations

import asyncio
import random
from heapq import heapify, heapreplace

from msgspec.structs import replace

from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest, Job
from holdfast.store import REPAIR_LIMIT
from holdfast.stores.redis.keys import names_of
from holdfast.stores.redis.layout import NONE
from holdfast.stores.redis.records import encode, to_job
from holdfast.stores.redis.shards import MAX_BATCH, Shards

PROBE_S = 2.0
"""How long a claim over all tenants waits for a shard to say whether it has work."""
RECHECK_MS = 1000
"""When to claim again if shards could not be reached."""


class ShardClaims:
    """The claims of one store handle."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._turns = ShardTurns()

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Lease jobs, without large payloads. Never sent again: a lost reply costs a lease. [ENQ-8]"""
        if request.tenant is not None:
            return await self._claim_shard(self._shards.of(request.tenant), request)
        if self._shards.count == 1:
            return await self._claim_shard(0, request)
        return await self._claim_all(request)

    async def _claim_shard(self, shard: int, request: ClaimRequest) -> Claimed:
        jobs: list[Job] = []
        now = 0
        while True:
            limit = min(request.limit - len(jobs), MAX_BATCH)
            packed = encode((
                request.tenant or False, _rotated(request.queues, len(jobs)), limit, request.lease_ms,
                request.worker_id, request.random, REPAIR_LIMIT, False,
            ))  # fmt: skip
            try:
                now, next_at, _, _, *found = await self._shards.run("claim", shard, packed, repeat=False)
            except StoreError:
                if not jobs:
                    raise
                return Claimed(jobs, now, now)  # The jobs leased so far must not be lost with the rest.
            jobs += leased_jobs(found)
            if len(found) < 3 * limit or len(jobs) >= request.limit:
                return Claimed(jobs, now, None if next_at == NONE else next_at)

    async def _claim_all(self, request: ClaimRequest) -> Claimed:
        """Ask which shards have work, then claim its share from each. What a shard cannot use goes to the others.

        Turns are exact within a shard. Between shards they are in proportion to the weight of the shards' tenants.
        """
        probes = await self._shards.run_on_reachable("probe", encode((request.queues,)), PROBE_S)
        now = max(probe[0] for probe in probes.values())
        times = [next_at for _, _, next_at, _ in probes.values() if next_at != NONE]
        if len(probes) < self._shards.count:
            times.append(now + RECHECK_MS)
        weights = {shard: max(1, weight) for shard, (_, has_work, _, weight) in probes.items() if has_work}
        self._turns.enter(weights)
        jobs: list[Job] = []
        while weights and len(jobs) < request.limit:
            parts = _parts(request, self._turns.deal(weights, request.limit - len(jobs)), len(jobs))
            answers = await asyncio.gather(
                *(self._claim_shard(shard, part) for shard, part in parts), return_exceptions=True
            )
            failure: BaseException | None = None
            for (shard, part), answer in zip(parts, answers, strict=True):
                if isinstance(answer, BaseException):
                    failure = answer
                    del weights[shard]
                    times.append(now + RECHECK_MS)
                    continue
                jobs += answer.jobs
                if len(answer.jobs) < part.limit:
                    self._turns.give_back(shard, part.limit - len(answer.jobs), weights.pop(shard))
                    if answer.next_at is not None:
                        times.append(answer.next_at)
            # Jobs leased from other shards must not be lost with the shard that failed.
            if failure is not None and (not jobs or not isinstance(failure, Exception)):
                raise failure
        return Claimed(jobs, now, None if len(jobs) == request.limit else min(times, default=None))


def leased_jobs(found: list[bytes]) -> list[Job]:
    """The jobs of a claim's answer: lane, id and record of each."""
    return [
        to_job(*names_of(found[at].decode()), found[at + 1].decode(), found[at + 2]) for at in range(0, len(found), 3)
    ]


def _parts(request: ClaimRequest, shares: dict[int, int], turns: int) -> list[tuple[int, ClaimRequest]]:
    """The claim for each shard. Each continues the rotation of queues where the one before it ends."""
    parts: list[tuple[int, ClaimRequest]] = []
    for shard, share in shares.items():
        parts.append((shard, replace(request, queues=_rotated(request.queues, turns), limit=share)))
        turns += share
    return parts


def _rotated(queues: tuple[str, ...], turns: int) -> tuple[str, ...]:
    """The queues after this many turns of their rotation."""
    first = turns % len(queues) if queues else 0
    return queues[first:] + queues[:first]


class ShardTurns:
    """Turns between shards, by virtual times, as between the tenants of a shard."""

    def __init__(self) -> None:
        self._times: dict[int, float] = {}

    def enter(self, weights: dict[int, int]) -> None:
        """Let shards that have work again enter at the current minimum."""
        minimum = min((time for shard, time in self._times.items() if shard in weights), default=0.0)
        self._times = {shard: max(self._times.get(shard, minimum), minimum) for shard in weights}

    def deal(self, weights: dict[int, int], turns: int) -> dict[int, int]:
        """How many of these turns each shard gets."""
        heap = [(self._times[shard], random.random(), shard) for shard in weights]  # noqa: S311 - no secret
        heapify(heap)
        shares = dict.fromkeys(weights, 0)
        for _ in range(turns):
            time, tie, shard = heap[0]
            shares[shard] += 1
            heapreplace(heap, (time + 1 / weights[shard], tie, shard))
        self._times |= {shard: time for time, _, shard in heap}
        return {shard: share for shard, share in shares.items() if share}

    def give_back(self, shard: int, turns: int, weight: int) -> None:
        """Take back turns that a shard could not use."""
        self._times[shard] -= turns / weight
