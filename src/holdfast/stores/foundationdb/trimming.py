"""Trims the log: by age, and tenants to their share of its room. [EVENT-2]

An entry whose events are all trimmed is cleared. Others are rewritten without the trimmed events. Counts by tenant give
the level, and are read only if the log is too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from holdfast.core.trimming import Excess, excess
from holdfast.store import EVENTS_BOUND, EVENTS_BOUND_MS
from holdfast.stores.foundationdb import entries
from holdfast.stores.foundationdb.database import FdbTransaction
from holdfast.stores.foundationdb.entries import LogEntry
from holdfast.stores.foundationdb.keyspace import ACTIVITY_PARTS, STAMP_BYTES, after, span, unpack
from holdfast.stores.foundationdb.log import last_cut, last_of
from holdfast.stores.foundationdb.records import number
from holdfast.stores.foundationdb.transactions import Transactions
from holdfast.stores.foundationdb.unit_of_work import Work

READ = 1_000
"""The most keys that one read returns."""
PART = 500
"""The most entries that one transaction trims."""
PARTS = 40
"""The most transactions of one call."""


async def trim(transactions: Transactions) -> tuple[int, bool]:
    """Trim the log. Returns how many events were removed, and whether there is more to trim."""
    gone, parts = 0, 0
    while parts < PARTS:
        removed = await _change(transactions, lambda trimming: trimming.drop_old())
        gone += removed
        parts += 1
        if not removed:
            break
    surplus = await transactions.read(_surplus)
    for tenant, one in surplus.items():
        while parts < PARTS:
            parts += 1
            removed = await _change(transactions, lambda trimming: trimming.drop_excess(tenant, one))  # noqa: B023
            gone += removed
            if not removed:
                break
            one.soft, one.hard = one.soft - removed, one.hard - removed
    return gone, parts >= PARTS


async def _change(transactions: Transactions, step: Callable[[_Pass], Awaitable[int]]) -> int:
    """Trim in one transaction. Returns how many events were removed."""

    async def body(work: Work) -> tuple[int, int]:
        trimming = _Pass(work)
        return await step(trimming), trimming.gone_before

    async def was_made(transaction: FdbTransaction, answer: tuple[int, int]) -> bool:
        gone = number(await transaction.get(transactions.keys.meta_of("gone")))
        return bool(answer[0]) and gone >= sum(answer)

    removed, _ = await transactions.change(body, was_made=was_made)
    return removed


async def _surplus(work: Work) -> dict[str, Excess]:
    """The tenants with more events than their share."""
    keys, tr = work.keys, work.tr
    made = await tr.get_all([keys.activity_part(part) for part in range(ACTIVITY_PARTS)], snapshot=True)
    gone = number(await tr.get(keys.meta_of("gone"), snapshot=True))
    if sum(map(number, made)) - gone <= work.rules.keep_events:
        return {}
    kept: dict[str, int] = {}
    begin, end = span(keys.event_counts)
    while rows := await tr.get_range(begin, end, limit=READ, snapshot=True):
        kept.update((unpack(key, len(keys.event_counts))[0], number(value)) for key, value in rows)
        begin = after(rows[-1][0])
    return excess(kept, work.rules.keep_events, EVENTS_BOUND)


class _Pass:
    """One transaction that trims. Two at once conflict."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.gone_before = 0
        """How many events had been trimmed before."""
        self._cuts: dict[str, bytes] = {}
        self._gone: Counter[str] = Counter()

    async def drop_old(self) -> int:
        """Drop the oldest entries over the age limit, up to the first younger one."""
        work, prefix = self._work, self._work.keys.log
        too_old = work.now - EVENTS_BOUND_MS
        rows = await work.tr.get_range(prefix, prefix + b"\xff" * STAMP_BYTES, limit=1, snapshot=True)
        if not rows or self._unpack(*rows[0])[1].at > too_old:
            return 0
        rows = await work.tr.get_range(prefix, prefix + b"\xff" * STAMP_BYTES, limit=PART, snapshot=True)
        await self._lock()
        for key, value in rows:
            position, entry = self._unpack(key, value)
            if entry.at > too_old:
                break
            work.clear(key)
            last = last_of(position, entry)
            for tenant, count in Counter(entry.tenants).items():
                self._drop(tenant, position, last, count)
        return await self._finish()

    def _unpack(self, key: bytes, value: bytes) -> tuple[bytes, LogEntry]:
        position = key[len(self._work.keys.log) :]
        return position, entries.unpack_entry(value, entries.number_in(position))

    async def drop_excess(self, tenant: str, surplus: Excess) -> int:
        """Drop the oldest events of a tenant above its share."""
        work, prefix = self._work, self._work.keys.log_of(tenant)
        rows = await work.tr.get_range(prefix, prefix + b"\xff" * STAMP_BYTES, limit=PART, snapshot=True)
        slowest = await self._slowest_reader(tenant)
        surplus = Excess(surplus.soft, surplus.hard)
        await self._lock()
        for key, value in rows:
            position = key[len(prefix) :]
            is_whole, count = not value[0], int.from_bytes(value[1:], "little")
            first = entries.number_in(position)
            entry = None if is_whole else await self._entry(position)
            places = range(first, first + count) if entry is None else entry.places_of(tenant)
            here = [entries.at_number(position, place) for place in places]
            taken = surplus.takes(count, sum(place <= slowest for place in here))
            if not taken:
                break
            if is_whole and taken == count:
                work.clear(work.keys.log_at(position))
            else:
                self._rewrite(position, entries.without(entry or await self._entry(position), tenant, taken))
            self._drop(tenant, position, here[taken - 1], taken)
            if taken < count:
                work.set(key, b"\x01" + (count - taken).to_bytes(2, "little"))
                break
        return await self._finish()

    async def _entry(self, position: bytes) -> LogEntry:
        value = await self._work.tr.get(self._work.keys.log_at(position))
        return entries.unpack_entry(value or b"", entries.number_in(position))

    def _rewrite(self, position: bytes, entry: LogEntry) -> None:
        key = self._work.keys.log_at(position)
        if entry.count:
            self._work.set(key, entries.pack_entry(entry))
        else:
            self._work.clear(key)

    def _drop(self, tenant: str, position: bytes, last: bytes, count: int) -> None:
        self._work.clear(self._work.keys.log_of(tenant) + position)
        self._gone[tenant] += count
        self._cuts[tenant] = max(last, self._cuts.get(tenant, entries.START))

    async def _lock(self) -> None:
        """Conflict with every other transaction that trims."""
        self.gone_before = number(await self._work.tr.get(self._work.keys.meta_of("gone")))

    async def _finish(self) -> int:
        """Write the counts, and how far the log of all tenants and of each is trimmed."""
        work, keys = self._work, self._work.keys
        if not self._gone:
            return 0
        for tenant, count in self._gone.items():
            work.count(keys.tenant_events(tenant), -count)
        for tenant, cut in self._cuts.items():
            old = await work.tr.get(keys.cut_of(tenant))
            if old is not None:
                if old >= cut:
                    continue
                work.clear(keys.cut_at(old, tenant))
            work.set(keys.cut_of(tenant), cut)
            work.set(keys.cut_at(cut, tenant), b"")
        work.count(keys.meta_of("gone"), self._gone.total())
        await self._move_edge()
        return self._gone.total()

    async def _move_edge(self) -> None:
        """No event before the first entry that is left is kept."""
        work, prefix = self._work, self._work.keys.log
        left = await work.tr.get_range(prefix, prefix + b"\xff" * STAMP_BYTES, limit=1, snapshot=True)
        first = b"\xff" * STAMP_BYTES
        if left:
            position, entry = self._unpack(*left[0])
            first = entries.at_number(position, entry.places[0])
        edge = await last_cut(work, first)
        if edge > work.trimmed:
            work.set(work.keys.meta_of("trimmed"), edge)

    async def _slowest_reader(self, tenant: str) -> bytes:
        """The position up to which all readers of a tenant's events have read."""
        keys = self._work.keys
        rows = await self._work.tr.get_range(*span(keys.readers), snapshot=True)
        named = ((unpack(key, len(keys.readers))[0], position) for key, position in rows)
        return min((position for owner, position in named if owner in ("", tenant)), default=b"\xff" * STAMP_BYTES)
