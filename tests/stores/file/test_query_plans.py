"""What the statements do inside SQLite: the index they walk, and that their work does not grow with the backlog."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import pytest

from holdfast.core.explain import AHEAD_LIMIT, OTHERS_LIMIT
from holdfast.core.job import Cancel
from holdfast.stores.file import claims, database, reads, sql
from holdfast.stores.file.sql import AHEAD, ANY_VISIBLE, FUTURE, OLDEST_READY, SCHEMA, SOONEST, SQL, VISIBLE
from tests.stores.file.support import complete, new, wish

SOURCE = Path(database.__file__).parent
ARMS = {name for name in SQL if name.endswith("_arm")}
WHOLE = {
    "AHEAD": AHEAD, "VISIBLE": VISIBLE, "ANY_VISIBLE": ANY_VISIBLE, "SOONEST": SOONEST, "FUTURE": FUTURE,
    "OLDEST_READY": OLDEST_READY,
    **{name: text for name, text in SQL.items() if name not in ARMS},
}  # fmt: skip


@pytest.fixture(scope="module")
def empty():
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        yield db


def _plan(db, text):
    rows = db.execute(f"EXPLAIN QUERY PLAN {text}", _blanks(db, text)).fetchall()
    return [detail for *_, detail in rows]


def _blanks(db, text):
    """As many NULLs as the statement has parameters."""
    for count in range(30):
        try:
            db.execute(f"EXPLAIN {text}", [None] * count)
        except sqlite3.ProgrammingError as error:
            assert "number of bindings" in str(error)  # noqa: PT017 - else the next count would not help
        else:
            return [None] * count
    raise AssertionError(f"more than 30 parameters: {text}")


# Statements ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_every_statement_is_valid(empty, name):
    assert _plan(empty, WHOLE[name]) is not None


@pytest.mark.parametrize("name", SQL)
def test_every_statement_is_used(name):
    code = "".join(path.read_text() for path in SOURCE.glob("*.py"))
    assert re.search(rf"[\"']{name}[\"']", code)


def test_every_name_that_the_code_asks_for_exists():
    code = "".join(path.read_text() for path in SOURCE.glob("*.py"))
    asked = set(re.findall(r"SQL\[\"(\w+)\"\]", code)) | set(re.findall(r"\.one\(\"(\w+)\"", code))
    assert len(asked) > 40
    assert asked <= set(SQL)


def test_no_statement_is_defined_twice():
    text = (SOURCE / "queries.sql").read_text()
    names = re.findall(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    assert sorted(names) == sorted(set(names)) == sorted(SQL)


def test_a_query_over_priorities_has_an_arm_for_each():
    assert VISIBLE.count("rank = ") == 10
    assert sql.arms("soonest_arm").count("UNION ALL") == 9


# Plans ---------------------------------------------------------------------------------------------------------------

INDEXES = {
    "VISIBLE": "jobs_waiting",
    "ANY_VISIBLE": "jobs_waiting",
    "SOONEST": "jobs_waiting",
    "FUTURE": "jobs_waiting",
    "OLDEST_READY": "jobs_waiting",
    "expired_leases": "jobs_leased",
    "next_deadline": "jobs_leased",
    "list_waiting": "jobs_waiting",
    "list_leased": "jobs_leased",
    "list_ended": "jobs_ended",
    "list_dead": "jobs_dead",
    "forgotten_jobs": "jobs_forgotten",
    "expired_counts": "jobs_forgotten",
    "find_job": "jobs_id",
    "lanes_in_turns": "lanes_in_turns",
    "lanes_entering": "lanes_entering",
    "next_entering": "lanes_entering",
    "find_lane": "sqlite_autoindex_lanes_1",
    "lane_counts": "sqlite_autoindex_lanes_1",
    "tenant_waiting": "sqlite_autoindex_lanes_1",
    "drop_expired_keys": "keys_expired",
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_query_walks_its_index(empty, name):
    steps = [step for step in _plan(empty, WHOLE[name]) if re.match(r"(SEARCH|SCAN) (jobs|lanes|keys)\b", step)]
    assert steps
    for step in steps:
        if not step.startswith("SEARCH keys USING PRIMARY KEY"):
            assert re.match(rf"SEARCH \w+ USING (COVERING )?INDEX {INDEXES[name]}\b", step)


@pytest.mark.parametrize("name", WHOLE)
def test_no_statement_reads_a_whole_table_that_grows_with_the_backlog(empty, name):
    for step in _plan(empty, WHOLE[name]):
        assert not re.match(r"SCAN (jobs|payloads|events|keys)\b", step)


@pytest.mark.parametrize("name", WHOLE)
def test_no_statement_sorts_jobs(empty, name):
    sorts = [step for step in _plan(empty, WHOLE[name]) if "TEMP B-TREE" in step]
    # Grouping and merging a handful of counts is not sorting jobs. The leases of one millisecond are sorted by seq.
    few = {
        "FUTURE": ["USE TEMP B-TREE FOR GROUP BY"] * 10,
        "expired_counts": ["USE TEMP B-TREE FOR GROUP BY"],
        "list_leased": ["USE TEMP B-TREE FOR RIGHT PART OF ORDER BY"],
        "tenants": ["USE TEMP B-TREE FOR ORDER BY"],
    }
    assert all(step in few.get(name, []) for step in sorts), sorts


@pytest.mark.parametrize("name", ["save_claimed", "save_completed"])
def test_a_batch_is_written_row_by_row_number(empty, name):
    plan = _plan(empty, WHOLE[name])
    assert "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)" in plan
    assert not [step for step in plan if re.match(r"SCAN jobs\b", step)]


# Work ----------------------------------------------------------------------------------------------------------------


class Steps:
    """Counts the steps of SQLite's machine in what the writer does."""

    def __init__(self, store):
        self._db = store._engine._db
        self._count = 0

    def __enter__(self):
        self._db.set_progress_handler(self._step, 1)
        return self

    def __exit__(self, *_):
        self._db.set_progress_handler(None, 1)

    def _step(self):
        self._count += 1

    def take(self):
        count, self._count = self._count, 0
        return count


async def _fill(store, count, *, tenant="acme", delay_ms=0, name="j"):
    for n in range(0, count, 5000):
        jobs = [
            new(f"{name}-{i}", tenant=tenant, delay_ms=delay_ms, priority=i % 10)
            for i in range(n, min(n + 5000, count))
        ]
        await store.enqueue(jobs)


async def _round(store, tenant):
    """The steps of a claim of ten, and of their completion."""
    with Steps(store) as steps:
        held = (await store.claim(wish(10, tenant=tenant))).jobs
        assert len(held) == 10
        claiming = steps.take()
        await store.finish([complete(job) for job in held])
        return claiming, steps.take()


async def test_the_count_of_steps_detects_work_that_grows_with_the_backlog(store):
    def read_all(t):
        return t.db.execute("SELECT count(*) FROM jobs WHERE payload = x'00'").fetchone()

    counts = []
    for n in range(2):
        await _fill(store, 1000, name=f"{n}")
        with Steps(store) as steps:
            await store._engine.change(read_all)
            counts.append(steps.take())
    assert counts[1] > 1.5 * counts[0]


async def test_a_claim_does_the_same_work_whatever_is_waiting_or_delayed(store):
    async def rounds():
        return [*await _round(store, "acme"), *await _round(store, None)]

    await _fill(store, 1000)
    await rounds()
    small = await rounds()
    await _fill(store, 9_000, name="more")
    waiting = await rounds()
    await _fill(store, 10_000, delay_ms=3_600_000, name="delayed")
    delayed = await rounds()
    for few, many, more in zip(small, waiting, delayed, strict=True):
        assert many <= 1.5 * few
        assert more <= 1.5 * few


async def test_a_claim_of_one_tenant_does_the_same_work_whatever_others_have(store):
    await _fill(store, 1000)
    await _round(store, "acme")
    small = await _round(store, "acme")
    await _crowd(store, 1000)
    crowded = await _round(store, "acme")
    assert crowded[0] <= 1.5 * small[0]
    assert crowded[1] <= 1.5 * small[1]


async def test_a_claim_over_all_tenants_does_the_same_work_for_a_thousand_as_for_twenty(store):
    await _crowd(store, 20)
    await _round(store, None)
    small = await _round(store, None)
    await _crowd(store, 1000)
    await _round(store, None)  # The newcomers enter the turns, once.
    crowded = await _round(store, None)
    assert crowded[0] <= 1.5 * small[0]
    assert crowded[1] <= 1.5 * small[1]


async def test_a_claim_over_all_tenants_skips_a_bounded_number_of_tenants_without_work(store, monkeypatch):
    monkeypatch.setattr(claims, "LEAVE_LIMIT", 50)

    async def after_the_work_is_gone(count):
        jobs = [new("x", tenant=f"t{count}-{n}") for n in range(count)]
        await store.enqueue(jobs)
        await store.claim(wish(1, tenant=None))  # All enter the turns.
        await store.cancel([Cancel(job.key) for job in jobs])
        await store.enqueue([new(f"y-{count}", tenant="zz")])
        claimed, counts = [], []
        while not claimed:
            with Steps(store) as steps:
                found = await store.claim(wish(1, tenant=None))
                counts.append(steps.take())
            claimed = found.jobs
            assert claimed or found.next_at == found.now
        assert claimed[0].id == f"y-{count}"
        return counts

    few = await after_the_work_is_gone(100)
    many = await after_the_work_is_gone(1000)
    assert len(few) < len(many)
    assert max(many) <= 1.5 * max(few)


async def test_an_empty_claim_does_the_same_work_whatever_is_delayed_and_leased(store):
    async def empty_claim():
        with Steps(store) as steps:
            assert (await store.claim(wish(10))).jobs == []
            return steps.take()

    await _fill(store, 100, delay_ms=3_600_000)
    small = await empty_claim()
    await _fill(store, 5_000, name="leased")
    await store.claim(wish(5_000))
    await _fill(store, 10_000, delay_ms=3_600_000, name="delayed")
    assert await empty_claim() <= 1.5 * small


async def test_a_claim_does_the_same_work_whatever_has_ended(store):
    await _fill(store, 100)
    await _round(store, "acme")
    small = await _round(store, "acme")
    await _fill(store, 5_000, name="more")
    held = (await store.claim(wish(5_000))).jobs
    await store.finish([complete(job) for job in held])
    await _fill(store, 100, name="last")
    assert (await _round(store, "acme"))[0] <= 1.5 * small[0]


async def test_standing_does_the_same_work_whatever_is_waiting_delayed_or_leased(store):
    """Nor does it grow with the tenants after those that it counts, or with a thousand jobs of one instant."""

    def steps_of(id, tenant="acme"):
        def read(t):
            count = 0

            def step():
                nonlocal count
                count += 1

            t.db.set_progress_handler(step, 1)
            try:
                found = reads.standing(t.db, new(id, tenant=tenant).key)
            finally:
                t.db.set_progress_handler(None, 1)
            return count, found.ahead, found.others

        return store._engine.change(read)

    await _fill(store, AHEAD_LIMIT + 200)
    await store.enqueue([new("last", priority=0)])
    small, *_ = await steps_of("last")
    await _fill(store, 20_000, name="more")
    await _fill(store, 5_000, delay_ms=3_600_000, name="delayed")
    await store.claim(wish(2_000))
    await store.enqueue([new("behind", priority=0)])
    for id in ("last", "behind"):
        steps, ahead, others = await steps_of(id)
        assert (ahead, others) == (AHEAD_LIMIT + 1, 0)
        assert steps <= 1.5 * small
    await _crowd(store, 2 * OTHERS_LIMIT)
    crowded, _, others = await steps_of("last")
    assert others == OTHERS_LIMIT + 1
    await _crowd(store, 20 * OTHERS_LIMIT)
    assert (await steps_of("last"))[0] <= 1.5 * crowded


async def _crowd(store, tenants):
    jobs = [new(f"{n}", tenant=f"t{t}") for t in range(tenants) for n in range(5)]
    for n in range(0, len(jobs), 1000):
        await store.enqueue(jobs[n : n + 1000])
