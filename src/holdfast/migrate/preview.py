"""What a move would do, and whether one was interrupted."""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.job import JobKey, JobState
from holdfast.core.names import MOVES
from holdfast.migrate.checks import is_known, unknown_tenant
from holdfast.migrate.move_log import MoveInfo, MoveLog
from holdfast.migrate.plan import MovePlan, opened
from holdfast.migrate.steps import LEASE_ID
from holdfast.opening import existing
from holdfast.store import QueueStats


class Preview(Struct, frozen=True):
    """A tenant before a move."""

    queues: list[QueueStats]
    """Its queues in the source, with their counts."""
    info: MoveInfo | None = None
    """A move of the tenant, from or to this store, that has begun and not ended."""
    under_way: bool = False
    """A mover works on it now. If false, the move was interrupted and can be continued."""
    paused: list[str] = []
    """The queues that it has paused, in both stores."""


async def preview(plan: MovePlan) -> Preview:
    """Show what would move, and whether a move was interrupted. Changes nothing.

    Raises InvalidOption if the source does not know the tenant.
    """
    async with opened(existing(plan.source), "SRC") as source:
        found = [stats for stats in await source.stats(plan.tenant) if stats.queue != MOVES]
        record = await MoveLog(source, plan.tenant, "SRC").look()
        if not found and record.info is None and not await is_known(source, plan.tenant):
            raise unknown_tenant(plan)
        (lease,), now = await source.get([JobKey(plan.tenant, MOVES, LEASE_ID)]), await source.now()
        under_way = lease is not None and lease.state is JobState.LEASED and lease.deadline > now
        return Preview(found, record.info, under_way, sorted(record.paused))
