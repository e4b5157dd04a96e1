"""Makes the outcome of a job from its handler's ending, with an error that any store can keep. [RETRY-4]"""

from __future__ import annotations

import asyncio
import math
import random
import traceback
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.errors import InvalidPayload, Permanent, RetryLater, UnknownCodec, UnknownJobType
from holdfast.core.job import DAY, SECOND, AttemptError, Finish
from holdfast.worker.messages import Raised

if TYPE_CHECKING:
    from holdfast.worker.active_job import ActiveJob

MESSAGE_LIMIT = 2 * 1024
TRACEBACK_LIMIT = 8 * 1024
DELAY_LIMIT_MS = 10 * 365 * DAY
UNKNOWN_TYPE, UNKNOWN_VERSION = "unknown_type", "unknown_version"
"""The reasons for which a job is left to another worker."""
UNKNOWN_DELAY_MS = (1 * SECOND, 60 * SECOND)


def raised(error: BaseException) -> Raised:
    """How a handler's exception ends its job's attempt: release, fail or retry."""
    if isinstance(error, RetryLater):
        delay_ms = math.ceil(error.delay.total_seconds() * 1000)
        return Raised("release", None, min(DELAY_LIMIT_MS, max(0, delay_ms)))
    return Raised("fail" if isinstance(error, Permanent) else "retry", describe(error))


def unreadable(error: BaseException) -> Raised:
    """How an unreadable payload ends its job's attempt.

    Arguments that do not match now never will, so the job fails. A job of an unknown type, codec or version is left to
    another worker, which the next deploy may start. [RETRY-6]
    """
    if isinstance(error, UnknownJobType):
        return Raised("release", describe(error), reason=UNKNOWN_TYPE)
    if isinstance(error, UnknownCodec):
        return Raised("release", describe(error), reason=UNKNOWN_VERSION)
    return Raised("fail" if isinstance(error, InvalidPayload) else "retry", describe(error))


def unstorable(error: BaseException) -> Raised:
    """Fail a job whose result cannot be stored: its handler must not run again. [RESULT-1]"""
    described = describe(error)
    message = clean(f"the result cannot be stored: {described.message}", MESSAGE_LIMIT)
    return Raised("fail", replace(described, message=message))


def for_another(active: ActiveJob, ending: Raised, unknown_ms: int) -> Finish:
    """Leave a job of an unknown type to another worker, or fail it if none has known it for `unknown_ms`. [RETRY-6]

    All times are the store's. The delay grows with the job's age: a worker that a deploy starts soon gets the job soon,
    and a job that no worker ever knows costs little.
    """
    job = active.job
    now = job.claimed_at or 0
    seen_at = job.first_released_at if job.released_for == ending.reason else now
    if now - seen_at >= unknown_ms:
        return Finish(active.key, active.token, "fail", error=ending.error)
    age_ms = now - min(seen_at, job.visible_at)
    delay_ms = min(UNKNOWN_DELAY_MS[1], max(UNKNOWN_DELAY_MS[0], age_ms // 10))
    return Finish(active.key, active.token, "release", delay_ms=delay_ms, reason=ending.reason)


def timed_out(active: ActiveJob) -> Finish:
    """The attempt exceeded its timeout."""
    error = AttemptError("Timeout", f"the handler ran longer than {active.timeout_s or 0:g} s")
    return Finish(active.key, active.token, "retry", error=error, timed_out=True, random=_chance())


def release(active: ActiveJob) -> Finish:
    """Make the job ready again at once. The attempt does not count. [RETRY-5]"""
    return Finish(active.key, active.token, "release")


def counts(active: ActiveJob, ending: bytes | Raised) -> bool:
    """Whether the ending of an interrupted handler still decides the outcome of its job.

    Only a job that is to be released can be decided by its handler. A handler that was interrupted, or that noticed the
    request to stop and returned, may have done half of its work: its job is released. A handler that never checked for
    the request has done all of its work, and must not run again.
    """
    if active.interruption != "released" or active.finish is not None:
        return False
    if isinstance(ending, bytes):
        return active.context is not None and not active.context.canceled.noticed
    return ending.outcome == "fail"


def finish(active: ActiveJob, ending: Raised) -> Finish:
    """The outcome of an attempt that did not complete. [RETRY-3]"""
    return Finish(
        active.key, active.token, ending.outcome, error=ending.error, delay_ms=ending.delay_ms, random=_chance()
    )


def describe(error: BaseException) -> AttemptError:
    """An exception as a store keeps it: shortened, without NUL characters and unpaired surrogates."""
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - a broken __str__ must not hide that the attempt failed
        message = f"(no message: its __str__ raised {type(second).__name__})"
    if isinstance(error, asyncio.CancelledError) and not message:
        message = "the handler was canceled, but not by the worker"
    name = clean(type(error).__name__, MESSAGE_LIMIT)
    return AttemptError(name, clean(message, MESSAGE_LIMIT), clean_end(_traceback(error), TRACEBACK_LIMIT))


def clean(text: str, limit: int) -> str:
    """The beginning of a text, up to `limit` bytes of UTF-8."""
    return _plain(text[:limit])[:limit].decode(errors="ignore")


def clean_end(text: str, limit: int) -> str:
    """The end of a text, up to `limit` bytes of UTF-8: the last lines of a traceback matter most."""
    return _plain(text[-limit:])[-limit:].decode(errors="ignore")


def _plain(text: str) -> bytes:
    return text.replace("\x00", "\ufffd").encode(errors="replace")


def _traceback(error: BaseException) -> str:
    # The first frame is the worker's own.
    own = error.__traceback__
    frames = own.tb_next if own is not None else None
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # noqa: BLE001 - see describe
        return ""


def _chance() -> float:
    return random.random()  # noqa: S311 - jitter, no secret
