"""What went wrong, in our own terms: problems of the service and errors on the way to it, each with what to do."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import msgspec

from holdfast.core import errors
from holdfast.core.errors import AccessRefused, HoldfastError, StoreBusy, StoreError, StoreMismatch, StoreUnavailable
from holdfast.protocol import answers

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
    "token_expired": "get a new one, or pass token= a function that gives the one of the moment",
    "scope_missing": "use a token that has it",
    "queue_forbidden": "use a token for that queue",
}
_BUSY = ("store_busy", RATE_LIMITED, "share_exceeded", "overloaded", "too_many_connections")
_AWAY = ("store_unavailable", "stopping", "internal_error", "request_timeout")
_GATEWAY = range(500, 600)
_REDIRECT = range(300, 400)

_problem = msgspec.json.Decoder(answers.Problem)


class TooLarge(StoreError):
    """A request with too long a body. Nothing was done; what can be cut is sent in parts."""


def of_item(info: answers.ErrorInfo) -> HoldfastError:
    """Why one item of a batch was refused."""
    return _known(info.code, info.message, info.args)


def of_answer(answer: httpx.Response, shown: str) -> HoldfastError:
    """Why a request was refused, or why its answer is none of a Holdfast service."""
    if answer.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            said = _problem.decode(answer.content)
        except msgspec.MsgspecError:
            pass
        else:
            return _known(said.code, said.detail, said.args)
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
