"""Direct hand-off, as the waiting worker sees it. [CLAIM-3]

A worker that finds fewer jobs than it has free slots registers with the store as a waiter. An enqueue can then lease a
new job to the worker in the same step and send it to the worker's inbox: a direct hand-off. Each claim ends the
worker's last registration and makes a new one with a new number. Jobs that were handed off under an earlier
registration and have not arrived yet count against the free slots. Times are those of the worker's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

MAX_ROOM = 16
"""The most jobs a waiter registers for: the most that a frozen worker can hold back."""
MIN_LEASE_MS = 3_000
"""Shorter leases are not handed off: too little of the lease would be left when the job arrives."""
IN_FLIGHT_S = 1.0
"""How long jobs count as in flight. A worker that leaves waits this long for them."""
RECHECK_MS = 20
"""When to claim again if slots are kept free for jobs in flight: those jobs may be lost."""


class Registration(Struct, eq=False):
    """One registration as a waiter, sent at `sent_at`. `room` is 0 until the store has confirmed it."""

    number: int = 0
    sent_at: float = 0.0
    lease_until: float = 0.0
    """The latest deadline of a job that is handed off under it."""
    room: int = 0
    received: int = 0
    inbox: int = 0
    """The store's number for the inbox, if it has one."""
    handed_off: int = 0
    """Jobs handed off under it, as the store said when the registration ended."""
    expected_until: float = 0.0
    """Until when jobs that have not arrived count as in flight."""


class Registrations(Struct, eq=False):
    """One worker's registrations."""

    last: Registration = field(default_factory=Registration)
    open: dict[int, Registration] = field(default_factory=dict[int, Registration])
    """The registrations under which jobs may still arrive, by number."""

    @property
    def needs_claim(self) -> bool:
        """Whether half of the room or more is used up. Only a claim makes new room."""
        return self.last.room - self.last.received <= self.last.room // 2

    def begin(self, now: float, lease_ms: int) -> Registration:
        """Make a registration, to be sent next."""
        self.open = {number: one for number, one in self.open.items() if one.lease_until > now}
        number = self.last.number + 1
        self.last = self.open[number] = Registration(number, now, now + lease_ms / 1000)
        return self.last

    def confirm(self, room: int) -> None:
        """The store has the last registration, for `room` jobs. 0: nothing can arrive under it."""
        self.last.room = room
        if not room:
            self.open.pop(self.last.number, None)

    def ended(self, handed_off: int, now: float) -> None:
        """The store has ended the last registration, after handing off this many jobs under it."""
        if self.last.handed_off != handed_off:
            self.last.handed_off = handed_off
            self.last.expected_until = now + IN_FLIGHT_S

    def in_flight(self, now: float, inbox: int, received: Mapping[int, int] | None = None) -> int:
        """How many jobs are in flight to this inbox. `received`, by number, overrides the counts of arrived jobs."""
        received = {} if received is None else received
        return sum(
            max(0, one.handed_off - received.get(number, one.received))
            for number, one in self.open.items()
            if one.inbox == inbox and one.expected_until > now
        )

    def arrived(self, number: int, count: int) -> Registration | None:
        """Count jobs that arrived under a registration. None: it is so old that their leases have ended. [LEASE-4]"""
        one = self.open.get(number)
        if one is not None:
            one.received += count
        return one


def registered_ms(lease_ms: int) -> int:
    """How long a registration lasts. The leases under it count from when it was sent."""
    return lease_ms // 3


def renew_at(now: int, lease_ms: int) -> int:
    """When to claim again at the latest, before the registration ends."""
    return now + lease_ms * 4 // 15
