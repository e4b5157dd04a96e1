"""Large payloads, which are kept apart from the records of their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.errors import StoreError
from holdfast.core.job import Claimed, Job
from holdfast.stores.redis.keys import lane_of
from holdfast.stores.redis.records import SEPARATE, with_payload
from holdfast.stores.redis.shards import Shards

MAX_PAYLOADS = 20
"""How many payloads of up to 256 KiB one command reads."""


async def with_payloads(shards: Shards, jobs: Sequence[Job | None], *, strict: bool = True) -> list[Job | None]:
    """The jobs with their large payloads. A job that was forgotten meanwhile is None.

    Without `strict`, a job is also None if its payload cannot be read now.
    """
    filled = list(jobs)
    by_key: dict[str, list[int]] = {}
    for n, job in enumerate(jobs):
        if job is not None and job.envelope.payload is SEPARATE:
            by_key.setdefault(shards.lane_key("p", job.tenant, lane_of(job.tenant, job.queue)), []).append(n)
    for key, positions in by_key.items():
        for first in range(0, len(positions), MAX_PAYLOADS):
            some = positions[first : first + MAX_PAYLOADS]
            try:
                await _add_payloads(shards, key, some, filled)
            except StoreError:
                if strict:
                    raise
                for n in some:
                    filled[n] = None
    return filled


async def filled_claim(shards: Shards, claimed: Claimed) -> Claimed:
    """Claimed jobs with their large payloads."""
    # A job whose payload cannot be read comes back when its lease expires. The others must not be lost with it.
    jobs = [job for job in await with_payloads(shards, claimed.jobs, strict=False) if job is not None]
    return Claimed(jobs, claimed.now, claimed.next_at)


async def _add_payloads(shards: Shards, key: str, positions: Sequence[int], jobs: list[Job | None]) -> None:
    wanted = [(n, job) for n in positions if (job := jobs[n]) is not None]
    payloads = await shards.client.command(key, "HMGET", key, *(job.id.encode() for _, job in wanted), repeat=True)
    for (n, job), payload in zip(wanted, payloads, strict=True):
        jobs[n] = None if payload is None else with_payload(job, payload)
