"""What a handler's end means for its job: the acknowledgement, with an error that any store can keep. [RETRY-4]"""

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
"""Why a job is left to another worker."""
UNKNOWN_DELAY_MS = (1 * SECOND, 60 * SECOND)


def raised(error: BaseException) -> Raised:
    """What to do about an exception of a handler: give back, fail for good, or try again."""
    if isinstance(error, RetryLater):
        delay_ms = math.ceil(error.delay.total_seconds() * 1000)
        return Raised("release", None, min(DELAY_LIMIT_MS, max(0, delay_ms)))
    return Raised("fail" if isinstance(error, Permanent) else "retry", describe(error))


def unreadable(error: BaseException) -> Raised:
    """What to do about a payload that could not be read.

    Arguments that do not fit never will: the job fails. A type, codec or version that is unknown here is left to
    another worker, which may come with the next deploy. [RETRY-6]
    """
    if isinstance(error, UnknownJobType):
        return Raised("release", describe(error), reason=UNKNOWN_TYPE)
    if isinstance(error, UnknownCodec):
        return Raised("release", describe(error), reason=UNKNOWN_VERSION)
    return Raised("fail" if isinstance(error, InvalidPayload) else "retry", describe(error))


def unkeepable(error: BaseException) -> Raised:
    """What to do about a result that cannot be kept: the handler has had its effect and is not run again. [RESULT-1]"""
    said = describe(error)
    return Raised("fail", replace(said, message=clean(f"the result cannot be kept: {said.message}", MESSAGE_LIMIT)))


def for_another(held: ActiveJob, ending: Raised, unknown_ms: int) -> Finish:
    """Leave a job that is unknown here to another worker, or fail it if none has known it for `unknown_ms`. [RETRY-6]

    All moments are the store's. The delay grows with the age: a job that a deploy brings a worker for soon is not kept
    from it, and one that no worker will know costs little.
    """
    job = held.job
    now = job.claimed_at or 0
    seen_at = job.first_released_at if job.released_for == ending.reason else now
    if now - seen_at >= unknown_ms:
        return Finish(held.key, held.token, "fail", error=ending.error)
    age_ms = now - min(seen_at, job.visible_at)
    delay_ms = min(UNKNOWN_DELAY_MS[1], max(UNKNOWN_DELAY_MS[0], age_ms // 10))
    return Finish(held.key, held.token, "release", delay_ms=delay_ms, reason=ending.reason)


def timed_out(held: ActiveJob) -> Finish:
    """The attempt took longer than it may."""
    error = AttemptError("Timeout", f"the handler ran longer than {held.timeout_s or 0:g} s")
    return Finish(held.key, held.token, "retry", error=error, timed_out=True, random=_chance())


def release(held: ActiveJob) -> Finish:
    """The job goes back at once, and the attempt is not counted. [RETRY-5]"""
    return Finish(held.key, held.token, "release")


def finish(held: ActiveJob, ending: Raised) -> Finish:
    """The acknowledgement of an attempt that did not complete. [RETRY-3]"""
    return Finish(held.key, held.token, ending.outcome, error=ending.error, delay_ms=ending.delay_ms, random=_chance())


def describe(error: BaseException) -> AttemptError:
    """An exception as a store keeps it: bounded, without NUL characters and lone surrogates."""
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - a broken __str__ must not hide that the attempt failed
        message = f"(no message: its __str__ raised {type(second).__name__})"
    if isinstance(error, asyncio.CancelledError) and not message:
        message = "the handler was canceled, and not by the worker"
    name = clean(type(error).__name__, MESSAGE_LIMIT)
    return AttemptError(name, clean(message, MESSAGE_LIMIT), clean_end(_traceback(error), TRACEBACK_LIMIT))


def clean(text: str, limit: int) -> str:
    """The beginning of a text, up to `limit` bytes of UTF-8."""
    return _plain(text[:limit])[:limit].decode(errors="ignore")


def clean_end(text: str, limit: int) -> str:
    """The end of a text, up to `limit` bytes of UTF-8: a traceback says most in its last lines."""
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
