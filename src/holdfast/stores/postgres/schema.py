"""The schema: made and brought up to date in numbered steps, forward only."""

from __future__ import annotations

from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from holdfast.core.errors import StoreMismatch
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.link import Link
from holdfast.stores.postgres.sql import migrations, quoted
from holdfast.stores.postgres.trouble import TROUBLES, translate

LEAST_VERSION = 130000
LOCK = 0x686F6C64
"""The first half of the advisory lock; the second is made of the schema's name."""
WAIT_MS = 60_000


async def prepare(link: Link, frozen_at: int | None) -> None:
    """See that the schema is there and is ours. Raises StoreMismatch."""
    address = link.address
    connection = await link.dial()
    try:
        if int(await connection.fetchval("SHOW server_version_num")) < LEAST_VERSION:
            raise StoreMismatch(f"{address.shown} is older than PostgreSQL 13")
        done = await version(connection, address.schema)
        last = migrations()[-1][0]
        if done < last:
            if not address.migrate:
                what = f"is at version {done} of {last}" if done else "is not there"
                raise StoreMismatch(f"the schema {address.schema!r} {what}; run `holdfast migrate-schema URL`")
            await migrate(connection, address, frozen_at)
        elif done > last:
            raise StoreMismatch(
                f"the schema {address.schema!r} is at version {done}, newer than this Holdfast ({last})"
            )
    except TROUBLES as error:
        raise translate(error, address.shown, address.timeout_s) from error
    finally:
        await connection.close(timeout=2)


async def migrate(connection: Any, address: Address, frozen_at: int | None = None) -> int:
    """Take the steps that are missing, in one transaction with their record. Several starters wait for each other."""
    schema = quoted(address.schema)
    await connection.execute(f"SET lock_timeout = {WAIT_MS}")
    key = await connection.fetchval("SELECT hashtext($1)", address.schema)
    await connection.execute("SELECT pg_advisory_lock($1, $2)", LOCK, key)
    try:
        done = await version(connection, address.schema)
        steps = [step for step in migrations() if step[0] > done]
        async with connection.transaction():
            if done == 0:
                await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                await connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {schema}.migrations ("
                    "number int PRIMARY KEY, name text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"
                )
            for number, name, text in steps:
                await connection.execute(text.replace("{s}", schema))
                record = f"INSERT INTO {schema}.migrations (number, name) VALUES ($1, $2)"  # noqa: S608 - a quoted name
                await connection.execute(record, number, name)
            if done == 0 and frozen_at is not None:
                await connection.execute(f"UPDATE {schema}.meta SET frozen_at = $1", frozen_at)  # noqa: S608
        return len(steps)
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1, $2)", LOCK, key)


async def version(connection: Any, schema: str) -> int:
    """The last step that was taken; 0: none."""
    try:
        query = f"SELECT coalesce(max(number), 0) FROM {quoted(schema)}.migrations"  # noqa: S608 - a quoted name
        return await connection.fetchval(query)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return 0


async def erase(link: Link) -> None:
    """Remove the schema with everything in it."""
    connection = await link.dial()
    try:
        await connection.execute(f"DROP SCHEMA IF EXISTS {quoted(link.address.schema)} CASCADE")
    finally:
        await connection.close(timeout=2)
