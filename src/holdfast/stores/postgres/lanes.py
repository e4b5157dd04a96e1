"""What a process caches about lanes: their numbers, their turns, and where claims begin to read.

A lane is one tenant's jobs in one queue name. Virtual times (see core.fairness) are kept here and not in the database,
where each claim would have to update them. So turns are exact within a process, and proportional between processes,
since each process is fair to all tenants by itself. All handles of a process, in all threads, share one cache.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from weakref import WeakValueDictionary

from msgspec import Struct, field

from holdfast.core.fairness import STRIDE
from holdfast.store import Hint
from holdfast.stores.postgres.errors import StaleCache
from holdfast.stores.postgres.literals import texts

_log = logging.getLogger("holdfast")

RANKS = 10
MAX_LEASES = 100_000
"""The most leases in the cache."""
NEVER = float("-inf")
"""Earlier than any time of the monotonic clock. 0 may be a recent time: that clock starts with the machine."""
FULL_SCAN_S = 1.0
"""How often a claim reads everything: jobs committed below the low-water marks, and lanes that no hint has named."""
MAX_FULL_SCANS = 8
"""The most lanes that one claim reads in full: each read passes all rows that died under an open transaction."""
RETRY_S = 0.2
"""How soon to retry a lane that this maximum left out."""
LATE_COMMIT_MS = 10_000
"""How far a hint moves the low-water marks back: the transaction of the new job may have taken that long."""


class Order:
    """Tenants ordered by a number, then by name."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._entries)

    def add(self, number: int, tenant: str) -> None:
        insort(self._entries, (number, tenant))

    def remove(self, number: int, tenant: str) -> None:
        """Remove an entry, which must exist."""
        del self._entries[bisect_left(self._entries, (number, tenant))]


class QueueLanes(Struct, eq=False):
    """All lanes of one queue name."""

    queue: str
    lanes: dict[str, TenantLane] = field(default_factory=dict["str", "TenantLane"])
    number: int | None = None
    floor: int = 0
    scanned_at: float = NEVER
    """When its lanes with work were last read."""
    hints_seen: int = 0
    """How many hints said that other lanes may have work."""
    turns: Order = field(default_factory=Order)
    """The lanes that take part in the turns, by virtual time. So a claim need not go through all known lanes."""
    due: Order = field(default_factory=Order)
    """The other lanes with waiting jobs, by the time of the next read."""
    rescans: deque[tuple[float, TenantLane]] = field(default_factory=deque["tuple[float, TenantLane]"])
    """Lanes to be read in full, and from when on by the monotonic clock. Some entries are out of date."""

    def hinted(self) -> None:
        """Note a hint: another process has enqueued here, perhaps in a lane that is not cached."""
        self.hints_seen += 1
        self.scanned_at = NEVER

    def first_rescan(self) -> tuple[float, TenantLane] | None:
        """The first lane to be read in full, and when."""
        while self.rescans and self.rescans[0][1].rescan_at != self.rescans[0][0]:
            self.rescans.popleft()
        return self.rescans[0] if self.rescans else None


class TenantLane(Struct, eq=False):
    """One lane, and its position in the turns. Change it only under the lock of its cache."""

    number: int
    queue_id: int
    ranks: int
    tenant: str
    queue: str
    queue_lanes: QueueLanes
    time: int = 0
    in_turns: bool = False
    cost: int = STRIDE
    next_at: int | None = None
    """No waiting job becomes visible before this time. None: no job waits, as far as is known."""
    low_water: list[int] = field(default_factory=lambda: [0] * RANKS)
    """For each priority, the time before which no visible job is left."""
    scanned_at: float = NEVER
    """When it was last read in full."""
    needs_rescan: bool = False
    """Whether a job may be below the low-water marks: it was locked when younger ones were taken, or committed late."""
    rescan_at: float | None = None
    """When to read it in full."""
    hints_seen: int = 0
    """How many hints and enqueues said that there may be a job to claim."""

    def hinted(self) -> None:
        """Note a hint: another process has enqueued here."""
        self.hints_seen += 1
        self.needs_rescan = True
        self.look_at(0)
        self.low_water = [max(0, mark - LATE_COMMIT_MS) for mark in self.low_water]

    def look_from(self, visible_at: int) -> None:
        """A job has been waiting since this time: move the low-water marks back to it."""
        self.low_water = [min(mark, visible_at) for mark in self.low_water]

    def is_empty(self, *, marked: bool) -> None:
        """No job was found. If it was read from its low-water marks and needs a rescan, plan one."""
        if not marked:
            self.needs_rescan, self.rescan_at = False, None
        elif self.needs_rescan and (self.rescan_at is None or self.rescan_at <= time.monotonic()):
            self.rescan_at = max(self.scanned_at + FULL_SCAN_S, time.monotonic() + RETRY_S)
            self.queue_lanes.first_rescan()  # Drops entries that are out of date.
            self.queue_lanes.rescans.append((self.rescan_at, self))

    def arrive(self, visible_at: int) -> None:
        """A job was enqueued here, visible from this time on."""
        self.hints_seen += 1
        self.look_by(visible_at)
        # Transactions overlap, and clocks may be set back: a job below a mark moves it.
        self.look_from(visible_at)

    def had_work_at(self, past: int) -> bool:
        """Whether a job was visible here at this time, and this process has neither taken nor canceled one since."""
        return self.next_at is not None and 0 < self.next_at <= past

    def withdraw(self) -> None:
        """A waiting job was canceled: perhaps there is no other."""
        if not self.in_turns and self.next_at is not None:
            self.look_at(0)

    def pause(self, *, paused: bool) -> None:
        """Leave the turns when paused. When resumed, the lane enters them like any newcomer."""
        self.hints_seen += 1
        self.scanned_at = NEVER
        self.look_at(None if paused else 0)
        if paused:
            self.leave()

    def look_at(self, next_at: int | None) -> None:
        """Set the time when there may be a job to claim."""
        if not self.in_turns and next_at != self.next_at:
            if self.next_at is not None:
                self.queue_lanes.due.remove(self.next_at, self.tenant)
            if next_at is not None:
                self.queue_lanes.due.add(next_at, self.tenant)
        self.next_at = next_at

    def look_by(self, at: int) -> None:
        """The same, unless an earlier time is set."""
        if self.next_at is None or at < self.next_at:
            self.look_at(at)

    def enter(self, at: int) -> None:
        """Take part in the turns from this virtual time on."""
        if self.next_at is not None:
            self.queue_lanes.due.remove(self.next_at, self.tenant)
        self.time = at
        self.in_turns = True
        self.queue_lanes.turns.add(at, self.tenant)

    def leave(self) -> None:
        """Leave the turns, and keep the virtual time."""
        if self.in_turns:
            self.queue_lanes.turns.remove(self.time, self.tenant)
            self.in_turns = False
            if self.next_at is not None:
                self.queue_lanes.due.add(self.next_at, self.tenant)

    def move(self, at: int) -> None:
        """Set the virtual time."""
        if self.in_turns:
            self.queue_lanes.turns.remove(self.time, self.tenant)
            self.queue_lanes.turns.add(at, self.tenant)
        self.time = at


class LaneCache:
    """The cache that all handles of one process and one schema share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.data_id = ""
        """Identifies the data that the cache is about: the schema and the generation."""
        self.watchers: dict[object, Callable[[], None]] = {}
        """Called, in any thread, when the secret changes: the names of channels contain it."""
        self._forget()

    @property
    def secret(self) -> str:
        """A random number from the table `meta`. Only roles that may read the table know it."""
        return self.data_id.partition(" ")[0].replace("-", "")

    @property
    def generation(self) -> str:
        """The generation of the data. Every statement that uses the cache compares it with the server's."""
        return self.data_id.partition(" ")[2]

    def fingerprint(self, lanes: Iterable[TenantLane] = (), ranks: Mapping[TenantLane, int] | None = None) -> str:
        """The facts that check_cache() in migrations/ compares: the generation, and lanes with their priorities."""
        found = [self.generation]
        for lane in dict.fromkeys(lanes):
            bits = 0 if ranks is None else ranks[lane]
            found += [str(lane.number), str(lane.queue_id), lane.tenant, lane.queue, str(bits)]
        return texts(found)

    def check(self, fingerprint: str) -> None:
        """Raise StaleCache unless the cache still has the generation that a statement has compared."""
        if fingerprint != self.fingerprint():
            raise StaleCache("the database has other data than before, after a failover or a restore; try again")

    def set_data(self, data_id: str, *, stale: bool = False) -> None:
        """Note which data a connection leads to. Empty the cache if it is other data, or if a lane is `stale`."""
        with self.lock:
            if self.data_id and (data_id != self.data_id or stale):
                _log.warning(
                    "the database has other data than before, after a crash, a failover, a restore or a restart: "
                    "cached lane numbers are dropped"
                )
                self._forget()
            before, self.data_id = self.secret, data_id
            if before not in ("", self.secret):
                for watcher in list(self.watchers.values()):
                    watcher()

    def _forget(self) -> None:
        self.queues: dict[str, QueueLanes] = {}
        self.by_number: dict[int, TenantLane] = {}
        self.reaped = 0
        """No live lease has a deadline before this time, as far as is known."""
        self.reap_scanned_at = NEVER
        self.next_deadline: int | None = None
        self.deadline_scanned_at = NEVER
        self._seqs: dict[int, int] = {}
        """By token, the numbers of jobs that were leased here, so that finishing them needs no lookup by id."""

    def lane(self, number: int) -> TenantLane:
        """The lane of this number. Raises StaleCache if the cache was emptied since the number was read."""
        lane = self.by_number.get(number)
        if lane is None:
            raise StaleCache("the database has other data than before, after a failover or a restore; try again")
        return lane

    def find(self, tenant: str, queue: str) -> TenantLane | None:
        """The lane of these names, if it is cached."""
        queue_lanes = self.queues.get(queue)
        return None if queue_lanes is None else queue_lanes.lanes.get(tenant)

    def queue(self, queue: str) -> QueueLanes:
        """The lanes of this queue name. Adds the name if it is new."""
        with self.lock:
            return self.queues.get(queue) or self.queues.setdefault(queue, QueueLanes(queue))

    def learn(self, fingerprint: str, number: int, queue_id: int, ranks: int, tenant: str, queue: str) -> TenantLane:
        """Cache a lane, read by a statement that compared `fingerprint`. Raises StaleCache."""
        with self.lock:
            self.check(fingerprint)
            lane = self.by_number.get(number)
            if lane is None:
                queue_lanes = self.queue(queue)
                queue_lanes.number = queue_id
                lane = self.by_number[number] = queue_lanes.lanes[tenant] = TenantLane(
                    number, queue_id, ranks, tenant, queue, queue_lanes
                )
            lane.ranks |= ranks
            return lane

    def apply(self, ready: Mapping[int, int], withdrawn: Iterable[int]) -> None:
        """Note a committed change.

        `ready` has lanes where jobs became visible, each with the earliest time; `withdrawn` those with canceled jobs.
        """
        with self.lock:
            for number, visible_at in ready.items():
                lane = self.by_number.get(number)
                if lane is not None:
                    lane.arrive(visible_at)
            for number in withdrawn:
                if number in self.by_number:
                    self.by_number[number].withdraw()

    def note_hint(self, hint: Hint, tenant: str, queue: str) -> None:
        """Note a hint of another process: there may be more to claim than the cache says. Empty names mean all."""
        if hint is not Hint.READY:
            return
        lane = self.find(tenant, queue) if tenant and queue else None
        with self.lock:
            if lane is not None:
                lane.hinted()
            elif queue:
                self.queue(queue).hinted()
            else:
                for queue_lanes in self.queues.values():
                    queue_lanes.hinted()

    def lease(self, tokens: Iterable[tuple[int, int]]) -> None:
        """Cache leases that were granted here: tokens and the numbers of their jobs."""
        with self.lock:
            if len(self._seqs) > MAX_LEASES:  # Most of them have expired.
                self._seqs.clear()
            self._seqs.update(tokens)

    def leased(self, tokens: Iterable[int]) -> list[int] | None:
        """The numbers of the jobs of these tokens, or None if one is not cached."""
        found = [self._seqs.get(token) for token in tokens]
        return None if None in found else [seq for seq in found if seq is not None]

    def ended(self, tokens: Iterable[int]) -> None:
        """Drop leases that have ended."""
        with self.lock:
            for token in tokens:
                self._seqs.pop(token, None)

    def granted(self, deadline: int) -> None:
        """A lease was granted or renewed: note its deadline."""
        with self.lock:
            self.reaped = min(self.reaped, deadline - 1)
            if self.next_deadline is None or deadline < self.next_deadline:
                self.next_deadline = deadline

    def forget_low_water(self) -> None:
        """The clock was shifted: cached times are void."""
        with self.lock:
            self.reaped = 0
            self.deadline_scanned_at = self.reap_scanned_at = NEVER
            for lane in self.by_number.values():
                lane.scanned_at = NEVER


_caches: WeakValueDictionary[tuple[str, str], LaneCache] = WeakValueDictionary()
_lock = threading.Lock()


def cache_of(identity: tuple[str, str]) -> LaneCache:
    """The cache of this process for a schema. It ends with the last handle."""
    with _lock:
        cache = _caches.get(identity)
        if cache is None:
            cache = _caches[identity] = LaneCache()
        return cache


def forget(identity: tuple[str, str]) -> None:
    """The schema was erased."""
    with _lock:
        _caches.pop(identity, None)


def is_due(scanned_at: float) -> bool:
    """Whether it is time to read everything."""
    return time.monotonic() - scanned_at >= FULL_SCAN_S


def low_water_of(lanes: Iterable[TenantLane]) -> tuple[list[int], set[TenantLane]]:
    """Where to begin in each priority of each lane, and the lanes that are read in full this time."""
    low_water: list[int] = []
    whole: set[TenantLane] = set()
    now = time.monotonic()
    scans = MAX_FULL_SCANS
    for lane in lanes:
        if scans and now - lane.scanned_at >= FULL_SCAN_S:
            scans -= 1
            lane.scanned_at = now
            low_water += [0] * RANKS
            whole.add(lane)
        else:
            low_water += lane.low_water
    return low_water, whole
