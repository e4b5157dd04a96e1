"""Settings, workers, retention, and health checks."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import msgspec

from holdfast.core.budgets import Budgets, merged
from holdfast.store import Finding, Hint, Pruned, Reader, TenantSettings, WorkerInfo
from holdfast.stores.file import database, modes, reads, rows
from holdfast.stores.file.sql import SQL
from holdfast.stores.file.transaction import Transaction
from holdfast.stores.file.trimming import trim

_encode = msgspec.json.Encoder().encode
_decode_budgets = msgspec.json.Decoder(Budgets).decode


def shift_clock(t: Transaction, ms: int) -> None:
    """Move the clock, for tests."""
    t.db.execute(SQL["shift_clock"], (ms,))
    t.signal(Hint.READY)
    t.signal(Hint.DONE)


def pause(t: Transaction, tenant: str, queue: str, *, paused: bool) -> None:
    """Pause or resume a queue. [CLAIM-5]"""
    t.db.execute(SQL["pause"], (int(paused), t.lane(tenant, queue)))
    if not paused:
        t.signal(Hint.READY, tenant, queue)


def set_tenant(t: Transaction, tenant: str, settings: TenantSettings) -> None:
    """Set the fields that are not None."""
    queue = settings.queue or ""
    stored: bytes | None = t.one("budgets", tenant, queue)
    budgets = merged(None if stored is None else _decode_budgets(stored), settings.budgets)
    packed = None if budgets is None else _encode(budgets)
    t.db.execute(SQL["set_settings"], (tenant, queue, settings.weight, settings.max_waiting, packed))


def set_reader(t: Transaction, reader: Reader) -> None:
    """Register a reader, or advance it. [EVENT-2]"""
    n = reads.position(t.db, reader.offset, t.event, t.trimmed)
    t.db.execute(SQL["set_reader"], (reader.tenant or "", reader.name, n))


def drop_reader(t: Transaction, tenant: str | None, name: str) -> bool:
    """Remove a reader."""
    return t.db.execute(SQL["drop_reader"], (tenant or "", name)).rowcount > 0


def beat(t: Transaction, worker: WorkerInfo, ttl_ms: int) -> None:
    """Record a worker's heartbeat, or that it has ended."""
    if ttl_ms > 0:
        t.db.execute(SQL["beat"], (worker.worker_id, t.now + ttl_ms, t.now, _encode(worker)))
    else:
        t.db.execute(SQL["sign_off"], (worker.worker_id,))


def prune(t: Transaction, limit: int, *, blobs: bool) -> Pruned:
    """Delete what is past its retention: never waiting or leased jobs. [KEEP-1]"""
    gone = t.db.execute(SQL["forgotten_jobs"], (t.now, limit)).fetchall()
    names: dict[int, tuple[str, str]] = {}
    for row in gone:
        lane: int = row[1]
        if lane not in names:
            names[lane] = t.db.execute(SQL["lane_names"], (lane,)).fetchone()
        t.forget_job(rows.to_job(row, *names[lane]), lane)
    for (lane,) in t.db.execute(SQL["drop_expired_keys"], (t.now, limit)).fetchall():
        t.count_keys(lane, -1)
    t.db.execute(SQL["forget_workers"], (t.now,))
    names_out = [row[0] for row in t.db.execute(SQL["dropped_blobs"], (limit,)).fetchall()] if blobs else []
    t.db.executemany(SQL["forget_blob"], [(blob,) for blob in names_out])
    trimmed, more = trim(t)
    more = more or len(gone) == limit or len(names_out) == limit
    return Pruned(len(gone), trimmed, names_out, more)


def _access(path: Path) -> Finding:
    """Whether other users have access to the files."""
    shared = modes.is_shared(path)
    wide = modes.too_wide(path.parent, group=shared)
    if not wide:
        return Finding("ok", "access", f"its owner{' and its group' if shared else ''} only")
    cure = f"chmod -R {'o' if shared else 'go'}-rwx {path.parent}; they may have read payloads"
    return Finding(
        "warn", "access", f"other users have access to {len(wide)} of its files, for example {wide[0]}", cure
    )


def doctor(db: sqlite3.Connection, path: Path) -> list[Finding]:
    """The health of this directory, for an operator."""
    findings = [Finding("ok", "store", f"SQLite {sqlite3.sqlite_version} in {path}")]
    damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    findings.append(
        Finding("ok", "integrity", "quick_check finds no damage")
        if damage == "ok"
        else Finding("bad", "integrity", damage, "stop all users and restore the directory from a backup")
    )
    version = db.execute("PRAGMA user_version").fetchone()[0]
    findings.append(Finding("ok", "schema", f"version {version} of {database.SCHEMA_VERSION}"))
    mode, synchronous = db.execute("PRAGMA journal_mode").fetchone()[0], db.execute("PRAGMA synchronous").fetchone()[0]
    durable = mode == "wal" and synchronous >= 2  # noqa: PLR2004 - FULL
    findings.append(
        Finding("ok", "durability", "WAL with synchronous=FULL: each commit is flushed before it is acknowledged")
        if durable
        else Finding("bad", "durability", f"journal_mode={mode}, synchronous={synchronous}", "report this as a bug")
    )
    findings.append(_access(path))
    free = shutil.disk_usage(path.parent).free
    level = "ok" if free > 1 << 30 else "warn"
    findings.append(Finding(level, "disk", f"{free / 2**30:.1f} GiB free", "" if level == "ok" else "free some space"))
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    big = size > 256 << 20
    findings.append(
        Finding("warn" if big else "ok", "log", f"the write-ahead log is {size / 2**20:.1f} MiB",
                "a reader has kept a snapshot open for a long time; restart it" if big else "")
    )  # fmt: skip
    return findings
