"""Histories in which one event is removed, doubled or altered: in the store's log, or in a lake.

The store's log is changed where the server keeps it, behind the store's back.
"""

import asyncio
import contextlib
import sqlite3
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import redis
from pyarrow import parquet

from holdfast.core.job import (
    AttemptError,
    Cancel,
    ClaimRequest,
    Envelope,
    Extend,
    Finish,
    JobKey,
    NewJob,
    Progress,
    Purge,
    Report,
)
from holdfast.stores.file import rows as file_rows
from holdfast.stores.redis.keys import shard_key, shard_of

QUEUE = "q"
HELD_MS = 30_000
ACTS = (
    "enqueue",
    "claim",
    "claim",
    "extend",
    "report",
    "finish",
    "finish",
    "finish",
    "cancel",
    "replay",
    "wait",
    "purge",
)


async def live(store, tenant, chance, steps=40, ids=4):
    """Let a few jobs of a tenant make every transition, one in each call, so that each event has its own entry."""
    held = []
    for act in ("enqueue", *chance.choices(ACTS, k=steps)):
        key = JobKey(tenant, QUEUE, str(chance.randrange(ids)))
        if act == "claim":
            held += (await store.claim(ClaimRequest(tenant, (QUEUE,), 1, HELD_MS, "w", chance.random()))).jobs
        elif act == "wait":
            await store.shift_clock(chance.choice((1, HELD_MS + 1)))
            while (await store.reap(1, 0.5)).jobs:
                pass
        elif act in ("extend", "report", "finish"):
            if held:
                await _under_lease(store, act, held.pop(chance.randrange(len(held))), held, chance)
        else:
            await _on_any(store, act, key, chance)


async def _under_lease(store, act, job, held, chance):
    if act == "finish":
        outcome = chance.choice(("complete", "fail", "retry", "release"))
        error = AttemptError("ValueError", "bad") if outcome in ("fail", "retry") else None
        await store.finish([Finish(job.key, job.token, outcome, error=error, delay_ms=0, random=0.5)])
        return
    held.append(job)
    if act == "extend":
        await store.extend([Extend(job.key, job.token, HELD_MS)])
    else:
        await store.report([Report(job.key, job.token, Progress(chance.random(), "on the way"))])


async def _on_any(store, act, key, chance):
    if act == "enqueue":
        new = NewJob(key, Envelope("send", b"{}", max_attempts=2), replace_failed=chance.random() < 0.5)
        await store.enqueue([new])
    elif act == "replay":
        await store.replay([key])
    elif act == "purge":
        await store.purge([Purge(key)])
    elif chance.random() < 0.5:
        await store.cancel([Cancel(key)])


# In the store's log ---------------------------------------------------------------------------------------------


def remove_from_log(url, event):
    _of(url).remove(url, event)


def double_in_log(url, event):
    """Behind it, or at the end of the log."""
    _of(url).double(url, event)


def _of(url):
    return {"file": _File, "postgresql": _Postgres}.get(url.partition(":")[0], _Valkey)


class _File:
    """Rows of events that were logged by one commit; events are numbered through."""

    @staticmethod
    def _number(event):
        return int(event.offset.partition(".")[0])

    @staticmethod
    @contextlib.contextmanager
    def _chunk(url, number):
        path = Path(url.partition(":")[2].partition("?")[0]) / "holdfast.db"
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            found = db.execute("SELECT last, first, chunk FROM events WHERE last >= ? ORDER BY last LIMIT 1", (number,))
            last, first, chunk = found.fetchone()
            yield db, last, first, file_rows.unpack_events(chunk)

    @classmethod
    def remove(cls, url, event):
        number = cls._number(event)
        with cls._chunk(url, number) as (db, last, first, events):
            db.execute("DELETE FROM events WHERE last = ?", (last,))
            for begin, part in ((first, events[: number - first]), (number + 1, events[number - first + 1 :])):
                if part:
                    db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", file_rows.chunk_row(begin, part))

    @classmethod
    def double(cls, url, event):
        number = cls._number(event)
        with cls._chunk(url, number) as (db, _, first, events):
            (end,) = db.execute("UPDATE counters SET event = event + 1 RETURNING event").fetchone()
            copy = file_rows.chunk_row(end, [events[number - first]])
            db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", copy)


class _Postgres:
    """Rows of events that were logged by one call."""

    COLUMNS = ("kinds", "lanes", "attempts", "tokens", "numbers", "xs", "ys", "zs", "ids", "types", "workers", "more")

    @classmethod
    def remove(cls, url, event):
        asyncio.run(cls._remove(url, event))

    @classmethod
    def double(cls, url, event):
        asyncio.run(cls._double(url, event))

    @classmethod
    @contextlib.asynccontextmanager
    async def _row(cls, url, event):
        epoch, xid, n, k = map(int, event.offset.split("."))
        connection = await asyncpg.connect(url.partition("?")[0])
        try:
            where = "epoch = $1 AND xid = $2 AND n = $3"
            row = dict(await connection.fetchrow(f"SELECT * FROM holdfast.events WHERE {where}", epoch, xid, n))
            yield connection, where, row, k - 1
        finally:
            await connection.close()

    @classmethod
    async def _remove(cls, url, event):
        async with cls._row(url, event) as (connection, where, row, place):
            key = (row["epoch"], row["xid"], row["n"])
            await connection.execute(f"DELETE FROM holdfast.events WHERE {where}", *key)
            if row["count"] > 1:
                for name in cls.COLUMNS:
                    if row[name] is not None and len(row[name]) > 1:
                        del row[name][place]
                await cls._insert(connection, row | {"count": row["count"] - 1})

    @classmethod
    async def _double(cls, url, event):
        async with cls._row(url, event) as (connection, _, row, place):
            one = {
                name: [row[name][place if len(row[name]) > 1 else 0]] for name in cls.COLUMNS if row[name] is not None
            }
            number = await connection.fetchval("SELECT nextval('holdfast.events_n')")
            await cls._insert(connection, row | one | {"n": number, "count": 1})

    @staticmethod
    async def _insert(connection, row):
        places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
        await connection.execute(f"INSERT INTO holdfast.events ({', '.join(row)}) VALUES ({places})", *row.values())


class _Valkey:
    """Entries of a stream, each under the number of its last event."""

    @staticmethod
    def _entry(url, event):
        options = parse_qs(urlsplit(url).query)
        shards = int(options.get("shards", ["1"])[0])
        shard = shard_of(event.tenant, shards)
        counters = shard_key(options["prefix"][0], shard)
        client = redis.Redis.from_url(url.partition("?")[0])
        number = int(event.offset.split(".")[shard])
        stream = counters.removesuffix("c") + "e"
        ((id_, fields),) = client.xrange(stream, f"{number}-0", "+", count=1)
        assert fields[b"k"] == b"1", "a call of one event logs an entry of one"
        return client, counters, stream, id_, fields

    @classmethod
    def remove(cls, url, event):
        client, _, stream, id_, _ = cls._entry(url, event)
        client.xdel(stream, id_)

    @classmethod
    def double(cls, url, event):
        client, counters, stream, _, fields = cls._entry(url, event)
        number, total = int(client.hincrby(counters, "last", 1)), client.hincrby(counters, "logged", 1)
        client.hset(counters, "log", number)
        client.xadd(stream, fields | {b"n": total}, id=f"{number}-0")


# In a lake ------------------------------------------------------------------------------------------------------


def files_of(lake, day, batch):
    return sorted((lake.path("events") / f"date={day}" / f"batch={batch}").glob("*.parquet"))


def damage_lake(lake, day, batch, position, how, chance):
    """Remove, double or alter the event at this position."""
    for file in files_of(lake, day, batch):
        table = parquet.read_table(file)
        rows = table.to_pylist()
        places = [n for n, row in enumerate(rows) if row["position"] == position]
        if places:
            (place,) = places
            row = rows.pop(place)
            if how == "doubled":
                rows += [row, row]
            elif how == "altered":
                rows.append(_altered(row, chance))
            _write(file, table, rows)
            return
    raise AssertionError(f"no event {position} in batch {batch} of {day}")


def _write(file, table, rows):
    file.unlink()
    parquet.write_table(
        table.from_pylist(rows, schema=table.schema), file, use_deprecated_int96_timestamps=True, store_schema=False
    )


def _altered(row, chance):
    name = chance.choice(sorted(row))
    value = row[name]
    if value is None:
        other = {"priority": 0, "max_attempts": 1, "visible_at": row["at"], "deadline": row["at"]}.get(name, "")
    elif isinstance(value, str):
        other = chance.choice((value + "x", value[1:] if value else "x"))
    else:
        other = value + (timedelta(milliseconds=1) if name in ("at", "visible_at", "deadline") else 1 << 20)
    return row | {name: other}
