"""Checks of PostgreSQL that are not in the suite: locks force an order that the suite meets only sometimes."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core.job import Cancel
from holdfast.testing.conformance import Check, Harness
from holdfast.testing.conformance.expect import expect_equal
from tests.eventually import eventually

# Not pg_stat_activity, which stays within a transaction as it was at the first look.
_BLOCKED = "SELECT min(pid) FROM pg_locks WHERE NOT granted AND $1 = ANY (pg_blocking_pids(pid))"


async def a_cancel_waits_for_a_claim_and_builds_on_it(h: Harness) -> None:
    """The claim has its job and waits for the log; the cancel waits for the job. Their events are numbered in turn."""
    store: Any = h.store
    await h.queued("job")
    (other,) = await h.handles(1)
    async with h.begin() as transaction:

        async def blocked_by(pid: int) -> int:
            return await eventually(lambda: transaction.fetchval(_BLOCKED, pid))

        await transaction.execute(f'LOCK TABLE "{store.address.schema}".events IN SHARE MODE')
        claiming = asyncio.create_task(h.claim_one("job"))
        claim = await blocked_by(transaction.get_server_pid())
        canceling = asyncio.create_task(other.cancel([Cancel(h.key("job"))]))
        await blocked_by(claim)
    await claiming
    expect_equal(await canceling, ["canceled"], "answer to the cancel")
    numbered = [(event.kind, event.number) for event in await h.history(h.key("job"))]
    expect_equal(numbered, [("enqueued", 1), ("claimed", 2), ("canceled", 3)], "events and their numbers")


ORDERED = [Check("CANCEL-1", body.__name__, body) for body in (a_cancel_waits_for_a_claim_and_builds_on_it,)]
