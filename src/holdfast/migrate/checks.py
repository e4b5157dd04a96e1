"""What must be true before jobs are copied or removed, and the errors if it is not."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable

from holdfast.core.errors import InvalidOption, StoreBusy, StoreMismatch
from holdfast.core.job import WAITING, JobState
from holdfast.core.names import FLOWS, MOVES
from holdfast.migrate.move_log import MoveInfo
from holdfast.migrate.plan import MovePlan
from holdfast.migrate.steps import Receipt, no_room, pages
from holdfast.opening import shown_url
from holdfast.store import Store, TenantSettings

POLL_S = 0.1
REAP_LIMIT = 1000


async def is_known(source: Store, tenant: str) -> bool:
    """Whether the source has jobs or settings of the tenant."""
    if any(stats.queue != MOVES for stats in await source.stats(tenant)):
        return True
    settings = await source.tenant_settings(tenant)
    return any(one != TenantSettings(one.queue) for one in settings)


async def check_flows(source: Store, tenant: str) -> None:
    """Raise StoreBusy if a flow has begun: its steps end in the source. Other flows move like any job."""
    begun = 0
    async for page in pages(source, tenant, FLOWS, WAITING | {JobState.LEASED}):
        begun += sum(1 for job in page.jobs if job.token)
    if begun:
        raise StoreBusy(f"{_count(begun, 'flow is', 'flows are')} under way in SRC; wait for them, or cancel them")


async def wait_for_running(source: Store, tenant: str, queues: list[str], wait_s: float) -> None:
    """Wait until no job of these queues runs in the source. Raises StoreBusy after `wait_s`."""
    until = time.monotonic() + wait_s
    while True:
        stats = await source.stats(tenant, queues)
        running = {one.queue: count for one in stats if (count := one.counts.get(JobState.LEASED, 0))}
        if not running:
            return
        if time.monotonic() >= until:
            counts = ", ".join(f"{count} in {queue}" for queue, count in running.items())
            raise StoreBusy(
                f"{_count(sum(running.values()), 'job', 'jobs')} of {tenant!r} still ran in SRC after "
                f"{wait_s:g} s ({counts}); try again with a longer --wait, or when they have ended"
            )
        # Perhaps no other process ends the leases of dead workers.
        await source.reap(REAP_LIMIT, random.random())  # noqa: S311
        await asyncio.sleep(POLL_S)


async def check_room(target: Store, tenant: str, waiting: dict[str, int]) -> None:
    """Raise StoreBusy if a quota of the target has no room for these jobs, before any is copied."""
    limits = {one.queue: one.max_waiting for one in await target.tenant_settings(tenant)}
    if all(limit is None for limit in limits.values()):
        return
    stats = await target.stats(tenant)
    present = {one.queue: sum(one.counts.get(state, 0) for state in WAITING) for one in stats}
    for queue, limit in limits.items():
        has = sum(present.values()) if queue is None else present.get(queue, 0)
        more = sum(waiting.values()) if queue is None else waiting.get(queue, 0)
        if limit is not None and more and has + more > limit:
            raise StoreBusy(no_room(queue, has, limit, more))


def check_receipts(receipts: Iterable[Receipt]) -> None:
    """Raise StoreMismatch with the first jobs that differ, if there are any."""
    differences = [line for receipt in receipts for line in receipt.differences]
    if differences:
        lines = "\n  ".join(differences[:10])
        raise StoreMismatch(f"DST does not have what SRC has, so nothing is removed from SRC:\n  {lines}")


def unknown_tenant(plan: MovePlan) -> InvalidOption:
    """The source knows nothing of the tenant."""
    return InvalidOption("tenant", f"there are no jobs or settings of {plan.tenant!r} in {shown_url(plan.source)}")


def another_move(info: MoveInfo, tenant: str) -> StoreBusy:
    """Another move has not ended."""
    return StoreBusy(
        f"a move {info} has not ended; finish it first, by the same command. If one of its stores is gone for good: "
        f"{forget_command(info, tenant)}"
    )


def forget_command(info: MoveInfo, tenant: str) -> str:
    """The command that gives up a move."""
    return f"holdfast move {info.source} {info.target} --tenant {tenant} --forget"


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
