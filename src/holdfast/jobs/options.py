"""The options of an enqueue, and their checks, which are the same on all stores."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, TypedDict

from msgspec import Struct

from holdfast.core import names
from holdfast.core.errors import InvalidOption
from holdfast.core.job import LONGEST, IdempotencyKey
from holdfast.core.times import EPOCH

Seconds = timedelta | float
Idempotency = Literal["until_terminal", "until_started", "forever"] | timedelta

_ONE_MS = timedelta(milliseconds=1)
# A later instant cannot be shown as a datetime.
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _ONE_MS

_known_queue = lru_cache(maxsize=4096)(names.check_queue)
_own_queue = lru_cache(maxsize=4096)(names.check_own_queue)
check_type = lru_cache(maxsize=4096)(names.check_type)


def check_queue(name: str) -> str:
    """`names.check_queue`, cached: queue names are few, and every job checks one."""
    return _known_queue(name) if isinstance(name, str) else names.check_queue(name)  # pyright: ignore[reportUnnecessaryIsInstance]


def check_own_queue(name: str) -> str:
    """`names.check_own_queue`, cached."""
    return _own_queue(name) if isinstance(name, str) else names.check_own_queue(name)  # pyright: ignore[reportUnnecessaryIsInstance]


class EnqueueOptions(TypedDict, total=False):
    """The options of an enqueue, besides the message. None: not set."""

    id: str | None
    queue: str | None
    delay: Seconds | None
    run_at: datetime | None
    priority: int | None
    max_attempts: int | None
    result_ttl: Seconds | None
    idempotency_key: str | None
    idempotency: Idempotency | None
    replace_failed: bool


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule's jobs, besides the message."""

    queue: str | None
    priority: int | None
    max_attempts: int | None
    result_ttl: Seconds | None


class Resolved(Struct, frozen=True, gc=False):
    """Options after checking. None: the job definition's or the queue's."""

    id: str | None = None
    queue: str | None = None
    delay_ms: int = 0
    run_at: int | None = None
    priority: int | None = None
    max_attempts: int | None = None
    result_ttl_ms: int | None = None
    idempotency: IdempotencyKey | None = None
    replace_failed: bool = False


PLAIN = Resolved()
_OPTIONS = EnqueueOptions.__annotations__.keys()


def resolve(options: EnqueueOptions) -> Resolved:
    """Check the options of one enqueue. Raises InvalidName or InvalidOption with the reason."""
    if not options:
        return PLAIN
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if not given:
        return PLAIN
    if not given.keys() <= _OPTIONS:
        raise TypeError(f"unknown option {min(given.keys() - _OPTIONS)!r}")
    if "delay" in given and "run_at" in given:
        raise InvalidOption("delay", "give delay or run_at, not both")
    key = given.get("idempotency_key")
    if "idempotency" in given and key is None:
        raise InvalidOption("idempotency", "sets how long a key holds, so it needs idempotency_key")
    return Resolved(
        id=_or_none(names.check_id, given.get("id")),
        queue=_or_none(check_own_queue, given.get("queue")),
        delay_ms=duration_ms("delay", given["delay"]) if "delay" in given else 0,
        run_at=_or_none(_check_run_at, given.get("run_at")),
        priority=_or_none(names.check_priority, given.get("priority")),
        max_attempts=_or_none(names.check_max_attempts, given.get("max_attempts")),
        result_ttl_ms=_or_none(_check_result_ttl, given.get("result_ttl")),
        idempotency=None if key is None else _idempotency(key, given.get("idempotency", "until_terminal")),
        replace_failed=bool(given.get("replace_failed", False)),
    )


def duration_ms(option: str, value: Seconds) -> int:
    """A duration, a timedelta or seconds, in whole milliseconds. Raises InvalidOption."""
    if isinstance(value, timedelta):
        ms = value / _ONE_MS
    elif isinstance(value, (int, float)) and not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        # Removes the rounding error of the product: 4.035 s are 4035 ms.
        ms = round(value * 1000.0, 6)
    else:
        raise InvalidOption(option, f"{value!r} is neither a timedelta nor a number of seconds")
    if not math.isfinite(ms) or not 0 <= ms <= LONGEST:
        raise InvalidOption(option, f"{value} is not from 0 to 1000 years")
    return math.ceil(ms)


def instant_ms(option: str, value: datetime) -> int:
    """An instant in milliseconds since 1970. Raises InvalidOption if the time zone is missing."""
    if not isinstance(value, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(option, f"{value!r} is not a datetime")
    if value.utcoffset() is None:
        raise InvalidOption(option, f"{value} has no time zone; use for example datetime.now(UTC)")
    return math.ceil((value - EPOCH) / _ONE_MS)


def timeout_s(value: Seconds | None) -> float | None:
    """How long to wait, in seconds. None: forever. Raises InvalidOption."""
    return None if value is None else duration_ms("timeout", value) / 1000


def _check_run_at(value: datetime) -> int:
    ms = instant_ms("run_at", value)
    if ms > _LAST_MS:
        raise InvalidOption("run_at", f"{value}, rounded to a millisecond, is after the year 9999 in UTC")
    return max(0, ms)


def _check_result_ttl(value: Seconds) -> int:
    return duration_ms("result_ttl", value)


def _idempotency(key: str, policy: Idempotency) -> IdempotencyKey:
    names.check_id(key, "idempotency key")
    if isinstance(policy, timedelta):
        ttl_ms = duration_ms("idempotency", policy)
        if ttl_ms == 0:
            raise InvalidOption("idempotency", "a key must hold longer than 0 seconds")
        return IdempotencyKey(key, "ttl", ttl_ms)
    if policy not in ("until_terminal", "until_started", "forever"):
        raise InvalidOption(
            "idempotency", f"{policy!r} is not 'until_terminal', 'until_started', 'forever' or a timedelta"
        )
    return IdempotencyKey(key, policy)


def _or_none(check: Any, value: Any) -> Any:
    return None if value is None else check(value)
