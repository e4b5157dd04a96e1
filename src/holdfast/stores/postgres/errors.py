"""Translates the driver's errors to Holdfast's, each with what to do about it."""

from __future__ import annotations

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from holdfast.core.errors import StoreBusy, StoreError, StoreMismatch, StoreUnavailable

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""The errors of asyncpg and asyncio, whose TimeoutError is an OSError.

A connection raises InternalClientError if the server closed it while it was idle.
"""

_CONFLICTS = {"40001", "40P01"}
"""Serialization failure and deadlock: the transaction was rolled back, and can be tried again at once."""
_AWAY = {"57P01", "57P02", "57P03", "25006", "55000", "0A000"}
"""The server shuts down, has crashed, starts up, or has become a replica: another one may take over soon.

A replica answers 25006 to a change, 0A000 to a read of an unlogged table.
"""


class StaleCache(StoreUnavailable):
    """A statement relied on outdated cached facts, and did nothing. Build it again from fresh ones."""


def is_stale(error: BaseException | None) -> bool:
    """Whether the data has another generation, or a cached lane has changed. See check_cache() in migrations/."""
    return getattr(error, "sqlstate", "") == "HF002" or is_stale_lane(error)


def is_stale_lane(error: BaseException | None) -> bool:
    """Whether a cached lane has changed in the same generation."""
    return getattr(error, "sqlstate", "") == "HF003"


def is_lost(error: BaseException) -> bool:
    """Whether the connection or the server is gone: it is unknown if the statement was carried out."""
    if isinstance(error, asyncpg.PostgresError):
        state = str(getattr(error, "sqlstate", "") or "")
        return state in _AWAY or state.startswith("08") or isinstance(error, asyncpg.ConnectionDoesNotExistError)
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error) or "connection" in str(error)
    if isinstance(error, asyncpg.InternalClientError):
        return True
    return isinstance(error, OSError) and not isinstance(error, TimeoutError)


def is_conflict(error: BaseException) -> bool:
    """Whether the server rolled the transaction back because of a conflict, so that it can be tried again."""
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "sqlstate", "") in _CONFLICTS


def is_blocked(error: BaseException | None) -> bool:
    """Whether the wait for a lock timed out."""
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "sqlstate", "") == "55P03"


def is_unsent(error: BaseException | None) -> bool:
    """Whether notifications were refused because the server's queue for them is full.

    They are sent after the change, in a transaction of their own. The change itself is committed.
    """
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "sqlstate", "") == "54000"


def translate(error: BaseException, shown: str, timeout_s: float) -> StoreError:
    """The error to raise instead. `shown` names the server."""
    text = str(error).strip()
    if isinstance(error, StoreError):
        return error
    if is_stale(error):
        return StaleCache(f"{shown} has other data than before, after a crash, a failover or a restore; try again")
    if isinstance(error, TimeoutError | asyncpg.QueryCanceledError):
        return StoreUnavailable(f"{shown} gave no answer within {timeout_s:g} s; the change may still be made")
    for kinds, made, cure in _ANSWERS:
        if isinstance(error, kinds):
            return made(f"{shown}: {text}; {cure}")
    if isinstance(error, asyncpg.PostgresError) and not is_lost(error):
        return StoreUnavailable(f"{shown} answered: {text}")
    return StoreUnavailable(f"{shown} cannot be reached: {text.rstrip('.') or type(error).__name__}")


_ANSWERS: tuple[tuple[tuple[type[Exception], ...], type[StoreError], str], ...] = (
    (
        (asyncpg.LockNotAvailableError,),
        StoreBusy,
        "an open transaction holds a lock on it; try again when that has ended",
    ),
    (
        (asyncpg.DeadlockDetectedError, asyncpg.SerializationError),
        StoreBusy,
        "too many callers change the same jobs at once; try again",
    ),
    (
        (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError),
        StoreUnavailable,
        "see the user and the password in the URL",
    ),
    (
        (asyncpg.ProtocolViolationError,),
        StoreUnavailable,
        "if you connect through pgbouncer, add listen=0 to the URL",
    ),
    ((asyncpg.InvalidCatalogNameError,), StoreUnavailable, "create it with CREATE DATABASE"),
    (
        (asyncpg.TooManyConnectionsError,),
        StoreBusy,
        "lower `connections` in the URL or raise the server's max_connections",
    ),
    ((asyncpg.InsufficientPrivilegeError,), StoreUnavailable, "grant it, or connect as another user"),
    (
        (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError),
        StoreMismatch,
        "run `holdfast migrate URL`",
    ),
    (
        (asyncpg.ReadOnlySQLTransactionError, asyncpg.FeatureNotSupportedError),
        StoreUnavailable,
        "if it is a replica, connect to its primary",
    ),
)
