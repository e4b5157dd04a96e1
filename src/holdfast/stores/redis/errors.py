"""Translates the errors of redis-py and of the server to Holdfast's, each with what to do about it."""

from __future__ import annotations

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,  # noqa: A004  # It has the name of the built-in one.
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from holdfast.core.errors import StoreBusy, StoreError, StoreUnavailable

REDIS_ERRORS = (RedisError, OSError)
"""What redis-py and asyncio raise: asyncio's TimeoutError is an OSError."""

_ERROR_CLASSES: dict[str, type[RedisError]] = {
    "ASK": AskError, "CLUSTERDOWN": ClusterDownError, "LOADING": BusyLoadingError, "MASTERDOWN": MasterDownError,
    "MOVED": MovedError, "NOAUTH": AuthenticationError, "NOPERM": NoPermissionError, "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError, "READONLY": ReadOnlyError, "TRYAGAIN": TryAgainError, "WRONGPASS": AuthenticationError,
}  # fmt: skip


def server_error(text: str) -> RedisError:
    """redis-py's error for an error that the server replied with."""
    code, _, rest = text.partition(" ")
    found = _ERROR_CLASSES.get(code)
    if found is not None:
        return found(rest)
    if rest.startswith("max number of clients"):
        return ConnectionError(rest)
    return ResponseError(rest if code == "ERR" else text)


def is_lost(error: BaseException) -> bool:
    """Whether the connection broke, so that the command may or may not have run. False for replies and timeouts."""
    return isinstance(error, ConnectionError) and not isinstance(error, AuthenticationError)


def translate(error: BaseException, shown: str, timeout_s: float) -> StoreError:
    """The error to raise instead. `shown` names the server."""
    text = str(error).strip()
    if isinstance(error, StoreError):
        return error
    if isinstance(error, AuthenticationError):
        return _unauthenticated(text, shown)
    if isinstance(error, TimeoutError) or (isinstance(error, RedisError) and type(error).__name__ == "TimeoutError"):
        return StoreUnavailable(f"{shown} gave no answer within {timeout_s:g} s; the call may still take effect")
    if isinstance(error, BusyLoadingError):
        return StoreUnavailable(f"{shown} is still loading its data")
    if isinstance(error, ResponseError):
        return _replied(error, text, shown)
    hint = "; name the authority's certificate with tls_ca=PATH" if "CERTIFICATE_VERIFY_FAILED" in text else ""
    return StoreUnavailable(f"{shown} cannot be reached: {text.rstrip('.')}{hint}")


def _unauthenticated(text: str, shown: str) -> StoreError:
    if "without any password" in text or "no password is set" in text:
        return StoreUnavailable(f"{shown} has no password set; leave user and password out of the URL")
    if "Authentication required" in text:
        return StoreUnavailable(f"{shown} requires a password; write USER:PASSWORD@ or :PASSWORD@ before its host")
    return StoreUnavailable(f"{shown} refuses the user name or password: {text}")


def _replied(error: ResponseError, text: str, shown: str) -> StoreError:
    if isinstance(error, OutOfMemoryError):
        cure = "raise its maxmemory, or let jobs finish and be pruned"
        return StoreUnavailable(f"{shown}: the server is out of memory; {cure}")
    if isinstance(error, NoPermissionError) or text.startswith("ACL failure"):
        return StoreUnavailable(f"{shown} forbids it: {text}; allow it with ACL SETUSER")
    if isinstance(error, ReadOnlyError):
        return StoreUnavailable(f"{shown} is a replica and accepts no writes; connect to its primary")
    if isinstance(error, ClusterDownError):
        return StoreUnavailable(f"{shown}: the cluster is down or has lost some of its slots: {text}")
    if isinstance(error, TryAgainError) or (isinstance(error, AskError) and not isinstance(error, MovedError)):
        return StoreUnavailable(f"{shown}: a slot is moving to another node; try again when it has arrived")
    if isinstance(error, AskError):
        return StoreUnavailable(f"{shown} is part of a cluster; write redis+cluster: in its URL")
    if text.startswith("BUSY "):
        return StoreBusy(f"{shown} is busy running a script: {text}")
    if "cluster support disabled" in text:
        return StoreUnavailable(f"{shown} is not a cluster; write redis: in its URL")
    return StoreUnavailable(f"{shown} answered: {text}")
