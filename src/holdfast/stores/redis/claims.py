"""Claims: on one shard, or on all of them in fair shares. [CLAIM-1, TENANT-4]"""

from __future__ import annotations

import asyncio
import random
from heapq import heapify, heapreplace

from msgspec.structs import replace

from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, ClaimRequest, Job
from holdfast.store import REPAIR_LIMIT
from holdfast.stores.redis import records
from holdfast.stores.redis.keys import names_of
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import BATCH, Shards

LOOK_S = 2.0
"""How long a claim over all tenants waits for a shard that does not answer. It is not asked again for a while."""
RECHECK_MS = 1000
"""When to look again at shards that could not be reached."""


class Claims:
    """The claims of one handle."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._turns = Turns()

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Lease jobs; large payloads are left out. Never sent again: a lost reply costs a lease. [ENQ-8]"""
        if request.tenant is not None:
            return await self._claim_at(self._shards.of(request.tenant), request)
        if self._shards.count == 1:
            return await self._claim_at(0, request)
        return await self._claim_everywhere(request)

    async def _claim_at(self, shard: int, request: ClaimRequest) -> Claimed:
        jobs: list[Job] = []
        now = 0
        while True:
            limit = min(request.limit - len(jobs), BATCH)
            packed = encode((
                request.tenant or False, _turned(request.queues, len(jobs)), limit, request.lease_ms,
                request.worker_id, request.random, REPAIR_LIMIT, False,
            ))  # fmt: skip
            try:
                now, next_at, _, _, *found = await self._shards.run("claim", shard, packed, repeat=False)
            except StoreError:
                if not jobs:
                    raise
                return Claimed(jobs, now, now)  # What was leased before must not be lost with the rest.
            jobs += leased(found)
            if len(found) < 3 * limit or len(jobs) >= request.limit:
                return Claimed(jobs, now, None if next_at < 0 else next_at)

    async def _claim_everywhere(self, request: ClaimRequest) -> Claimed:
        """See which shards may have work, then take from each its share; who has less leaves its share to the others.

        Turns are exact within a shard, and in proportion to the weight of their tenants between them.
        """
        # Shards that cannot be reached keep nobody from the others.
        looks = await self._shards.run_where_possible("look", encode((request.queues,)), LOOK_S)
        now = max(look[0] for look in looks.values())
        times = [next_at for _, _, next_at, _ in looks.values() if next_at >= 0]
        if len(looks) < self._shards.count:
            times.append(now + RECHECK_MS)
        weights = {shard: max(1, weight) for shard, (_, may, _, weight) in looks.items() if may}
        self._turns.enter(weights)
        jobs: list[Job] = []
        while weights and len(jobs) < request.limit:
            asked = _parts(request, self._turns.deal(weights, request.limit - len(jobs)), len(jobs))
            answers = await asyncio.gather(
                *(self._claim_at(shard, part) for shard, part in asked), return_exceptions=True
            )
            failure: BaseException | None = None
            for (shard, part), answer in zip(asked, answers, strict=True):
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
            # What other shards leased must not be lost with the one that failed.
            if failure is not None and (not jobs or not isinstance(failure, Exception)):
                raise failure
        return Claimed(jobs, now, None if len(jobs) == request.limit else min(times, default=None))


def leased(found: list[bytes]) -> list[Job]:
    """The jobs that a claim brought: lane, id and record of each."""
    return [
        records.to_job(*names_of(found[at].decode()), found[at + 1].decode(), found[at + 2])
        for at in range(0, len(found), 3)
    ]


def _parts(request: ClaimRequest, shares: dict[int, int], got: int) -> list[tuple[int, ClaimRequest]]:
    """What to ask of which shard; each goes on in the rotation of queues where the last one ends."""
    parts: list[tuple[int, ClaimRequest]] = []
    for shard, share in shares.items():
        parts.append((shard, replace(request, queues=_turned(request.queues, got), limit=share)))
        got += share
    return parts


def _turned(queues: tuple[str, ...], turns: int) -> tuple[str, ...]:
    """The queues as they stand in the rotation after so many turns."""
    first = turns % len(queues) if queues else 0
    return queues[first:] + queues[:first]


class Turns:
    """Turns between shards, as this handle deals them out: virtual times, as between the tenants of a shard."""

    def __init__(self) -> None:
        self._times: dict[int, float] = {}

    def enter(self, weights: dict[int, int]) -> None:
        """Shards that have work again enter at the current minimum."""
        least = min((time for shard, time in self._times.items() if shard in weights), default=0.0)
        self._times = {shard: max(self._times.get(shard, least), least) for shard in weights}

    def deal(self, weights: dict[int, int], turns: int) -> dict[int, int]:
        """So many turns to each."""
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
        """Turns that a shard had no use for."""
        self._times[shard] -= turns / weight
