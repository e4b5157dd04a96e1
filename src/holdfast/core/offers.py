"""What an idle worker has offered to take, as the worker knows it. [CLAIM-3]

A claim takes the worker's last offer back and leaves a new one, each under a number of its own. What was handed over
under an earlier one and has not come yet is counted in, so that no worker gets more than it has room for. Times are
those of the worker's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

MOST = 16
"""How many jobs are offered to be taken: so many can a worker that froze just now keep from the others."""
LEAST_LEASE_MS = 3_000
"""With shorter leases nothing is offered: too much of one would be over when the job comes."""
LAST_WORD_S = 1.0
"""How long what was already on its way is waited for: by a worker that leaves, and in counting the room of one."""
LOOK_AGAIN_MS = 20
"""When a claim is to be repeated whose room was kept for jobs on their way: they may be lost."""


class Offer(Struct, eq=False):
    """What was offered at `sent`; `given` is 0 while the store has not confirmed it."""

    number: int = 0
    sent: float = 0.0
    until: float = 0.0
    """When the lease of what comes under it is over at the latest."""
    given: int = 0
    got: int = 0
    post: int = 0
    """Where the store keeps it, if it has a number for that."""
    handed: int = 0
    """How many jobs were handed over under it, as the store said when it was taken back."""
    awaited_until: float = 0.0
    """Until when those of them that have not come are counted on."""


class Offers(Struct, eq=False):
    """One worker's offers."""

    last: Offer = field(default_factory=Offer)
    living: dict[int, Offer] = field(default_factory=dict[int, Offer])
    """Those under which something may still come."""

    @property
    def low(self) -> bool:
        """Whether most of what was offered has come."""
        return self.last.given - self.last.got <= self.last.given // 2

    def begin(self, now: float, lease_ms: int) -> Offer:
        """The next one, which is about to be sent."""
        self.living = {number: offer for number, offer in self.living.items() if offer.until > now}
        number = self.last.number + 1
        self.last = self.living[number] = Offer(number, now, now + lease_ms / 1000)
        return self.last

    def confirm(self, given: int) -> None:
        """The store has taken the last one, for so many; none: nothing can come under it."""
        self.last.given = given
        if not given:
            self.living.pop(self.last.number, None)

    def taken_back(self, handed: int, now: float) -> None:
        """The store has given the last one back; under it so many jobs came, or are on their way."""
        if self.last.handed != handed:
            self.last.handed = handed
            self.last.awaited_until = now + LAST_WORD_S

    def coming(self, now: float, post: int, got: Mapping[int, int] | None = None) -> int:
        """How many jobs are on their way to this place: beyond those that we have, or had `got` under each number."""
        got = {} if got is None else got
        return sum(
            max(0, offer.handed - got.get(number, offer.got))
            for number, offer in self.living.items()
            if offer.post == post and offer.awaited_until > now
        )

    def came(self, number: int, count: int) -> Offer | None:
        """Jobs came under this offer; None: it is so old that their lease is over by our own clock. [LEASE-4]"""
        offer = self.living.get(number)
        if offer is not None:
            offer.got += count
        return offer


def lasts_ms(lease_ms: int) -> int:
    """For how long an offer stands: the lease is counted from when it was made."""
    return lease_ms // 3


def renew_at(now: int, lease_ms: int) -> int:
    """When to claim again at the latest: before the offer is over."""
    return now + lease_ms * 4 // 15
