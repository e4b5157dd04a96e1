"""How values are shown: counts, sizes, durations, instants, payloads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

_SECOND, _MINUTE, _HOUR, _DAY = 1.0, 60.0, 3600.0, 86400.0
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s"))
_KIB = 1024


def number(value: float) -> str:
    """A count with separators."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"  # noqa: PLR2004


def size(count: int) -> str:
    """A number of bytes."""
    if count < _KIB:
        return f"{count} B"
    return f"{count / _KIB:,.1f} KiB" if count < _KIB * _KIB else f"{count / _KIB / _KIB:,.1f} MiB"


def duration(value: timedelta | float) -> str:
    """A duration in its two largest units, such as `2 h 5 min`; below a second in milliseconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    seconds = abs(seconds)
    if seconds < _SECOND:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 * _SECOND:
        return f"{seconds:.1f} s"
    for n, (unit, name) in enumerate(_UNITS):
        if seconds >= unit:
            whole, rest = divmod(seconds, unit)
            smaller = _UNITS[n + 1] if n + 1 < len(_UNITS) else None
            part = int(rest // smaller[0]) if smaller else 0
            return f"{whole:.0f} {name} {part} {smaller[1]}" if smaller and part else f"{whole:.0f} {name}"
    return "0 s"


def as_datetime(value: datetime | float) -> datetime:
    """An instant; a number is in milliseconds."""
    return value if isinstance(value, datetime) else datetime.fromtimestamp(value / 1000, UTC)


def exact(value: datetime | float) -> str:
    """An instant for people."""
    at = as_datetime(value)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def iso(value: datetime | float) -> str:
    """An instant for programs."""
    return as_datetime(value).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(value: datetime | float) -> str:
    """An instant relative to now. The script does the same: see `relative` there."""
    left = (as_datetime(value) - datetime.now(UTC)).total_seconds()
    if abs(left) < _SECOND:
        return "now"
    text = coarse(abs(left))
    return f"in {text}" if left > 0 else f"{text} ago"


def coarse(seconds: float) -> str:
    """A duration in its largest unit."""
    unit, name = next(((unit, name) for unit, name in _UNITS if seconds >= unit), _UNITS[-1])
    return f"{seconds // unit:.0f} {name}"


def pretty(value: Any) -> str:
    """A payload or a result as text: JSON, or as Python shows it."""
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except (msgspec.MsgspecError, TypeError, ValueError):
        return repr(value)


def plural(count: int, one: str, many: str = "") -> str:
    """`1 job`, `2 jobs`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def per_second(value: float) -> str:
    """A rate."""
    return f"{number(value)}/s"
