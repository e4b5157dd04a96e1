"""The instants at which a schedule is due: by a cron expression in a time zone, or at an interval.

Cron works as in Debian, also for daylight saving. Where the clocks skip an hour, a time in it runs once, right after
the hour. Where they repeat an hour, a time in it runs once, the first time. An expression with a star for the minutes
or hours counts the hours that really pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any

from holdfast.core.errors import InvalidName, InvalidOption
from holdfast.core.names import check_id
from holdfast.core.schedule import NAME_BYTES, Timing
from holdfast.core.times import EPOCH
from holdfast.jobs.options import Seconds, duration_ms

SHORTEST_MS = 1_000
_FIELDS = 5
_LONGEST = 200
_ONE_MS = timedelta(milliseconds=1)
# To find the last tick before an instant, step back by this, then by more each time.
_BACK_MS, _FURTHER, _FAR_MS = 90_000, 8, 51 * 366 * 86_400_000
_EXAMPLE = "Europe/Berlin"
_NOT_ZONES = ("localtime", "posixrules")
"""Zone files whose content depends on the machine."""
_INSTALL = "install it with: pip install 'holdfast[schedules]'"


def timing(cron: str | None, every: Seconds | None, timezone: str = "UTC", *, here: bool = True) -> Timing:
    """When a schedule is due, checked. Without `here`, the service checks the expression and its time zone.

    Raises InvalidOption, which says what to write.
    """
    if (cron is None) == (every is None):
        raise InvalidOption("cron", 'give cron="30 2 * * *" or every=timedelta(minutes=10), one of them')
    if every is not None:
        every_ms = duration_ms("every", every)
        if every_ms < SHORTEST_MS:
            raise InvalidOption("every", f"{every} is shorter than a second")
        if timezone != "UTC":
            raise InvalidOption("timezone", "is for cron; an interval has no time zone")
        return Timing(every_ms=every_ms)
    if not isinstance(cron, str) or not isinstance(timezone, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption("cron", "the expression and the time zone are strings")
    if len(cron) > _LONGEST:
        raise InvalidOption(
            "cron", f"{cron[:80]!r}... has {len(cron)} characters, {_LONGEST} are allowed: write five fields"
        )
    made = Timing(" ".join(cron.split()), None, timezone)
    if here:
        _check_expression(made.cron or "")
        _zone(timezone)
        if next_tick(made, 0, _now_ms()) is None:
            raise InvalidOption("cron", f"{cron!r} is never due: no such day in 50 years")
    return made


def check_name(name: str) -> str:
    """Return `name` if it may name a schedule. Raises InvalidName."""
    size = len(check_id(name, "schedule").encode())
    if size > NAME_BYTES:
        raise InvalidName("schedule", name, f"it is {size} bytes of UTF-8, up to {NAME_BYTES} are allowed")
    return name


def next_tick(timing: Timing, anchor: int, after: int) -> int | None:
    """The first tick after an instant. None: there is none."""
    if timing.every_ms is not None:
        return anchor + timing.every_ms * max(1, (after - anchor) // timing.every_ms + 1)
    return next(_ticks(timing, after), None)


def last_tick(timing: Timing, anchor: int, until: int) -> int | None:
    """The last tick at or before an instant. None: there was none."""
    if timing.every_ms is not None:
        count = (until - anchor) // timing.every_ms
        return anchor + timing.every_ms * count if count > 0 else None
    # Search forwards only: backwards, the hours that clocks skip and repeat would give other ticks.
    back = _BACK_MS
    while (low := next_tick(timing, anchor, until - back)) is None or low > until:
        if back >= _FAR_MS:
            return None
        back = min(back * _FURTHER, _FAR_MS)
    high = until
    # Usually the first tick is the last one, too. If not, bisect.
    while (tick := next_tick(timing, anchor, low)) is not None and tick <= until:
        low, middle = tick, (tick + high) // 2
        tick = next_tick(timing, anchor, middle)
        if tick is not None and tick <= until:
            low = tick
        else:
            high = middle
    return low


def next_ticks(timing: Timing, anchor: int, after: int, count: int) -> list[int]:
    """The first `count` ticks after an instant. Fewer at the end of the calendar."""
    if timing.every_ms is None:
        return list(islice(_ticks(timing, after), count))
    first = next_tick(timing, anchor, after) or 0
    return [first + n * timing.every_ms for n in range(count)]


def local(timing: Timing, tick: int) -> datetime:
    """A tick in the time zone of its schedule."""
    return (EPOCH + timedelta(milliseconds=tick)).astimezone(_zone(timing.timezone))


def _ticks(timing: Timing, after: int) -> Iterator[int]:
    """The ticks of a cron expression after an instant, each later than the one before."""
    zone = _zone(timing.timezone)
    try:
        for at in _cronsim().CronSim(timing.cron, (EPOCH + timedelta(milliseconds=after)).astimezone(zone)):
            tick = (at.astimezone(UTC) - EPOCH) // _ONE_MS
            # If `after` is in a repeated hour, the iterator returns ticks of the first of the two hours: skip them.
            if tick > after:
                yield tick
                after = tick
    except (OverflowError, RuntimeError):
        return  # The end of the calendar.


def _check_expression(cron: str) -> None:
    shown = "write five fields: minute, hour, day of the month, month, day of the week, such as '30 2 * * *'"
    if len(cron.split()) != _FIELDS:
        raise InvalidOption("cron", f"{cron[:80]!r} is no cron expression; {shown}")
    cronsim = _cronsim()
    try:
        cronsim.CronSim(cron, EPOCH)
    except (cronsim.CronSimError, ValueError) as error:
        raise InvalidOption("cron", f"{cron[:80]!r}: {error}; {shown}") from None


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    found = _zone_info(name)
    if found is None:
        known = _zone_info(_EXAMPLE) is not None
        cure = (
            f"write a name such as {_EXAMPLE!r}"
            if known
            else f"this machine has no time zones: it needs tzdata; {_INSTALL}"
        )
        raise InvalidOption("timezone", f"{name[:80]!r} is not a known time zone; {cure}")
    return found


def _zone_info(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    if name.lower() in _NOT_ZONES:
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        return None


def _cronsim() -> Any:
    try:
        import cronsim
    except ModuleNotFoundError:
        raise InvalidOption("cron", f"needs cronsim; {_INSTALL}") from None
    return cronsim


def _now_ms() -> int:
    """The time now, roughly: only to see whether there is any tick at all. The store's clock decides which is next."""
    return (datetime.now(UTC) - EPOCH) // _ONE_MS
