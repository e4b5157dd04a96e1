"""What went wrong, in our own terms: problems of the service and errors on the way to it, each with what to do."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from holdfast.core import errors, wire
from holdfast.core.errors import AccessRefused, HoldfastError, StoreBusy, StoreError, StoreMismatch, StoreUnavailable
from holdfast.core.job import JobKey

BODY_TOO_LARGE, RATE_LIMITED = "body_too_large", "rate_limited"

_BY_KEY: dict[str, type[HoldfastError]] = {
    error.code: error for error in (errors.JobNotFound, errors.LeaseLost, errors.LeaseExpired, errors.JobCanceled)
}
_BY_FACTS: dict[str, type[HoldfastError]] = {
    error.code: error
    for error in (
        errors.InvalidName,
        errors.InvalidOption,
        errors.InvalidPayload,
        errors.UnknownCodec,
        errors.PayloadTooLarge,
        errors.QuotaExceeded,
        errors.NotReplayable,
        errors.EventsTrimmed,
    )
}
_ACCESS = ("token_missing", "token_invalid", "token_expired", "scope_missing", "queue_forbidden")
_CURES = {
    "token_missing": "pass token=, or set HOLDFAST_TOKEN",
    "token_invalid": "use one that this service issued or trusts",
    "token_expired": "get a new one, or pass token= a function that gives the one of the moment",
    "scope_missing": "use a token that has it",
    "queue_forbidden": "use a token for that queue",
}
_BUSY = ("store_busy", RATE_LIMITED, "too_many_connections")
_AWAY = ("store_unavailable", "stopping", "internal_error", "request_timeout")
_GATEWAY = range(500, 600)
_REDIRECT = range(300, 400)

_problem = msgspec.json.Decoder(wire.Problem)


class TooLarge(StoreError):
    """A request with too long a body. Nothing was done; what can be cut is sent in parts."""


def of_item(info: wire.ErrorInfo, key: JobKey) -> HoldfastError:
    """Why one item of a batch was refused."""
    found = _BY_KEY.get(info.code)
    return found(key.queue, key.id) if found is not None else _known(info.code, info.message, info.facts)


def of_answer(answer: httpx.Response, shown: str) -> HoldfastError:
    """Why a request was refused, or why its answer is none of a Holdfast service."""
    if answer.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            said = _problem.decode(answer.content)
        except msgspec.MsgspecError:
            pass
        else:
            return _known(said.code, said.detail, said.facts)
    status = answer.status_code
    if status in _GATEWAY:
        return StoreUnavailable(f"{shown} answered {status}: something on the way to the service is not well")
    if status in _REDIRECT:
        return StoreMismatch(f"{shown} redirects to another place ({status}); a token is not sent there: use its URL")
    return StoreMismatch(f"{shown} does not answer like a Holdfast service (status {status}); check the URL")


def of_transport(error: Exception, shown: str, timeout_s: float) -> StoreError:
    """What an error on the way means. Nothing was acknowledged."""
    if isinstance(error, httpx.PoolTimeout):
        return StoreBusy(f"all connections to {shown} are in use; raise ?connections=")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
        return StoreUnavailable(f"{shown} cannot be reached: {str(error) or type(error).__name__}")
    if isinstance(error, httpx.TimeoutException):
        return StoreUnavailable(f"{shown} gave no answer within {timeout_s:g} s; what was asked for may yet be done")
    return StoreUnavailable(f"the connection to {shown} broke: {str(error) or type(error).__name__}")


def not_ours(shown: str) -> StoreMismatch:
    """An answer that went well, and is not what this service answers."""
    return StoreMismatch(f"{shown} does not answer like a Holdfast service of this version; check the URL")


def _known(code: str, text: str, facts: dict[str, Any] | msgspec.UnsetType) -> HoldfastError:
    found, names = _BY_FACTS.get(code), wire.FACTS.get(code, ())
    if found is not None and facts is not msgspec.UNSET and all(name in facts for name in names):
        return found(*(facts[name] for name in names))
    if code in _BY_KEY or code == errors.ResultExpired.code:
        # Whoever asked for one job knows which.
        return _BY_KEY.get(code, errors.ResultExpired)("", "")
    if code in _ACCESS:
        return AccessRefused(f"{text}; {_CURES[code]}", code)
    if code in _BUSY:
        return StoreBusy(text)
    if code in _AWAY:
        return StoreUnavailable(text)
    if code == BODY_TOO_LARGE:
        return TooLarge(text)
    return StoreError(f"the service refused the request: {text} ({code})")
