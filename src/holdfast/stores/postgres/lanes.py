"""What a process knows of the lanes of a place: their numbers, whose turn it is, and where claims begin to look.

A lane is one tenant's jobs in one queue name. Virtual times (see core.fairness) live here and not in the database,
where each claim would have to update them: turns are exact within a process, and between processes in proportion, since
each of them is fair to all tenants by itself. What is kept here is shared by all handles of the process, in all its
threads.
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
from holdfast.stores.postgres.errors import StaleCache
from holdfast.stores.postgres.literals import texts

_log = logging.getLogger("holdfast")

RANKS = 10
MAX_LEASES = 100_000
"""How many leases are remembered at most."""
NEVER = float("-inf")
"""By the monotonic clock, which begins anew with the machine: 0 may have been just now."""
FULL_SCAN_S = 1.0
"""How often a claim scans at everything: what was committed behind the marks, and lanes that nobody told us of."""


MAX_FULL_SCANS = 8
"""In how many lanes at once: under an open transaction it means to walk over all the rows that died since."""
RETRY_S = 0.2
"""How soon a lane is looked at again if it could not be among these."""
LATE_COMMIT_MS = 10_000
"""How far a claim goes back behind its mark when it is told of a new job, whose transaction may have taken a while."""


class Order:
    """Tenants in the order of a number each has, then by name."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self._entries)

    def add(self, number: int, tenant: str) -> None:
        insort(self._entries, (number, tenant))

    def remove(self, number: int, tenant: str) -> None:
        """Take out an entry that is there."""
        del self._entries[bisect_left(self._entries, (number, tenant))]


class QueueLanes(Struct, eq=False):
    """All lanes of one queue name."""

    queue: str
    lanes: dict[str, Lane] = field(default_factory=dict["str", "Lane"])
    number: int | None = None
    floor: int = 0
    scanned_at: float = NEVER
    """When it was last seen which of its lanes have work."""
    hints_seen: int = 0
    """How often we heard that there may be more of them."""
    turns: Order = field(default_factory=Order)
    """The lanes in the turns, by their virtual times. So that a claim need not go through all lanes that are known."""
    due: Order = field(default_factory=Order)
    """The other lanes where something waits, by the moment when to look."""
    rescans: deque[tuple[float, Lane]] = field(default_factory=deque["tuple[float, Lane]"])
    """Lanes to be looked at without marks, from which moment of this process's clock on. Some are settled by now."""

    def hinted(self) -> None:
        """Another process has put jobs here, in lanes that we may not know."""
        self.hints_seen += 1
        self.scanned_at = NEVER

    def first_rescan(self) -> tuple[float, Lane] | None:
        """The lane that is to be looked at first without marks, and when."""
        while self.rescans and self.rescans[0][1].rescan_at != self.rescans[0][0]:
            self.rescans.popleft()
        return self.rescans[0] if self.rescans else None


class Lane(Struct, eq=False):
    """One lane, and its place in the turns. To be changed under the lock of its memory."""

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
    """Not later than the moment at which a waiting job becomes visible; None: nothing waits, as far as is known."""
    low_water: list[int] = field(default_factory=lambda: [0] * RANKS)
    """For each priority the moment before which nothing is left to take."""
    scanned_at: float = NEVER
    """When it was last looked at without marks."""
    needs_rescan: bool = False
    """A job may stand behind the marks: it was locked when younger ones were taken, or its transaction took long."""
    rescan_at: float | None = None
    """When that is to be looked at."""
    hints_seen: int = 0
    """How often we heard that there may be something to claim."""

    def hinted(self) -> None:
        """Another process has put a job here."""
        self.hints_seen += 1
        self.needs_rescan = True
        self.look_at(0)
        self.low_water = [max(0, mark - LATE_COMMIT_MS) for mark in self.low_water]

    def look_from(self, visible_at: int) -> None:
        """A job waits since this moment, whatever the marks say."""
        self.low_water = [min(mark, visible_at) for mark in self.low_water]

    def is_empty(self, *, marked: bool) -> None:
        """Nothing was found. Beyond its marks, that is: if there is doubt, it is looked at again without them."""
        if not marked:
            self.needs_rescan, self.rescan_at = False, None
        elif self.needs_rescan and (self.rescan_at is None or self.rescan_at <= time.monotonic()):
            self.rescan_at = max(self.scanned_at + FULL_SCAN_S, time.monotonic() + RETRY_S)
            self.queue_lanes.first_rescan()  # Those that are settled do not pile up.
            self.queue_lanes.rescans.append((self.rescan_at, self))

    def arrive(self, visible_at: int) -> None:
        """A job waits here, visible from this moment on."""
        self.hints_seen += 1
        self.look_by(visible_at)
        # Clocks of transactions that overlap, or one that was set back: what is behind a mark moves it.
        self.look_from(visible_at)

    def had_work_at(self, past: int) -> bool:
        """Whether a job was visible here at this moment, and nobody in this process has taken it or canceled one."""
        return self.next_at is not None and 0 < self.next_at <= past

    def withdraw(self) -> None:
        """A job that waited here was canceled: there may be no other."""
        if not self.in_turns and self.next_at is not None:
            self.look_at(0)

    def pause(self, *, paused: bool) -> None:
        """It leaves the turns at once, and when it goes on it enters them like any other newcomer."""
        self.hints_seen += 1
        self.scanned_at = NEVER
        self.look_at(None if paused else 0)
        if paused:
            self.leave()

    def look_at(self, next_at: int | None) -> None:
        """Say when there may be something to claim."""
        if not self.in_turns and next_at != self.next_at:
            if self.next_at is not None:
                self.queue_lanes.due.remove(self.next_at, self.tenant)
            if next_at is not None:
                self.queue_lanes.due.add(next_at, self.tenant)
        self.next_at = next_at

    def look_by(self, at: int) -> None:
        """The same, if it would be later."""
        if self.next_at is None or at < self.next_at:
            self.look_at(at)

    def enter(self, at: int) -> None:
        """Take part in the turns, from this virtual time on."""
        if self.next_at is not None:
            self.queue_lanes.due.remove(self.next_at, self.tenant)
        self.time = at
        self.in_turns = True
        self.queue_lanes.turns.add(at, self.tenant)

    def leave(self) -> None:
        """Leave the turns, and keep the time."""
        if self.in_turns:
            self.queue_lanes.turns.remove(self.time, self.tenant)
            self.in_turns = False
            if self.next_at is not None:
                self.queue_lanes.due.add(self.next_at, self.tenant)

    def move(self, at: int) -> None:
        """Go on to this virtual time."""
        if self.in_turns:
            self.queue_lanes.turns.remove(self.time, self.tenant)
            self.queue_lanes.turns.add(at, self.tenant)
        self.time = at


class LaneCache:
    """What the handles of one process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.data_id = ""
        """Which data all this is about."""
        self.watchers: dict[object, Callable[[], None]] = {}
        """Called, in any thread, when the secret is another: for those who listen on channels that it names."""
        self._forget()

    @property
    def secret(self) -> str:
        """A random number that stands in the table `meta`: who may not read that does not know it."""
        return self.data_id.partition(" ")[0].replace("-", "")

    @property
    def generation(self) -> str:
        """Of the data that all this is about. Every statement that uses it compares this with the server's."""
        return self.data_id.partition(" ")[2]

    def fingerprint(self, lanes: Iterable[Lane] = (), ranks: Mapping[Lane, int] | None = None) -> str:
        """What `known` in migrations/ compares: the generation, and these lanes with the priorities that they need."""
        found = [self.generation]
        for lane in dict.fromkeys(lanes):
            bits = 0 if ranks is None else ranks[lane]
            found += [str(lane.number), str(lane.queue_id), lane.tenant, lane.queue, str(bits)]
        return texts(found)

    def check(self, fingerprint: str) -> None:
        """Raise StaleCache unless all that is known here is still of the generation that a statement compared."""
        if fingerprint != self.fingerprint():
            raise StaleCache("the database has other data than before, after a failover or a restore; try again")

    def set_data(self, data_id: str, *, stale: bool = False) -> None:
        """Which data a connection leads to. Other data, or a statement that found a lane `stale`: forget everything."""
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
        self.by_number: dict[int, Lane] = {}
        self.reaped = 0
        """No lease that was granted before has its deadline before this moment."""
        self.reap_scanned_at = NEVER
        self.next_deadline: int | None = None
        self.deadline_scanned_at = NEVER
        self._seqs: dict[int, int] = {}
        """By token, the numbers of jobs that were leased here: they save finding them by their ids."""

    def lane(self, number: int) -> Lane:
        """The lane of this number. Raises StaleCache if all was forgotten since the number was learned."""
        lane = self.by_number.get(number)
        if lane is None:
            raise StaleCache("the database has other data than before, after a failover or a restore; try again")
        return lane

    def find(self, tenant: str, queue: str) -> Lane | None:
        """The lane of these names, if it is known."""
        line = self.queues.get(queue)
        return None if line is None else line.lanes.get(tenant)

    def queue(self, queue: str) -> QueueLanes:
        """The line of this name, made if it is new here."""
        with self.lock:
            return self.queues.get(queue) or self.queues.setdefault(queue, QueueLanes(queue))

    def learn(self, fingerprint: str, number: int, queue_id: int, ranks: int, tenant: str, queue: str) -> Lane:
        """A lane as the database has it, read by a statement that compared `known`. Raises StaleCache."""
        with self.lock:
            self.check(fingerprint)
            lane = self.by_number.get(number)
            if lane is None:
                queue_lanes = self.queue(queue)
                queue_lanes.number = queue_id
                lane = self.by_number[number] = queue_lanes.lanes[tenant] = Lane(
                    number, queue_id, ranks, tenant, queue, queue_lanes
                )
            lane.ranks |= ranks
            return lane

    def lease(self, tokens: Iterable[tuple[int, int]]) -> None:
        """Leases were granted here: tokens and the numbers of their jobs."""
        with self.lock:
            if len(self._seqs) > MAX_LEASES:  # Of leases that came to nothing.
                self._seqs.clear()
            self._seqs.update(tokens)

    def leased(self, tokens: Iterable[int]) -> list[int] | None:
        """The numbers of the jobs that these tokens are for, or None if one is not known here."""
        found = [self._seqs.get(token) for token in tokens]
        return None if None in found else [seq for seq in found if seq is not None]

    def ended(self, tokens: Iterable[int]) -> None:
        """These leases are over."""
        with self.lock:
            for token in tokens:
                self._seqs.pop(token, None)

    def granted(self, deadline: int) -> None:
        """A lease was granted or moved: when to look at deadlines again."""
        with self.lock:
            self.reaped = min(self.reaped, deadline - 1)
            if self.next_deadline is None or deadline < self.next_deadline:
                self.next_deadline = deadline

    def forget_low_water(self) -> None:
        """The clock was moved: nothing is known of moments any more."""
        with self.lock:
            self.reaped = 0
            self.deadline_scanned_at = self.reap_scanned_at = NEVER
            for lane in self.by_number.values():
                lane.scanned_at = NEVER


_caches: WeakValueDictionary[tuple[str, str], LaneCache] = WeakValueDictionary()
_lock = threading.Lock()


def cache_of(identity: tuple[str, str]) -> LaneCache:
    """What this process knows of a place; it goes with the last handle."""
    with _lock:
        cache = _caches.get(identity)
        if cache is None:
            cache = _caches[identity] = LaneCache()
        return cache


def forget(identity: tuple[str, str]) -> None:
    """The place was erased."""
    with _lock:
        _caches.pop(identity, None)


def is_due(scanned_at: float) -> bool:
    """Whether it is time for a look at everything."""
    return time.monotonic() - scanned_at >= FULL_SCAN_S


def low_water_of(lanes: Iterable[Lane]) -> tuple[list[int], set[Lane]]:
    """Where to begin in each priority of each lane; now and then, in a few of them, at the very beginning: in which."""
    low_water: list[int] = []
    whole: set[Lane] = set()
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
