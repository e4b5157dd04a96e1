"""Faults: planned by a test, or drawn from a seed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.stores.foundationdb.database import RETRYABLE, FdbError
from holdfast.testing.fdb import SOME, Faults, SimulatedDatabase, drop_simulation, open_simulation
from tests.unit.testing.fdb.doing import code_of, commit, database


@pytest.mark.parametrize("applied", [True, False])
async def test_an_unknown_result_was_applied_or_was_not(applied: bool):
    db = database()
    db.fail_commit(1021, applied=applied, nth=2)
    await commit(db, a="1")
    assert await code_of(commit(db, b="1")) == 1021
    await commit(db, c="1")
    assert [key for key, _ in db.pairs()] == ([b"a", b"b", b"c"] if applied else [b"a", b"c"])
    assert db.counts == {"commits": 2, "1021": 1}


async def test_on_error_begins_again_after_what_can_be_retried():
    db = database(a="1")
    for code in sorted(RETRYABLE):
        transaction = db.transaction()
        transaction.set(b"a", b"lost")
        await transaction.on_error(FdbError(code))
        assert await transaction.get(b"a") == b"1"
    for code in (2101, 2102, 1036, 1031, 1025, 2017):
        transaction = db.transaction()
        assert await code_of(transaction.on_error(FdbError(code))) == code
        assert await code_of(transaction.get(b"a")) == 1025


async def test_a_commit_cancelled_by_its_task_was_applied_or_was_not():
    seen = set()
    for turns in range(6):
        db = database(faults=Faults(slow=2), seed=4)
        task = asyncio.create_task(commit(db, a="1"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done = await asyncio.gather(task, return_exceptions=True)
        seen.add((len(db), isinstance(done[0], asyncio.CancelledError)))
    assert {(0, True), (1, True), (1, False)} == seen


@pytest.mark.parametrize(
    "fault, codes",
    [
        ("conflict", {1020}),
        ("too_old", {1007}),
        ("unknown_applied", {1021}),
        ("unknown_not_applied", {1021}),
        ("behind", {1009, 1037}),
        ("refused", {1213, 1078}),
    ],
)
async def test_each_fault_comes_as_often_as_it_should(fault: str, codes: set[int]):
    db = database(faults=Faults(**{fault: 0.5}))
    seen: list[int] = []
    for _ in range(200):
        transaction = db.transaction()
        try:
            await transaction.get(b"a")
            transaction.set(b"a", b"")
            await transaction.commit()
        except FdbError as error:
            seen.append(error.code)
    assert set(seen) == codes
    assert 60 < len(seen) < 170  # A transaction can meet "too old" at its read and at its commit.


async def history(seed: int) -> tuple[list[tuple[bytes, bytes]], dict[str, int], list[str]]:
    db = SimulatedDatabase(seed=seed, faults=SOME, frozen=True)
    log: list[str] = []

    async def work(worker: int) -> None:
        for turn in range(20):
            transaction = db.transaction()
            while True:
                try:
                    value = int(await transaction.get(b"n") or b"0")
                    transaction.set(b"n", b"%d" % (value + 1))
                    await transaction.commit()
                    log.append(f"{worker}.{turn}")
                    break
                except FdbError as error:
                    log.append(f"{worker}:{error.code}")
                    await transaction.on_error(error)

    await asyncio.gather(*(work(worker) for worker in range(5)))
    return db.pairs(), dict(db.counts), log


async def test_a_seed_decides_everything():
    assert await history(7) == await history(7)
    assert await history(7) != await history(8)


async def test_the_same_work_meets_every_fault_and_ends():
    kinds: set[str] = set()
    for seed in range(12):
        pairs, counts, _ = await history(seed)
        kinds |= counts.keys()
        # Each of the 100 additions is there once, or more often after an unknown result.
        assert 100 <= int(pairs[0][1]) <= 100 + counts.get("1021", 0)
    assert {"commits", "1020", "1021", "1007"} <= kinds


def test_threads_share_a_database_by_name():
    db = open_simulation("shared")
    assert open_simulation("shared") is db
    assert open_simulation("another") is not db

    async def add() -> None:
        for _ in range(100):
            transaction = open_simulation("shared").transaction()
            while True:
                try:
                    value = int(await transaction.get(b"n") or b"0")
                    transaction.set(b"n", b"%d" % (value + 1))
                    await transaction.commit()
                    break
                except FdbError as error:
                    await transaction.on_error(error)

    threads = [threading.Thread(target=asyncio.run, args=(add(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db.pairs() == [(b"n", b"400")]
    drop_simulation("shared")
    drop_simulation("another")
    assert open_simulation("shared") is not db
    drop_simulation("shared")
