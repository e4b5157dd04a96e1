"""What went wrong, in our own terms: asyncpg's errors to Holdfast's, each with what to do about it."""

from __future__ import annotations

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from holdfast.core.errors import StoreBusy, StoreError, StoreMismatch, StoreUnavailable

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""What asyncpg raises, and what asyncio does: its TimeoutError is an OSError.

InternalClientError is what a connection says that heard the server's farewell while nobody used it.
"""

_AGAIN = {"40001", "40P01"}
"""Serialization failure, deadlock: the transaction was rolled back whole, and can be tried again at once."""
_AWAY = {"57P01", "57P02", "57P03", "25006", "55000", "0A000"}
"""Shut down, crashed, starting up; and a server that has become a replica: another one may be there soon.

A replica answers 25006 to a change, 0A000 to a look at an unlogged table.
"""


class StaleCache(StoreUnavailable):
    """A statement found that what it was made of is remembered from other data, and did nothing: make it again."""


def is_stale(error: BaseException | None) -> bool:
    """Whether the data is of another generation, or a lane is not as it is remembered. See `known` in migrations/."""
    return getattr(error, "sqlstate", "") == "HF002" or is_stale_lane(error)


def is_stale_lane(error: BaseException | None) -> bool:
    """Whether it is a lane, in the same generation."""
    return getattr(error, "sqlstate", "") == "HF003"


def is_lost(error: BaseException) -> bool:
    """Whether the connection broke, or the server is going: nobody knows if what was sent was done."""
    if isinstance(error, asyncpg.PostgresError):
        state = str(getattr(error, "sqlstate", "") or "")
        return state in _AWAY or state.startswith("08") or isinstance(error, asyncpg.ConnectionDoesNotExistError)
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error) or "connection" in str(error)
    if isinstance(error, asyncpg.InternalClientError):
        return True
    return isinstance(error, OSError) and not isinstance(error, TimeoutError)


def is_conflict(error: BaseException) -> bool:
    """Whether the server rolled the transaction back because of another one, so that it can be tried again."""
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "sqlstate", "") in _AGAIN


def is_blocked(error: BaseException | None) -> bool:
    """Whether a lock was not to be had in time."""
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "sqlstate", "") == "55P03"


def is_unsent(error: BaseException | None) -> bool:
    """Whether notifications were refused since the server's queue of them is full.

    They are sent after the change, in a transaction of their own: the change itself is committed.
    """
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "sqlstate", "") == "54000"


def translate(error: BaseException, shown: str, timeout_s: float) -> StoreError:
    """The error to raise in its place. `shown` names the server."""
    text = str(error).strip()
    if isinstance(error, StoreError):
        return error
    if is_stale(error):
        return StaleCache(f"{shown} has other data than before, after a crash, a failover or a restore; try again")
    if isinstance(error, TimeoutError | asyncpg.QueryCanceledError):
        return StoreUnavailable(f"{shown} gave no answer within {timeout_s:g} s; what was asked for may yet be done")
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
        "somebody's open transaction holds what is to be changed; try again when it has ended",
    ),
    ((asyncpg.DeadlockDetectedError, asyncpg.SerializationError), StoreBusy, "too many change the same jobs at once"),
    (
        (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError),
        StoreUnavailable,
        "see the user and the password in the URL",
    ),
    (
        (asyncpg.ProtocolViolationError,),
        StoreUnavailable,
        "if pgbouncer stands between, add listen=0 to the URL",
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
