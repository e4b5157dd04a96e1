"""The caller's own transaction: an enqueue or a completion can join it. [ENQ-7]

    asyncpg         a Connection, or one that a pool handed out
    psycopg         an AsyncConnection; a Connection too, whose calls are then made in a thread
    SQLAlchemy      AsyncConnection, AsyncSession, Connection, Session, over one of these drivers

The change takes effect when the caller commits. The connection must lead to the store's own database. After an error of
the server the transaction can only be rolled back.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from holdfast.core.errors import HoldfastError, InvalidOption, StoreBusy, StoreError, StoreUnavailable
from holdfast.stores.postgres.connection import AsyncpgSession, PostgresClient
from holdfast.stores.postgres.errors import DRIVER_ERRORS, StaleCache, is_stale, is_stale_lane, translate
from holdfast.stores.postgres.rows import Row
from holdfast.stores.postgres.sql import Statements, quoted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

OPTION = "connection"
_BUSY = ("40001", "40P01", "55P03")
_IDLE, _ACTIVE, _BROKEN = 0, 1, 3
"""The states of a transaction, as libpq numbers them."""


class Joined(Protocol):
    """A caller's connection. Runs named statements."""

    async def rows(self, name: str, *args: Any) -> list[Row]: ...
    async def value(self, name: str, *args: Any) -> Any: ...

    def step(self) -> AbstractAsyncContextManager[None]:
        """Translates errors of the server. A StaleCache that concerns only a lane does not empty the cache."""
        ...


async def join(connection: Any, client: PostgresClient) -> Joined:
    """A session on a caller's connection. Raises InvalidOption, with what to pass instead."""
    raw = await _driver_connection(connection)
    driver = type(raw).__module__.partition(".")[0]
    joined: _Asyncpg | _Psycopg
    if driver == "asyncpg":
        joined = _Asyncpg(raw, client)
    elif driver == "psycopg":
        joined = _Psycopg(raw, client) if hasattr(raw, "__aenter__") else _BlockingPsycopg(raw, client)
    else:
        owner = type(connection).__module__.partition(".")[0]
        # Name a hidden driver: the default of SQLAlchemy for postgresql:// is psycopg2.
        over = f" over {driver}" if driver != owner else ""
        reason = (
            f"{owner}'s {type(connection).__name__}{over} cannot be joined; pass a connection of asyncpg, psycopg 3 "
            "or SQLAlchemy over one of these, by postgresql+asyncpg:// or postgresql+psycopg://"
        )
        raise InvalidOption(OPTION, reason)
    joined.check()
    key = getattr(raw, "_con", raw)
    if _checked.get(key) is not client:
        async with joined.step():
            await _check_place(joined, client)
        _checked[key] = client
    return joined


_checked: WeakKeyDictionary[Any, PostgresClient] = WeakKeyDictionary()
"""Connections that are known to lead to the database of a client."""


async def _driver_connection(connection: Any) -> Any:
    """The driver's own connection, in SQLAlchemy's transaction if it is one of SQLAlchemy's."""
    if not type(connection).__module__.startswith("sqlalchemy"):
        return connection
    sql: Any = sys.modules["sqlalchemy"].text("SELECT 1")  # The caller has imported it.
    found = connection
    if hasattr(found, "sync_session") or hasattr(found, "get_raw_connection"):
        # SQLAlchemy begins a transaction with the first statement that it sends itself.
        await found.execute(sql)
        found = await found.connection() if hasattr(found, "sync_session") else found
        return (await found.get_raw_connection()).driver_connection
    if hasattr(found, "execute") and hasattr(found, "connection"):
        await asyncio.to_thread(found.execute, sql)
        plain: Any = found.connection() if callable(found.connection) else found
        return plain.connection.driver_connection
    return found


async def _check_place(joined: Joined, client: PostgresClient) -> None:
    """Raise InvalidOption unless both connections lead to the same tables on the same server."""
    jobs = f"{quoted(client.address.schema)}.jobs"
    (theirs,) = await joined.rows("connection_target", jobs)
    (ours,) = await client.rows("connection_target", jobs, repeat=True)
    if list(theirs.values()) == list(ours.values()):
        return
    if theirs["replica"]:
        raise InvalidOption(OPTION, "it leads to a replica, which takes no changes; connect to the primary")
    there, here = theirs["name"], ours["name"]
    where = f"the database {there!r}" if there != here else f"another server's database {there!r}"
    reason = f"it leads to {where}, and the jobs are in {here!r} at {client.shown}; a transaction has only one database"
    raise InvalidOption(OPTION, reason)


class _Asyncpg(AsyncpgSession):
    """A connection of asyncpg."""

    def __init__(self, connection: Any, client: PostgresClient) -> None:
        super().__init__(connection, client.sql)
        self._client = client
        self._raw = connection

    def check(self) -> None:
        if not self._raw.is_in_transaction():
            reason = "no transaction is open on it; use `async with connection.transaction():` around the call"
            raise InvalidOption(OPTION, f"{reason}, or leave connection= out")

    @asynccontextmanager
    async def step(self) -> AsyncGenerator[None]:
        try:
            yield
        except DRIVER_ERRORS as error:
            if isinstance(error, HoldfastError):
                raise
            raise await _failed(error, str(getattr(error, "sqlstate", "") or ""), self._client) from error


class _Psycopg:
    """An AsyncConnection of psycopg. Its transaction has begun, or begins with the first statement here."""

    def __init__(self, connection: Any, client: PostgresClient) -> None:
        self._raw = connection
        self._client = client
        self._sql: Statements = client.sql

    def check(self) -> None:
        status = self._raw.info.transaction_status
        if status == _IDLE and self._raw.autocommit:
            reason = "it commits each statement by itself (autocommit) and no transaction is open; use"
            raise InvalidOption(OPTION, f"{reason} `connection.transaction()` around the call")
        if status == _BROKEN:
            raise InvalidOption(OPTION, "its transaction has failed already; roll it back first")
        if status == _ACTIVE:
            raise InvalidOption(OPTION, "another statement is under way on it; finish that first")

    async def rows(self, name: str, *args: Any) -> list[Row]:
        from psycopg import AsyncRawCursor
        from psycopg.rows import dict_row

        # The types of psycopg accept literal strings only.
        statement: Any = self._sql[name]
        async with AsyncRawCursor(self._raw, row_factory=dict_row) as cursor:
            await cursor.execute(statement, args, binary=True)
            return list(await cursor.fetchall()) if cursor.description else []

    async def value(self, name: str, *args: Any) -> Any:
        found = await self.rows(name, *args)
        return next(iter(found[0].values())) if found else None

    @asynccontextmanager
    async def step(self) -> AsyncGenerator[None]:
        from psycopg import Error

        try:
            yield
        except Error as error:
            raise await _failed(error, error.sqlstate or "", self._client) from error


class _BlockingPsycopg(_Psycopg):
    """A Connection of psycopg, for code without an event loop. Its calls run in a thread."""

    async def rows(self, name: str, *args: Any) -> list[Row]:
        return await asyncio.to_thread(self._rows, self._sql[name], args)

    def _rows(self, statement: Any, args: tuple[Any, ...]) -> list[Row]:
        from psycopg import RawCursor
        from psycopg.rows import dict_row

        with RawCursor(self._raw, row_factory=dict_row) as cursor:
            cursor.execute(statement, args, binary=True)
            return list(cursor.fetchall()) if cursor.description else []


async def _failed(error: Exception, state: str, client: PostgresClient) -> StoreError:
    """The error to raise when a statement in the caller's transaction has failed."""
    if is_stale(error):
        if not is_stale_lane(error):
            await client.check_data()  # The next try uses fresh facts.
        error = StaleCache(f"{client.shown} has other data than before, after a crash, a failover or a restore")
    what = "your transaction can only be rolled back; then try the whole of it again"
    if state in _BUSY:
        return StoreBusy(f"{client.shown}: {str(error).strip()}; {what}")
    ours = (
        translate(error, client.shown, client.address.timeout_s)
        if isinstance(error, (*DRIVER_ERRORS, StaleCache))
        else None
    )
    make: Callable[[str], StoreError] = type(ours) if ours is not None else StoreUnavailable
    return make(f"{ours or f'{client.shown}: {str(error).strip()}'}; {what}")
