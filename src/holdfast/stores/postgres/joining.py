"""The caller's own transaction: the one documented door through which others' connections come in. [ENQ-7]"""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import InvalidOption
from holdfast.stores.postgres.link import Direct, Session
from holdfast.stores.postgres.rows import Row
from holdfast.stores.postgres.sql import Statements


async def join(connection: Any, sql: Statements) -> Session:
    """A session on a caller's connection: of asyncpg, of psycopg (async), or of SQLAlchemy over one of these."""
    raw = connection
    module = type(raw).__module__
    if module.startswith("sqlalchemy"):
        if not hasattr(raw, "get_raw_connection") and hasattr(raw, "connection"):
            raw = await raw.connection()  # An AsyncSession.
        if not hasattr(raw, "get_raw_connection"):
            raise InvalidOption("connection", "of SQLAlchemy, an AsyncConnection or an AsyncSession can be joined")
        raw = (await raw.get_raw_connection()).driver_connection
        module = type(raw).__module__
    if module.startswith("asyncpg"):
        if not raw.is_in_transaction():
            raise InvalidOption(
                "connection", "no transaction is open on it; use `async with connection.transaction():`"
            )
        return Direct(raw, sql)
    if module.startswith("psycopg") and hasattr(raw, "__aenter__"):
        return Psycopg(raw, sql)
    reason = f"{type(connection).__name__} cannot be joined; pass an asyncpg, async psycopg or async SQLAlchemy one"
    raise InvalidOption("connection", reason)


class Psycopg:
    """An AsyncConnection of psycopg's. Its transaction has begun or begins with our first statement."""

    def __init__(self, connection: Any, sql: Statements) -> None:
        self._connection = connection
        self._sql = sql

    async def rows(self, name: str, *args: Any) -> list[Row]:
        from psycopg import AsyncRawCursor
        from psycopg.rows import dict_row

        # Its types want the text of a statement to be written where it is run.
        statement: Any = self._sql[name]
        async with AsyncRawCursor(self._connection, row_factory=dict_row) as cursor:
            await cursor.execute(statement, args, binary=True)
            return list(await cursor.fetchall()) if cursor.description else []

    async def value(self, name: str, *args: Any) -> Any:
        found = await self.rows(name, *args)
        return next(iter(found[0].values())) if found else None
