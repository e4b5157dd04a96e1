"""Claims: on one shard, or on all of them in fair shares. [CLAIM-1, TENANT-4]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.job import Claimed, ClaimRequest, Job
from holdfast.store import REPAIR_LIMIT
from holdfast.stores.redis import records
from holdfast.stores.redis.keys import names_of
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import BATCH, Shards


async def claim(shards: Shards, request: ClaimRequest) -> Claimed:
    """Lease jobs; large payloads are left out. Never repeated: a lost reply costs the leases it would have told of."""
    if request.tenant is not None:
        return await _claim_at(shards, shards.of(request.tenant), request)
    if shards.count == 1:
        return await _claim_at(shards, 0, request)
    return await _claim_everywhere(shards, request)


async def _claim_at(shards: Shards, shard: int, request: ClaimRequest) -> Claimed:
    jobs: list[Job] = []
    while True:
        limit = min(request.limit - len(jobs), BATCH)
        packed = encode((
            request.tenant or False, request.queues, limit, request.lease_ms, request.worker_id, request.random,
            REPAIR_LIMIT,
        ))  # fmt: skip
        now, next_at, *found = await shards.run("claim", shard, packed, repeat=False)
        for at in range(0, len(found), 3):
            tenant, queue = names_of(found[at].decode())
            jobs.append(records.to_job(tenant, queue, found[at + 1].decode(), found[at + 2]))
        if len(found) < 3 * limit or len(jobs) == request.limit:
            return Claimed(jobs, now, None if next_at < 0 else next_at)


async def _claim_everywhere(shards: Shards, request: ClaimRequest) -> Claimed:
    """See which shards may have work, then take equal shares from them; who has less leaves its share to the others.

    Turns are exact within a shard, and in proportion between them.
    """
    looks = await shards.run_everywhere("look", encode((request.queues,)))
    now = max(look[0] for look in looks)
    times = [next_at for _, _, next_at in looks if next_at >= 0]
    # Who was asked longest ago comes first, and gets what cannot be shared.
    busy = sorted((shard for shard, (_, may, _) in enumerate(looks) if may), key=shards.turns.__getitem__)
    jobs: list[Job] = []
    while busy and len(jobs) < request.limit:
        asked = _shares(request, busy, len(jobs))
        for shard, _ in asked:
            shards.turn += 1
            shards.turns[shard] = shards.turn
        answers = await asyncio.gather(
            *(_claim_at(shards, shard, part) for shard, part in asked), return_exceptions=True
        )
        busy = busy[len(asked) :]
        for (shard, part), answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, Exception) or not jobs:
                    raise answer
                continue  # What other shards leased must not be lost with the one that failed.
            jobs += answer.jobs
            if len(answer.jobs) == part.limit:
                busy.append(shard)
            elif answer.next_at is not None:
                times.append(answer.next_at)
    return Claimed(jobs, now, None if len(jobs) == request.limit else min(times, default=None))


def _shares(request: ClaimRequest, busy: Sequence[int], got: int) -> list[tuple[int, ClaimRequest]]:
    """What to ask of which shard: as much of each, and each goes on in the rotation of queues where the last ends."""
    share, rest = divmod(request.limit - got, len(busy))
    asked: list[tuple[int, ClaimRequest]] = []
    for n, shard in enumerate(busy):
        size = share + (n < rest)
        if size:
            turn = got % len(request.queues)
            queues = request.queues[turn:] + request.queues[:turn]
            asked.append((shard, replace(request, queues=queues, limit=size)))
            got += size
    return asked
