"""One tenant's queue, a lane: its visible jobs, and the pointer that leads claims for all tenants to it. [TENANT-4]

A lane with waiting jobs is in one of these:

    active  it has a pointer in the turns of its queue name, so that every claim for all tenants knows of it
    later   it has only jobs that come due later, and a pointer at that time or before
    paused  it is paused, and was found so by a claim: it has no pointer

A transaction that adds a job makes the pointer, unless there is one that is early enough. A transaction that finds no
visible job in a lane removes the pointer. It reads where a job could appear, so it conflicts with one that adds a job
meanwhile. A transaction that adds a job and relies on a pointer reads it, so it conflicts with the removal. Two
transactions that add jobs never conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.job import JobKey
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.keyspace import after, pack, span, unpack

if TYPE_CHECKING:
    from holdfast.stores.foundationdb.unit_of_work import Work

ACTIVE, PAUSED = b"\x01", b"\x00"
"""The values of a lane's mark: it has a pointer; it is paused and needs none."""
READ = 200
"""The most jobs that one read of a lane's index returns."""


class Waiting(Struct, frozen=True):
    """An entry of a lane's index."""

    key: JobKey
    rank: int
    visible_at: int
    seq: int
    state: int


async def point(work: Work, tenant: str, queue: str, visible_at: int) -> None:
    """Make sure that claims for all tenants find a job of this lane that becomes visible at this time."""
    keys, tr = work.keys, work.tr
    mark, due = await together(
        tr.get(keys.active(tenant, queue), snapshot=True), tr.get(keys.later(tenant, queue), snapshot=True)
    )
    if mark is not None:
        tr.add_read_conflict_key(keys.active(tenant, queue))
    elif visible_at <= work.now:
        activate(work, tenant, queue)
    elif due is not None and _time(due) <= visible_at:
        tr.add_read_conflict_key(keys.later(tenant, queue))
    else:
        set_later(work, tenant, queue, visible_at, None if due is None else _time(due))


def activate(work: Work, tenant: str, queue: str) -> None:
    """Give a lane a pointer."""
    work.set(work.keys.active(tenant, queue), ACTIVE)
    work.set_stamped(work.keys.pointers(queue), tenant.encode(), work.next_pointer())


def set_later(work: Work, tenant: str, queue: str, due_at: int, old: int | None) -> None:
    """Give a lane a pointer at a time, in place of a later one."""
    pointers = work.keys.later_pointers(queue)
    if old is not None:
        work.clear(pointers + pack(old, tenant))
    work.set(work.keys.later(tenant, queue), due_at.to_bytes(8, "big"))
    work.set(pointers + pack(due_at, tenant), b"")


def _time(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


class LaneJobs:
    """The visible jobs of a lane in claim order, read a part at a time."""

    def __init__(self, work: Work, tenant: str, queue: str, *, paused: bool | None = None) -> None:
        """`paused`: whether the lane is paused. None: read that from the store."""
        self.tenant = tenant
        self.queue = queue
        self.paused = bool(paused)
        self.next_due: int | None = None
        """The earliest job that is not visible yet, once all visible ones were read."""
        self.is_read = False
        """Whether all visible jobs were read."""
        self._work = work
        self._prefix = work.keys.waiting(tenant, queue)
        self._begin, self._end = span(self._prefix)
        self._found: list[Waiting] = []
        self._checked = paused is not None

    async def fetch(self, count: int, *, skip: int = 0) -> None:
        """Read until `count` visible jobs are at hand, or all. With `skip` the first ones come last."""
        if not self._checked:
            # A pause meanwhile is a conflict, so that no job is leased after the pause was acknowledged. [CLAIM-5]
            self.paused = await self._work.tr.get(self._work.keys.lane_paused(self.tenant, self.queue)) is not None
            self._checked = True
        if self.paused:
            self.is_read = True
        while self.lacks(count + skip):
            await self._read(min(READ, count + skip - len(self._found)))
        if skip and self._found:
            at = skip % len(self._found)
            self._found = self._found[at:] + self._found[:at]

    async def _read(self, count: int) -> None:
        self.add(await self._work.tr.get_range(*self.ahead, limit=count, snapshot=True), count)

    @property
    def ahead(self) -> tuple[bytes, bytes]:
        """The keys to read next."""
        return self._begin, self._end

    def add(self, rows: list[tuple[bytes, bytes]], count: int) -> None:
        """Add jobs that were read, up to `count` of those ahead."""
        for key, value in rows:
            rank, visible_at, seq, id_ = unpack(key, len(self._prefix))
            if visible_at > self._work.now:
                self.next_due = min(visible_at, self.next_due or visible_at)
                self._begin = self._prefix + pack(rank + 1)  # All behind it in this rank are later.
                return
            self._begin = after(key)
            self._found.append(Waiting(JobKey(self.tenant, self.queue, id_), rank, visible_at, seq, value[0]))
        self.is_read = len(rows) < count

    @property
    def at_hand(self) -> int:
        """How many visible jobs were read and not taken."""
        return len(self._found)

    def lacks(self, count: int) -> bool:
        """Whether more must be read for `count` jobs at hand."""
        return not self.is_read and len(self._found) < count

    def take(self) -> Waiting:
        """The next of the jobs at hand."""
        return self._found.pop(0)

    async def has_visible(self) -> bool:
        """Whether there is a visible job that was not taken."""
        await self.fetch(1)
        return bool(self._found)


async def read_lanes(work: Work, tenants: Sequence[str], queue: str, count: int, skip: int) -> list[LaneJobs]:
    """The lanes of these tenants, each with up to `count` jobs at hand. All are read together."""
    # A pause meanwhile is a conflict: see LaneJobs.fetch.
    pauses = await work.tr.get_all([work.keys.lane_paused(tenant, queue) for tenant in tenants])
    lanes = [LaneJobs(work, one, queue, paused=pause is not None) for one, pause in zip(tenants, pauses, strict=True)]
    going = [lane for lane in lanes if not lane.paused]
    most = min(READ, count + skip)
    found = await work.tr.get_ranges([lane.ahead for lane in going], limit=most, snapshot=True)
    for lane, rows in zip(going, found, strict=True):
        lane.add(rows, most)
    await together(*(lane.fetch(count, skip=skip) for lane in lanes if skip or lane.lacks(count)))
    return lanes


async def heads(work: Work, tenant: str, queue: str, *, snapshot: bool) -> list[tuple[int, int]]:
    """The time of the first job of each rank: (rank, visible_at). Without `snapshot`, an earlier one is a conflict."""
    prefix = work.keys.waiting(tenant, queue)
    begin, end = span(prefix)
    found: list[tuple[int, int]] = []
    while rows := await work.tr.get_range(begin, end, limit=1, snapshot=snapshot):
        rank, visible_at, *_ = unpack(rows[0][0], len(prefix))
        found.append((rank, visible_at))
        begin = prefix + pack(rank + 1)
    return found


async def leave(work: Work, tenant: str, queue: str, stamps: list[bytes]) -> bool:
    """Remove the pointers of a lane if it has no visible job. Returns whether it had none.

    `stamps`: where its pointers are. A pointer that was made later conflicts.
    """
    keys, tr = work.keys, work.tr
    mark, paused, due, times = await together(
        tr.get(keys.active(tenant, queue)),
        tr.get(keys.lane_paused(tenant, queue)),
        tr.get(keys.later(tenant, queue)),
        heads(work, tenant, queue, snapshot=False),
    )
    soonest = min((at for _, at in times), default=None)
    if paused is None and soonest is not None and soonest <= work.now:
        return False
    pointers = keys.pointers(queue)
    for stamp in stamps:
        work.clear(pointers + stamp)
    if paused is not None:
        work.set(keys.active(tenant, queue), PAUSED)
    elif mark is not None:
        work.clear(keys.active(tenant, queue))
    if paused is None and soonest is not None and (due is None or _time(due) > soonest):
        set_later(work, tenant, queue, soonest, None if due is None else _time(due))
    return True


async def promote(work: Work, queue: str, limit: int) -> int:
    """Give the lanes whose time has come a pointer in the turns. Returns how many there were."""
    keys, tr = work.keys, work.tr
    prefix = keys.later_pointers(queue)
    begin, _ = span(prefix)
    rows = await tr.get_range(begin, prefix + pack(work.now + 1), limit=limit)
    for key, _ in rows:
        due_at, tenant = unpack(key, len(prefix))
        mark, due = await together(tr.get(keys.active(tenant, queue), snapshot=True), tr.get(keys.later(tenant, queue)))
        work.clear(key)
        if due is not None and _time(due) == due_at:
            work.clear(keys.later(tenant, queue))
        if mark is None:
            activate(work, tenant, queue)
        else:
            tr.add_read_conflict_key(keys.active(tenant, queue))
    return len(rows)


async def next_later(work: Work, queue: str) -> int | None:
    """The earliest time when a lane without visible jobs has one."""
    prefix = work.keys.later_pointers(queue)
    rows = await work.tr.get_range(*span(prefix), limit=1, snapshot=True)
    return unpack(rows[0][0], len(prefix))[0] if rows else None
