"""Limits of sizes and of ages, and the clock of versions."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.testing.fdb import FORCED_RECOVERY_VERSIONS, IDLE_S, SimulatedDatabase
from tests.unit.testing.fdb.doing import code_of, commit, database

SECOND = 1_000_000


async def version_of(db: SimulatedDatabase) -> int:
    return await db.transaction().get_read_version()


async def test_a_write_that_is_too_large_fails_with_the_next_step():
    db = database()
    for key, value, code in ((b"k" * 10_001, b"", 2102), (b"k", b"v" * 100_001, 2103), (b"\xff", b"", 2004)):
        transaction = db.transaction()
        transaction.set(key, value)
        assert await code_of(transaction.get(b"a")) == code
        assert await code_of(transaction.commit()) == code
    transaction = db.transaction()
    transaction.set(b"k" * 10_000, b"v" * 100_000)
    await transaction.commit()
    assert len(db) == 1


async def test_ranges_and_keys_outside_the_program_s_own_are_refused():
    db = database()
    transaction = db.transaction()
    assert await code_of(transaction.get(b"\xff")) == 2004
    assert await code_of(transaction.get_range(b"", b"\xff\xff")) == 2004
    transaction.clear_range(b"b", b"a")
    assert await code_of(transaction.commit()) == 2005


async def test_a_transaction_has_a_size():
    db = database()
    transaction = db.transaction()
    for turn in range(101):
        transaction.set(b"%03d" % turn, b"v" * 100_000)
    assert await transaction.get_approximate_size() > 10_100_000
    assert await code_of(transaction.commit()) == 2101
    assert len(db) == 0
    small = db.transaction()
    small.set_size_limit(1000)
    small.set(b"a", b"v" * 500)
    await small.commit()
    small.reset()
    small.set_size_limit(1000)
    small.add_read_conflict_range(b"a" * 500, b"b" * 500)
    small.set(b"a", b"")
    assert await code_of(small.commit()) == 2101


async def test_overwriting_a_key_counts_once_in_the_commit():
    db = database()
    transaction = db.transaction()
    for _ in range(200):
        transaction.set(b"a", b"v" * 100_000)
    await transaction.commit()
    assert len(db) == 1


async def test_five_seconds_are_too_old():
    db = database(a="1")
    db.advance(IDLE_S)
    fresh, old, blind = db.transaction(), db.transaction(), db.transaction()
    for transaction in (fresh, old):
        await transaction.get(b"a")
        transaction.set(b"a", b"2")
    blind.set(b"b", b"")
    db.advance(4.9)
    await fresh.commit()
    db.advance(0.2)
    assert await code_of(old.commit()) == 1007
    await blind.commit()
    reader = db.transaction()
    await reader.get(b"a")
    db.advance(7.1)  # An idle cluster's versions are up to two seconds behind.
    assert await code_of(reader.get(b"a")) == 1007


async def test_versions_advance_a_million_a_second_and_in_jumps_when_idle():
    db = database()
    await commit(db, a="1")
    first = await version_of(db)
    db.advance(10)
    assert await version_of(db) == first // SECOND * SECOND + 10 * SECOND
    db.advance(1.9)
    assert await version_of(db) == first // SECOND * SECOND + 10 * SECOND
    await commit(db, a="2")
    assert await version_of(db) == first // SECOND * SECOND + int(11.9 * SECOND)


async def test_versions_follow_the_real_clock_unless_frozen():
    db = SimulatedDatabase()
    await commit(db, a="1")
    first = await version_of(db)
    while True:  # Until a millisecond has passed, whatever the machine.
        await commit(db, a="2")
        if await version_of(db) >= first + 1000:
            break


@pytest.mark.parametrize("versions", [100_000_000, FORCED_RECOVERY_VERSIONS])
async def test_a_recovery_jumps_ahead_and_ends_what_was_under_way(versions: int):
    db = database(a="1")
    before = await version_of(db)
    writing, reading = db.transaction(), db.transaction()
    await writing.get(b"a")
    writing.set(b"b", b"")
    await reading.get(b"a")
    db.recover(versions)
    assert await code_of(writing.commit()) == 1007
    assert await code_of(reading.get(b"a")) == 1007
    assert before + versions <= await version_of(db) < before + versions + SECOND
    assert db.pairs() == [(b"a", b"1")]


async def test_a_transaction_times_out_by_the_database_s_clock_and_stays_so_through_retries():
    db = database(a="1")
    transaction = db.transaction()
    transaction.set_timeout(3000)
    await transaction.get(b"a")
    transaction.set(b"a", b"2")
    db.advance(2)
    db.fail_commit(1020)
    error = await failure(transaction.commit())
    await transaction.on_error(error)
    db.advance(1.5)
    assert await code_of(transaction.get(b"a")) == 1031
    assert await code_of(transaction.on_error(error)) == 1031
    transaction.reset()
    assert await transaction.get(b"a") == b"1"


async def test_a_timeout_ends_the_wait_for_a_database_that_does_not_answer():
    db = database(a="1")
    db.stop()
    transaction = db.transaction()
    transaction.set_timeout(1000)
    reading = asyncio.create_task(transaction.get(b"a"))
    await asyncio.sleep(0)
    assert not reading.done()
    db.advance(2)
    assert await code_of(reading) == 1031
    db.start()
    assert await db.transaction().get(b"a") == b"1"


async def failure(step):
    try:
        await step
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError
