"""What went wrong, in our own terms: asyncpg's errors to Holdfast's, each with what to do about it."""

from __future__ import annotations

import asyncpg

from holdfast.core.errors import StoreBusy, StoreError, StoreMismatch, StoreUnavailable

TROUBLES = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
"""What asyncpg raises, and what asyncio does: its TimeoutError is an OSError."""

_AGAIN = {"40001", "40P01"}
"""Serialization failure, deadlock: the transaction was rolled back whole, and can be tried again at once."""
_AWAY = {"57P01", "57P02", "57P03", "25006", "55000"}
"""Shut down, crashed, starting up; and a server that has become a replica: another one may be there soon."""


def is_lost(error: BaseException) -> bool:
    """Whether the connection broke, or the server is going: nobody knows if what was sent was done."""
    if isinstance(error, asyncpg.PostgresError):
        state = str(getattr(error, "sqlstate", "") or "")
        return state in _AWAY or state.startswith("08") or isinstance(error, asyncpg.ConnectionDoesNotExistError)
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error) or "connection" in str(error)
    return isinstance(error, OSError) and not isinstance(error, TimeoutError)


def is_conflict(error: BaseException) -> bool:
    """Whether the server rolled the transaction back because of another one, so that it can be tried again."""
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "sqlstate", "") in _AGAIN


def is_blocked(error: BaseException) -> bool:
    """Whether a lock was not to be had in time."""
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "sqlstate", "") == "55P03"


def translate(error: BaseException, shown: str, timeout_s: float) -> StoreError:
    """The error to raise in its place. `shown` names the server."""
    text = str(error).strip()
    if isinstance(error, StoreError):
        return error
    if isinstance(error, TimeoutError) or isinstance(error, asyncpg.QueryCanceledError):
        return StoreUnavailable(f"{shown} gave no answer within {timeout_s:g} s; what was asked for may yet be done")
    if is_blocked(error):
        return StoreBusy(f"{shown}: somebody's open transaction holds what is to be changed; try again when it has ended")
    if is_conflict(error):
        return StoreBusy(f"{shown}: too many change the same jobs at once: {text}")
    if isinstance(error, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError):
        return StoreUnavailable(f"{shown} does not let us in: {text}")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return StoreUnavailable(f"{shown}: {text}; create it with CREATE DATABASE")
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return StoreBusy(f"{shown} has no connection left: {text}; lower `connections` in the URL or raise its own limit")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreUnavailable(f"{shown} forbids it: {text}")
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.UndefinedFunctionError | asyncpg.InvalidSchemaNameError):
        return StoreMismatch(f"{shown}: {text}; run `holdfast migrate-schema URL`")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StoreUnavailable(f"{shown} is a replica and takes no writes; connect to its primary")
    if isinstance(error, asyncpg.PostgresError) and not is_lost(error):
        return StoreUnavailable(f"{shown} answered: {text}")
    return StoreUnavailable(f"{shown} cannot be reached: {text.rstrip('.') or type(error).__name__}")
