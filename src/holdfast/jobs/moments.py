"""Durations and times as people write them, in options of commands and in fields of pages."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo

from holdfast.core.errors import InvalidOption

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def duration(option: str, text: str | None) -> timedelta | None:
    """A duration such as 30, 30s, 10m, 1h30m or 7d; a plain number is in seconds. Raises InvalidOption."""
    if text is None:
        return None
    try:
        return timedelta(seconds=_seconds(text.strip()))
    except (OverflowError, ValueError):
        reason = f"{text!r} is not a duration; write for example 30s, 10m, 2h or 1d"
        raise InvalidOption(option, reason) from None


def instant(option: str, text: str | None, zone: tzinfo | None = None) -> datetime | None:
    """A time in ISO 8601; without a time zone it is in `zone`, by default local time. Raises InvalidOption."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.strip())
        if at.utcoffset() is not None:
            return at
        return at.astimezone() if zone is None else at.replace(tzinfo=zone)
    except (OverflowError, ValueError):
        reason = f"{text!r} is not a time; write for example 2030-01-31T18:00 or 2030-01-31T18:00Z"
        raise InvalidOption(option, reason) from None


def time_or_age(option: str, text: str | None, zone: tzinfo | None = None) -> datetime | timedelta | None:
    """A time, or a duration before now. Raises InvalidOption."""
    try:
        return duration(option, text)
    except InvalidOption:
        pass
    try:
        return instant(option, text, zone)
    except InvalidOption:
        reason = f"{text!r} is neither a duration such as 7d nor a time such as 2030-01-31T18:00Z"
        raise InvalidOption(option, reason) from None


def _seconds(text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not _PART.sub("", text) == "" != text:
        raise ValueError(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
