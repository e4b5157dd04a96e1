"""What the server's settings mean for the jobs on it."""

from __future__ import annotations

from holdfast.store import Capabilities, Finding
from holdfast.stores.postgres.link import Link
from holdfast.stores.postgres.sql import migrations


def capabilities(*, durable: bool, note: str) -> Capabilities:
    """What holds here."""
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


async def durability(link: Link) -> Capabilities:
    """What an acknowledged change survives, by the settings of the server."""
    (row,) = await link.rows("durability", repeat=True)
    if row["fsync"] != "on":
        return capabilities(durable=False, note="fsync is off: a crash of the server's machine can lose everything.")
    if row["synchronous_commit"] == "off":
        note = "synchronous_commit is off: a crash of the server loses what it acknowledged in the last moments."
        return capabilities(durable=False, note=note)
    note = f"Each acknowledged change was flushed to the disk (synchronous_commit={row['synchronous_commit']})."
    return capabilities(durable=True, note=note)


async def findings(link: Link) -> list[Finding]:
    """Look the deployment over."""
    (row,) = await link.rows("health", link.address.schema, repeat=True)
    last = migrations()[-1][0]
    found = [
        Finding("ok", "store", f"PostgreSQL {row['version']}, schema {link.address.schema!r}"),
        Finding("ok", "schema", f"version {row['migration']} of {last}"),
        _durability(row["fsync"], row["synchronous_commit"]),
        _replica(replica=row["replica"]),
        _transactions(row["oldest_s"]),
        _dead("jobs", row["live"] or 0, row["dead"] or 0, row["jobs_bytes"]),
        Finding("ok", "size", f"finished jobs {_mib(row['done_bytes'])}, the log {_mib(row['events_bytes'])}"),
    ]
    slots = await link.rows("slot_use", repeat=True)
    full = len(slots)
    level, cure = (
        ("warn", "run `holdfast prune` or a worker: nobody trims the log") if full >= SLOTS_WARN else ("ok", "")
    )
    found.append(Finding(level, "partitions", f"{full} of 8 partitions of the log are in use", cure))
    return found


SLOTS_WARN = 7
LONG_S = 60
DEAD_WARN = 100_000


def _durability(fsync: str, commit: str) -> Finding:
    if fsync != "on":
        return Finding("bad", "durability", "fsync is off: a crash can lose everything", "set fsync = on")
    if commit == "off":
        text = "synchronous_commit is off: a crash loses what was acknowledged in the last moments"
        return Finding("bad", "durability", text, "set synchronous_commit = on")
    return Finding("ok", "durability", f"fsync on, synchronous_commit {commit}: flushed before it is acknowledged")


def _replica(*, replica: bool) -> Finding:
    if replica:
        return Finding("bad", "primary", "this server is a replica and takes no writes", "connect to its primary")
    return Finding("ok", "primary", "this server takes writes")


def _transactions(oldest_s: float | None) -> Finding:
    if oldest_s is not None and oldest_s > LONG_S:
        text = f"the oldest open transaction is {oldest_s:.0f} s old: events wait for it, and dead rows pile up"
        return Finding("warn", "transactions", text, "find it in pg_stat_activity by xact_start and end it")
    return Finding("ok", "transactions", f"the oldest open transaction is {oldest_s or 0:.0f} s old")


def _dead(table: str, live: int, dead: int, size: int) -> Finding:
    text = f"{table}: {live} live and {dead} dead rows, {_mib(size)} with indexes"
    if dead > DEAD_WARN and dead > 2 * live:
        return Finding("warn", "bloat", text, "see that autovacuum runs and no transaction is open for long")
    return Finding("ok", "bloat", text)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
