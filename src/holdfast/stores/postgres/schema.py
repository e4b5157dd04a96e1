"""The schema: created and brought up to date in numbered versions, forward only."""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import StoreBusy, StoreMismatch, StoreUnavailable
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.stores.postgres.errors import DRIVER_ERRORS, is_blocked, translate
from holdfast.stores.postgres.sql import digest, fill, migrations, quoted

MIN_VERSION = 130000
LOCK = 0x686F6C64
"""The first half of the advisory lock of a migration. The second half is a hash of the schema's name."""
WAIT_MS = 60_000
"""How long a migration waits for another one."""
STEP_WAIT_MS = 5_000
"""How long a migration waits for a table. All later statements wait behind it, so this is short."""
FLUSHED = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"


async def prepare(client: PostgresClient, frozen_at: int | None) -> None:
    """Check that the server is a primary and the schema is up to date. Raises StoreMismatch, StoreUnavailable."""
    address = client.address
    connection = await client.connect()
    try:
        if int(await connection.fetchval("SHOW server_version_num")) < MIN_VERSION:
            raise StoreMismatch(f"{address.shown} is older than PostgreSQL 13")
        if await connection.fetchval("SELECT pg_is_in_recovery()"):
            # Not a mismatch: after a failover the same address may lead to a primary again.
            raise StoreUnavailable(
                f"{address.shown} is a replica: it takes no changes, and is behind; connect to its primary"
            )
        done = await version(connection, address.schema)
        await refuse_another(connection, address)
        last = migrations()[-1][0]
        if done < last:
            if not address.migrate:
                what = f"is at version {done} of {last}" if done else "is not there"
                raise StoreMismatch(f"the schema {address.schema!r} {what}; run `holdfast migrate URL`")
            await migrate(connection, address, frozen_at)
        refuse_newer(address, done)
    except DRIVER_ERRORS as error:
        raise translate(error, address.shown, address.timeout_s) from error
    finally:
        await connection.close(timeout=2)


async def migrate(connection: Any, address: PostgresAddress, frozen_at: int | None = None) -> list[str]:
    """Apply the missing versions, all or none, and answer their names. Concurrent migrations wait for each other.

    Raises StoreMismatch for a schema that is newer than this release, StoreBusy if another transaction is in the way.
    """
    try:
        # The lock is inside the transaction, so that it works behind a pooler too.
        async with connection.transaction():
            return await _migrate(connection, address, frozen_at)
    except DRIVER_ERRORS as error:
        if not is_blocked(error):
            raise
        raise StoreBusy(await _blockers(connection, address)) from error


async def _migrate(connection: Any, address: PostgresAddress, frozen_at: int | None) -> list[str]:
    schema = quoted(address.schema)
    await connection.execute(f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {WAIT_MS}")
    await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", LOCK, address.schema)
    await connection.execute(f"SET LOCAL lock_timeout = {STEP_WAIT_MS}")
    # If the server does not flush commits, a crash may lose jobs, but it must not lose the schema.
    await connection.execute(FLUSHED)
    done = await version(connection, address.schema)
    await refuse_another(connection, address)
    refuse_newer(address, done)
    steps = [step for step in migrations() if step[0] > done]
    if done == 0:
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS {schema}.migrations ("
            "number int PRIMARY KEY, name text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),"
            " digest text)"
        )
    for number, name, text in steps:
        await connection.execute(fill(text, address.schema))
        record = f"INSERT INTO {schema}.migrations (number, name, digest) VALUES ($1, $2, $3)"  # noqa: S608 - quoted
        await connection.execute(record, number, name, digest(text))
    if done == 0 and frozen_at is not None:
        await connection.execute(f"UPDATE {schema}.meta SET frozen_at = $1", frozen_at)  # noqa: S608
    return [name for _, name, _ in steps]


def refuse_newer(address: PostgresAddress, done: int) -> None:
    """Raise StoreMismatch for a schema that a newer Holdfast has made."""
    last = migrations()[-1][0]
    if done > last:
        reason = f"the schema {address.schema!r} is at version {done}, newer than this Holdfast ({last})"
        raise StoreMismatch(f"{reason}; upgrade Holdfast here first")


async def refuse_another(connection: Any, address: PostgresAddress) -> None:
    """Raise StoreMismatch for a schema with the layout of another version."""
    name = quoted(address.schema)
    if await connection.fetchval("SELECT to_regclass($1)", f"{name}.migrations") is None:
        return
    # Through JSON: older layouts have no such column.
    found = await connection.fetch(f"SELECT number, to_jsonb(m) ->> 'digest' AS digest FROM {name}.migrations m")  # noqa: S608
    ours = {number: (step, digest(text)) for number, step, text in migrations()}
    for row in sorted(found):
        step, wanted = ours.get(row["number"], ("", row["digest"]))
        if row["digest"] != wanted:
            reason = (
                f"the schema {address.schema!r} has another layout: its version {step} is not the one of this release"
            )
            cure = f"finish its jobs with the version that made it, then DROP SCHEMA {name} CASCADE"
            raise StoreMismatch(f"{reason}; {cure}, or name another schema with ?schema=NAME")


async def version(connection: Any, schema: str) -> int:
    """The version of the schema; 0: there is none."""
    table = f"{quoted(schema)}.migrations"
    if await connection.fetchval("SELECT to_regclass($1)", table) is None:
        return 0
    return await connection.fetchval(f"SELECT coalesce(max(number), 0) FROM {table}")  # noqa: S608 - a quoted name


async def _blockers(connection: Any, address: PostgresAddress) -> str:
    """Names the processes that block a migration, with what to do about it."""
    found = await connection.fetch(
        "SELECT DISTINCT l.pid, l.locktype = 'advisory' AS migrates, coalesce(a.application_name, '') AS program"
        " FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.granted AND l.pid <> pg_backend_pid() AND ("
        " (l.locktype = 'advisory' AND l.classid::bigint = $1 AND l.objid = hashtext($2)::bit(32)::bigint::oid)"
        " OR l.relation IN (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = $2)) ORDER BY l.pid",
        LOCK,
        address.schema,
    )
    pids = ", ".join(f"pid {row['pid']}" + (f" ({row['program']})" if row["program"] else "") for row in found[:5])
    if any(row["migrates"] for row in found):
        return f"another migration of {address.schema!r} is under way ({pids}); wait for its end and run it again"
    cure = "try again at a quieter moment, or end it with SELECT pg_terminate_backend(pid)"
    return f"the tables of {address.schema!r} are in use ({pids or 'unknown process'}), nothing was changed; {cure}"


async def erase(client: PostgresClient) -> None:
    """Remove the schema with everything in it."""
    connection = await client.connect()
    try:
        await connection.execute(f"DROP SCHEMA IF EXISTS {quoted(client.address.schema)} CASCADE")
    finally:
        await connection.close(timeout=2)
