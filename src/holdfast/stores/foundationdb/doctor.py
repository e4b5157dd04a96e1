"""The health of a store in FoundationDB, for an operator."""

from __future__ import annotations

from holdfast.store import Finding
from holdfast.stores.foundationdb import clock
from holdfast.stores.foundationdb.address import FdbAddress
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.keyspace import ACTIVITY_PARTS, BUCKET_MS, pack, span
from holdfast.stores.foundationdb.records import number
from holdfast.stores.foundationdb.transactions import FORMAT, Transactions
from holdfast.stores.foundationdb.unit_of_work import Work

CLOCK_MS = 5_000
"""The store clock should be this close to the wall clock."""
LATE_MS = 60_000
"""Leases and retentions should have ended this long ago at the most."""


async def findings(transactions: Transactions, address: FdbAddress) -> list[Finding]:
    """What an operator should know."""
    work, events, overdue, unpruned = await transactions.read(_look)
    found = [
        Finding("ok", "store", f"format {FORMAT} under the prefix {address.prefix!r} in {address.shown}"),
        _clock(work),
        Finding("ok", "log", f"{events} events are kept"),
    ]
    found.append(
        Finding("ok", "leases", "no lease has been over for a minute")
        if not overdue
        else Finding("warn", "leases", "leases have been over for more than a minute",
                     "run a worker, or holdfast serve, which do maintenance")
    )  # fmt: skip
    found.append(
        Finding("ok", "retention", "finished jobs are forgotten in time")
        if not unpruned
        else Finding("warn", "retention", "finished jobs past their retention are still kept",
                     "run a worker, or holdfast serve, which do maintenance")
    )  # fmt: skip
    found.append(Finding("ok", "conflicts", f"{transactions.conflicts} commits of this handle ran again"))
    return found


async def _look(work: Work) -> tuple[Work, int, bool, bool]:
    keys, tr = work.keys, work.tr
    deadlines, retentions = keys.deadlines, keys.retentions
    counters = [keys.meta_of("gone"), *(keys.activity_part(part) for part in range(ACTIVITY_PARTS))]
    late_before, old_before = pack(max(0, work.now - LATE_MS)), pack(max(0, work.now // BUCKET_MS - 1))
    (gone, *made), late, old = await together(
        tr.get_all(counters, snapshot=True),
        tr.get_range(span(deadlines)[0], deadlines + late_before, limit=1, snapshot=True),
        tr.get_range(span(retentions)[0], retentions + old_before, limit=1, snapshot=True),
    )
    return work, sum(map(number, made)) - number(gone), bool(late), bool(old)


def _clock(work: Work) -> Finding:
    anchor = work.anchor
    if anchor.frozen:
        return Finding("warn", "clock", "it is frozen, for tests")
    ahead = anchor.steady(work.version) - clock.wall_ms()
    text = f"{abs(ahead) / 1000:.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's clock"
    if abs(ahead) <= CLOCK_MS:
        return Finding("ok", "clock", text)
    cure = "check this machine's clock; the store clock is corrected by 5 ms a second where processes run"
    return Finding("warn", "clock", text, cure)
