"""What `holdfast doctor` reports about a server, and what the store promises to keep on it.

Both come from the server's own views. What these hide from our role is reported as unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime

from holdfast.core.errors import StoreMismatch
from holdfast.store import Capabilities, Finding
from holdfast.stores.postgres import schema
from holdfast.stores.postgres.connection import LOCK_MS, PostgresClient
from holdfast.stores.postgres.rows import Row
from holdfast.stores.postgres.sql import SLOTS, migrations, quoted
from holdfast.stores.postgres.upkeep import PARTITION_BYTES

LEAST_VERSION = 13
SUPPORTED_UNTIL = {
    13: date(2025, 11, 13), 14: date(2026, 11, 12), 15: date(2027, 11, 11), 16: date(2028, 11, 9),
    17: date(2029, 11, 8), 18: date(2030, 11, 14),
}  # fmt: skip
"""The last day on which each version gets fixes, from postgresql.org/support/versioning."""
CLOCK_S = 1.0
LONG_S = 60
"""Warn of an open transaction older than this: readers of events wait for it, and vacuum cannot remove dead rows."""
PREPARED_S = 60
DEAD_WARN = 100_000
LARGE_INDEX = 256 << 20
LARGE_ENTRY = 1000
"""An index with more bytes than this for each row is mostly empty pages."""
LARGE_PARTITION = 8 * PARTITION_BYTES
"""More than a busy system writes to the log between two prunes."""
LAG_S = 10
WRAP_WARN = 1_500_000_000
STATEMENT_MS = 5_000
FLUSHED = {
    "local": "flushed to this server's disk before it is acknowledged; standbys are not waited for",
    "on": "flushed to the disk before it is acknowledged, to that of synchronous standbys too",
    "remote_write": "flushed to this server's disk and handed to synchronous standbys before it is acknowledged",
    "remote_apply": "flushed, and visible on synchronous standbys, before it is acknowledged",
}


def capabilities(*, durable: bool, note: str) -> Capabilities:
    """The capabilities of this store."""
    return Capabilities(
        name="postgres",
        durable=True,
        survives_power_loss=durable,
        many_processes=True,
        many_hosts=True,
        transactional_enqueue=True,
        exact_turns=False,
        exact_quota=False,
        notes={
            "durable": note,
            "exact_turns": "Turns are exact within a process; between processes each tenant gets its share.",
            "exact_quota": "Exact, but for enqueues that join a caller's transaction: those may overshoot by what is "
            "in flight.",
            "events": "A reader sees nothing that is newer than the oldest writing transaction open on the server.",
            "clock": "The server's: if it is set back, leases and delays last longer by that much.",
        },
    )


async def durability(client: PostgresClient) -> Capabilities:
    """What an acknowledged change survives, by the settings of the server."""
    (row,) = await client.rows("durability", repeat=True)
    if row["fsync"] != "on":
        return capabilities(durable=False, note="fsync is off: a crash of the server's machine can lose everything.")
    if row["synchronous_commit"] == "off":
        note = "synchronous_commit is off: a crash of the server loses what it acknowledged in the last moments."
        return capabilities(durable=False, note=note)
    note = f"Each acknowledged change was flushed to the disk (synchronous_commit={row['synchronous_commit']})."
    return capabilities(durable=True, note=note)


async def findings(client: PostgresClient, clock: Callable[[], float] = time.time) -> list[Finding]:
    """Examine the deployment. Changes nothing, and needs no schema.

    `clock` is this machine's, in seconds. Raises StoreUnavailable if the server cannot be reached.
    """
    pooled, done, other = await _dialled(client)
    began = clock()
    (server,) = await client.rows("doctor_server", repeat=True)
    ours = (began + clock()) / 2
    today = datetime.fromtimestamp(ours, UTC).date()
    found = [
        _version(server, client.address.schema, today),
        _schema(client, done, other),
        *_durability(server),
        _primary(server),
    ]
    found += await _replication(client, server)
    found += await _transactions(client, server)
    found += _timeouts(client, server)
    found += [_connections(client, server), _pooler(client, pooled=pooled)]
    found += await _tables(client, server)
    if done == migrations()[-1][0] and other is None:
        found.append(await _log(client))
    found.append(_wrap(server))
    found.append(_clock(server["clock"] - ours))
    return found


async def _dialled(client: PostgresClient) -> tuple[bool, int, StoreMismatch | None]:
    """Whether a pooler answers in the server's place, the version of the schema, and why its layout is not ours."""
    connection = await client.connect()
    try:
        # The process that a pooler names when we connect is not the one that then works for us.
        pooled = connection.get_server_pid() != await connection.fetchval("SELECT pg_backend_pid()")
        other: StoreMismatch | None = None
        try:
            await schema.refuse_another(connection, client.address)
        except StoreMismatch as error:
            other = error
        return pooled, await schema.version(connection, client.address.schema), other
    finally:
        await connection.close(timeout=2)


# The server -----------------------------------------------------------------------------------------------------


def _version(server: Row, name: str, today: date) -> Finding:
    major = server["number"] // 10_000
    text = f"PostgreSQL {server['version'].partition(' ')[0]}, schema {name!r}"
    newest = max(SUPPORTED_UNTIL)
    if major < LEAST_VERSION:
        return Finding("bad", "store", f"{text} is too old", f"upgrade to PostgreSQL {newest}")
    until = SUPPORTED_UNTIL.get(major)
    if until is not None and today > until:
        return Finding("warn", "store", f"{text} has had no fixes since {until}", f"upgrade to PostgreSQL {newest}")
    return Finding("ok", "store", text)


def _schema(client: PostgresClient, done: int, other: StoreMismatch | None) -> Finding:
    name, last = client.address.schema, migrations()[-1][0]
    if other is not None:
        reason, _, cure = str(other).partition("; ")
        return Finding("bad", "schema", reason, cure)
    if done == last:
        return Finding("ok", "schema", f"version {done} of {last}")
    if done > last:
        return Finding(
            "bad", "schema", f"{name!r} is at version {done}, newer than this Holdfast ({last})", "upgrade it"
        )
    what = f"is at version {done} of {last}" if done else "is not there"
    cure = "run `holdfast migrate URL`; with migrate=0 the store cannot be opened before that"
    return Finding("bad" if not client.address.migrate else "warn", "schema", f"{name!r} {what}", cure)


def _durability(server: Row) -> Iterator[Finding]:
    commit = server["synchronous_commit"]
    if server["fsync"] != "on":
        text = "fsync is off: a crash of the machine can lose every job, and the database with them"
        yield Finding("bad", "durability", text, "set fsync = on")
    elif commit == "off":
        text = (
            "synchronous_commit is off: a crash loses what was acknowledged in the last moments, up to 0.6 s as a rule"
        )
        cure = f"ALTER ROLE {quoted(server['role'])} SET synchronous_commit = on"
        yield Finding("warn", "durability", text, cure)
    else:
        yield Finding("ok", "durability", f"synchronous_commit {commit}: {FLUSHED.get(commit, 'flushed')}")
    if server["full_page_writes"] != "on":
        text = "full_page_writes is off: after a power cut half-written pages can be lost for good"
        yield Finding("bad", "durability", text, "set full_page_writes = on, unless the file system writes whole pages")


def _primary(server: Row) -> Finding:
    if server["replica"]:
        text = "this server is a replica: it takes no changes, and what it shows may be out of date"
        return Finding("bad", "primary", text, "connect to its primary, or add target_session_attrs=read-write")
    if server["read_only"] == "on":
        text = "transactions are read-only by default for this role or database"
        return Finding(
            "bad", "primary", text, f"ALTER ROLE {quoted(server['role'])} SET default_transaction_read_only = off"
        )
    return Finding("ok", "primary", "this server takes changes")


async def _replication(client: PostgresClient, server: Row) -> list[Finding]:
    standbys = await client.rows("doctor_standbys", repeat=True)
    names = server["synchronous_standby_names"]
    found: list[Finding] = []
    in_step = [row["name"] for row in standbys if row["sync_state"] in ("sync", "quorum")]
    if names and not server["replica"]:
        if server["synchronous_commit"] in ("off", "local"):
            text = (
                f"there are synchronous standbys, but synchronous_commit {server['synchronous_commit']} waits for none"
            )
            found.append(Finding("warn", "replication", text, "set synchronous_commit = on"))
        elif not in_step:
            text = f"no synchronous standby is connected ({names}): every commit waits for one"
            found.append(Finding("bad", "replication", text, "start one, or take it out of synchronous_standby_names"))
        else:
            text = f"synchronous: {', '.join(in_step)}; a failover to one of them loses nothing acknowledged"
            found.append(Finding("ok", "replication", text))
    elif standbys:
        text = f"{len(standbys)} standby(s), asynchronous: a failover can lose the last moments"
        found.append(Finding("ok", "replication", text))
    for row in standbys:
        if row["state"] != "streaming" or (row["lag_s"] or 0) > LAG_S:
            behind = f"{row['lag_s'] or 0:.0f} s behind, {row['state']}"
            cure = "look at its log, its disk and the network"
            found.append(Finding("warn", "replication", f"the standby {row['name']!r} is {behind}", cure))
    for row in await client.rows("doctor_slots", repeat=True):
        text = f"the replication slot {row['name']!r} has no reader: it keeps WAL, and may keep dead rows, without end"
        cure = f"start its reader, or SELECT pg_drop_replication_slot('{row['name']}')"
        found.append(Finding("warn", "replication", text, cure))
    return found


async def _transactions(client: PostgresClient, server: Row) -> list[Finding]:
    found: list[Finding] = []
    oldest = await client.rows("doctor_transactions", repeat=True)
    age_s = max(0.0, oldest[0]["age_s"]) if oldest else 0.0
    if age_s > LONG_S:
        row = oldest[0]
        who = f"pid {row['pid']}, {row['role']}, {row['program'] or 'no name'}, {row['state']}"
        text = f"the oldest open transaction is {_span(age_s)} old ({who}): events wait for it, and dead rows pile up"
        cure = f"end it: SELECT pg_terminate_backend({row['pid']}), and set idle_in_transaction_session_timeout"
        found.append(Finding("warn", "transactions", text, cure))
    elif server["hidden"]:
        text = f"{server['hidden']} session(s) of other roles do not show what they do"
        found.append(Finding("warn", "transactions", text, f"GRANT pg_monitor TO {quoted(server['role'])}"))
    else:
        found.append(Finding("ok", "transactions", f"the oldest open transaction is {_span(age_s)} old"))
    for row in await client.rows("doctor_prepared", repeat=True):
        if row["age_s"] > PREPARED_S:
            text = f"the prepared transaction {row['gid']!r} in {row['database']!r} is {_span(row['age_s'])} old"
            cure = f"decide it there: COMMIT PREPARED '{row['gid']}' or ROLLBACK PREPARED '{row['gid']}'"
            found.append(Finding("warn", "transactions", f"{text}: no restart ends it, and dead rows pile up", cure))
    return found


def _timeouts(client: PostgresClient, server: Row) -> list[Finding]:
    """Timeouts of the server that end our calls too early, and timeouts that are missing."""
    role = quoted(server["role"])
    found: list[Finding] = []
    if 0 < server["statement_ms"] < STATEMENT_MS:
        text = f"statement_timeout is {server['statement_ms']} ms for this role: under load it ends our calls"
        cure = f"ALTER ROLE {role} SET statement_timeout = 0; timeout_s ({client.address.timeout_s} s) bounds calls"
        found.append(Finding("warn", "timeouts", text, cure))
    missing = [
        f"{name} = '{value}'"
        for name, value, now in (
            ("lock_timeout", f"{LOCK_MS}ms", server["lock_ms"]),
            ("idle_in_transaction_session_timeout", "15s", server["idle_ms"]),
        )
        if not now
    ]
    if missing:
        text = "through a pooler we set no timeouts of our own, and this role has none: " + ", ".join(missing)
        cure = "; ".join(f"ALTER ROLE {role} SET {setting}" for setting in missing)
        found.append(Finding("warn", "timeouts", text, cure))
    waits = f"for a lock {server['lock_ms']} ms, idle in a transaction {server['idle_ms']} ms"
    return found or [Finding("ok", "timeouts", f"{waits}, a statement {server['statement_ms'] or 'any number of'} ms")]


def _connections(client: PostgresClient, server: Row) -> Finding:
    most = server["max_connections"] - server["reserved"]
    free = most - server["connected"]
    pool = client.address.connections
    text = (
        f"{server['connected']} of {most} connections are in use; each handle of ours takes up to {pool}, and one more"
    )
    if free <= pool:
        cure = "lower `connections` in the URL, raise max_connections, or put pgbouncer between"
        return Finding("warn", "connections", text, cure)
    return Finding("ok", "connections", text)


def _pooler(client: PostgresClient, *, pooled: bool) -> Finding:
    if pooled and client.address.listen:
        text = "a pooler answers in the server's place: in transaction mode no hint gets through it"
        return Finding("warn", "pooler", text, "add listen=0 to the URL, or connect to the server itself")
    if pooled:
        return Finding("ok", "pooler", "a pooler answers in the server's place, and listen=0 polls instead")
    if not client.address.listen:
        text = "listen=0 without a pooler: every process polls four times a second instead of being notified"
        return Finding("warn", "pooler", text, "take listen=0 out of the URL")
    return Finding("ok", "pooler", "none: this is a direct connection")


# Our tables -----------------------------------------------------------------------------------------------------


async def _tables(client: PostgresClient, server: Row) -> list[Finding]:
    tables = await client.rows("doctor_tables", client.address.schema, repeat=True)
    if not tables:
        return []
    found: list[Finding] = []
    if server["autovacuum"] != "on":
        text = "autovacuum is off: dead rows are never cleared away, and tables only grow"
        found.append(Finding("bad", "bloat", text, "set autovacuum = on"))
    for row in tables:
        if row["dead"] > DEAD_WARN and row["dead"] > 2 * row["live"]:
            last = "never" if row["vacuumed_s"] is None else f"{_span(row['vacuumed_s'])} ago"
            text = f"{row['name']}: {row['live']} live and {row['dead']} dead rows, vacuumed {last}"
            cure = f"end long transactions, then VACUUM {quoted(client.address.schema)}.{row['name']}"
            found.append(Finding("warn", "bloat", text, cure))
    by_name = {row["name"]: row for row in tables}
    jobs, done = by_name.get("jobs"), by_name.get("done")
    if not found and jobs is not None and done is not None:
        log = sum(row["size"] for row in tables if row["name"].startswith("events"))
        found.append(Finding("ok", "bloat", f"jobs: {jobs['live']} live and {jobs['dead']} dead rows"))
        text = f"waiting and leased {_mib(jobs['size'])}, finished {_mib(done['size'])}, the log {_mib(log)}"
        found.append(Finding("ok", "size", text))
    return found + await _indexes(client, by_name)


async def _indexes(client: PostgresClient, tables: dict[str, Row]) -> list[Finding]:
    found: list[Finding] = []
    rows = await client.rows("doctor_indexes", client.address.schema, repeat=True)
    for row in rows:
        cure = f"REINDEX INDEX CONCURRENTLY {quoted(client.address.schema)}.{row['name']}"
        table = tables.get(row["on_table"])
        count = max(1, table["live"] + table["dead"]) if table else 1
        if not row["valid"]:
            found.append(Finding("bad", "indexes", f"{row['name']} is not valid, and is not used", cure))
        elif row["size"] > LARGE_INDEX and row["size"] / count > LARGE_ENTRY:
            text = f"{row['name']} takes {_mib(row['size'])} for {count} rows"
            found.append(Finding("warn", "indexes", text, cure))
    return found or [Finding("ok", "indexes", f"all {len(rows)} are valid")]


async def _log(client: PostgresClient) -> Finding:
    """Which partition of the log is written to, and whether upkeep moves on to the next one."""
    slots = await client.rows("slots", repeat=True)
    (written,) = (row for row in slots if row["written"])
    ahead = sum(row["empty"] for row in slots if row is not written)
    text = f"partition {written['slot']} of {SLOTS} is written to, {ahead} are empty ahead"
    if written["size"] > LARGE_PARTITION:
        text += f": it has {_mib(written['size'])}, and no process trims the log"
    elif ahead == 0 and written["size"] >= PARTITION_BYTES:
        text += ": a reader does not advance, or no process trims the log, and it grows"
    else:
        return Finding("ok", "partitions", text)
    cure = "run a worker or `holdfast maintain`: they trim it; check that every registered reader advances"
    return Finding("warn", "partitions", text, cure)


def _wrap(server: Row) -> Finding:
    age = server["oldest_xid"]
    text = f"the oldest row was last frozen {age / 1e6:.0f} million transactions ago"
    if age > WRAP_WARN:
        cure = "check that autovacuum runs and that nothing holds it back: at 2,147 million the server stops"
        return Finding("bad", "freezing", text, cure)
    return Finding("ok", "freezing", text)


def _clock(off_s: float) -> Finding:
    """The difference between the server's clock and this machine's. Only the server's decides; people read both."""
    if abs(off_s) > CLOCK_S:
        way = "ahead of" if off_s > 0 else "behind"
        text = f"the server's clock is {abs(off_s):.1f} s {way} this machine's; only the server's counts"
        return Finding("warn", "clock", text, "let both keep time by NTP")
    return Finding("ok", "clock", "the server's clock agrees with this machine's")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _span(seconds: float) -> str:
    for size, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
