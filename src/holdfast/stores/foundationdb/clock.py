"""The store clock: a stored anchor plus versions, which every transaction reads with its own read version. [TIME-1]

Versions advance by a million a second whatever the traffic, and jump ahead when the cluster recovers. So the anchor
is renewed every few seconds, by whichever process is the first to see that it is old:

- a process that saw an earlier version compares how far versions and its own clocks have come since. Versions that
  jumped further than time passed are left out of the clock, before any lease is judged by it;
- the clock then runs a little faster or slower, by at most SLEW, towards the wall clocks of the processes: towards the
  median of those that reported in the last minute. It never runs back.
"""

from __future__ import annotations

import os
import time
from statistics import median

from msgspec import Struct, field, msgpack
from msgspec.structs import replace

VERSIONS_PER_MS = 1_000
RENEW_MS = 5_000
"""An anchor of this age is renewed before a transaction goes on."""
JUMP_MS = 10_000
"""If versions advanced by this much more than time, it is a jump."""
UNSEEN_JUMP_MS = 60_000
"""The same for a process that saw no earlier version: it can only compare its wall clock with the last process's."""
SLEW = 5_000
"""Millionths by which the clock may run faster or slower than versions: 5 ms a second, 18 s an hour."""
CORRECT_WITHIN_MS = 60_000
"""An error is to be corrected in this time, as far as SLEW allows."""
REPORT_MS = 60_000
"""How long the report of a process counts."""
MAX_REPORTS = 15
LAG_MS = 3_000
"""How far the versions of an idle cluster may lag."""

_ME = f"{os.getpid():x}{time.monotonic_ns():x}"


class Anchor(Struct, frozen=True, array_like=True):
    """At `version` it was `at`. `wall` is the wall clock of the process that wrote the anchor."""

    version: int
    at: int
    wall: int
    rate: int = 0
    """Millionths by which the clock runs faster than versions."""
    shift: int = 0
    """What tests have added."""
    frozen: bool = False
    reports: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By process: when it last renewed the anchor, and how far its wall clock was ahead."""

    def now(self, version: int) -> int:
        """The time at a version, in milliseconds."""
        return self.steady(version) + self.shift

    def steady(self, version: int) -> int:
        """The time at a version, without what tests have added."""
        if self.frozen:
            return self.at
        passed = max(0, version - self.version)
        return self.at + passed * (1_000_000 + self.rate) // (1_000_000 * VERSIONS_PER_MS)

    def is_old(self, version: int) -> bool:
        """Whether it must be renewed before it is relied on."""
        return not self.frozen and version - self.version > RENEW_MS * VERSIONS_PER_MS


decode = msgpack.Decoder(Anchor).decode
encode = msgpack.Encoder().encode


def wall_ms() -> int:
    """This machine's clock."""
    return time.time_ns() // 1_000_000


def first_anchor(version: int, *, frozen: bool) -> Anchor:
    """The anchor of a new store."""
    wall = wall_ms()
    return Anchor(version, wall, wall, frozen=frozen)


class Witness:
    """What this process has seen of versions and of its own clocks."""

    def __init__(self) -> None:
        self._version = 0
        self._steady = self._wall = 0
        self._committed = 0
        self._committed_at = -LAG_MS

    def saw(self, version: int) -> None:
        """Note that this version was read just now."""
        if version > self._version:
            self._version, self._steady, self._wall = version, _steady_ms(), wall_ms()

    def made(self, version: int) -> None:
        """Note that this version was committed just now: it does not lag."""
        self._committed, self._committed_at = version, _steady_ms()

    def is_due(self, anchor: Anchor, at: int) -> bool:
        """Whether a time may have come, though the last version of an idle cluster is from before.

        It is known for a while after a commit. Else it may be.
        """
        if anchor.frozen:
            return False
        passed = _steady_ms() - self._committed_at
        return passed > LAG_MS or anchor.now(self._committed) + passed >= at

    def renewed(self, anchor: Anchor, version: int) -> Anchor:
        """The anchor at a version that was read just now."""
        at = anchor.steady(version)
        elapsed = self._elapsed(anchor, at - anchor.at)
        if elapsed is not None:
            at = anchor.at + elapsed
        wall = wall_ms()
        reports = {who: one for who, one in anchor.reports.items() if who != _ME and one[0] > at - REPORT_MS}
        while len(reports) >= MAX_REPORTS:
            del reports[min(reports, key=lambda who: reports[who][0])]
        reports[_ME] = (at, wall - at)
        behind = median(ahead for _, ahead in reports.values())
        rate = int(max(-SLEW, min(SLEW, behind * 1_000_000 / CORRECT_WITHIN_MS)))
        return replace(anchor, version=version, at=at, wall=wall, rate=rate, reports=reports)

    def _elapsed(self, anchor: Anchor, passed: int) -> int | None:
        """How long it is since the anchor, if its versions have jumped further; None if they have not."""
        if self._version:
            # The longer of both: a machine that slept has only one clock that went on. What was seen before the anchor
            # is too long, never too short.
            own = max(_steady_ms() - self._steady, wall_ms() - self._wall)
            own += max(0, self._version - anchor.version) // VERSIONS_PER_MS
            if passed - own > JUMP_MS:
                return max(0, own)
        by_walls = wall_ms() - anchor.wall
        # A wall clock behind that of the last process shows nothing if this process has seen time pass.
        if passed - by_walls > UNSEEN_JUMP_MS and (by_walls >= 0 or not self._version):
            return max(0, by_walls)
        return None


def _steady_ms() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1_000_000
