"""Turns the problems of the service, and errors of the connection, into Holdfast's errors, with advice."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import msgspec

from holdfast.core import errors
from holdfast.core.errors import AccessRefused, HoldfastError, StoreBusy, StoreError, StoreMismatch, StoreUnavailable
from holdfast.protocol import problems

BODY_TOO_LARGE, RATE_LIMITED = "body_too_large", "rate_limited"

_KINDS: dict[str, type[HoldfastError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HoldfastError) and not issubclass(kind, StoreError)
}
_ACCESS = ("token_missing", "token_invalid", "token_expired", "scope_missing", "queue_forbidden")
_CURES = {
    "token_missing": "pass token=, or set HOLDFAST_TOKEN",
    "token_invalid": "use one that this service issued or trusts",
    "token_expired": "get a new one, or pass a function as token= that returns a current one",
    "scope_missing": "use a token that has it",
    "queue_forbidden": "use a token for that queue",
}
_BUSY = ("store_busy", RATE_LIMITED, "share_exceeded", "overloaded", "too_many_connections")
_AWAY = ("store_unavailable", "stopping", "internal_error", "request_timeout")
_GATEWAY = range(500, 600)
_REDIRECT = range(300, 400)

_problem = msgspec.json.Decoder(problems.Problem)


class TooLarge(StoreError):
    """The body is too long. The request had no effect; a batch is sent again in parts."""


def of_item(info: problems.ErrorInfo) -> HoldfastError:
    """The error of one refused item of a batch."""
    return _known(info.code, info.message, info.args)


def of_answer(answer: httpx.Response, shown: str) -> HoldfastError:
    """The error of a refused request, or of an answer that does not come from a Holdfast service."""
    if answer.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            problem = _problem.decode(answer.content)
        except msgspec.MsgspecError:
            pass
        else:
            return _known(problem.code, problem.detail, problem.args)
    status = answer.status_code
    if status in _GATEWAY:
        return StoreUnavailable(f"{shown} answered {status}: a proxy cannot reach the service")
    if status in _REDIRECT:
        return StoreMismatch(f"{shown} redirects ({status}); a token is not sent to another URL: use that URL")
    return StoreMismatch(f"{shown} does not answer like a Holdfast service (status {status}); check the URL")


def of_transport(error: Exception, shown: str, timeout_s: float) -> StoreError:
    """The error for a failed connection. Nothing was acknowledged."""
    if isinstance(error, httpx.PoolTimeout):
        return StoreBusy(f"all connections to {shown} are in use; raise ?connections=")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
        return StoreUnavailable(f"{shown} cannot be reached: {str(error) or type(error).__name__}")
    if isinstance(error, httpx.TimeoutException):
        return StoreUnavailable(f"{shown} did not answer within {timeout_s:g} s; the request may still take effect")
    return StoreUnavailable(f"the connection to {shown} broke: {str(error) or type(error).__name__}")


def not_ours(shown: str) -> StoreMismatch:
    """The error for a successful answer in a form that this service does not use."""
    return StoreMismatch(f"{shown} does not answer like a Holdfast service of this version; check the URL")


def _known(code: str, text: str, args: list[Any] | msgspec.UnsetType) -> HoldfastError:
    found = _KINDS.get(code)
    if found is not None and args is not msgspec.UNSET:
        with contextlib.suppress(TypeError):
            return found(*args)
    if code in _ACCESS:
        return AccessRefused(f"{text}; {_CURES[code]}", code)
    if code in _BUSY:
        return StoreBusy(text)
    if code in _AWAY:
        return StoreUnavailable(text)
    if code == BODY_TOO_LARGE:
        return TooLarge(text)
    return StoreError(f"the service refused the request: {text} ({code})")
