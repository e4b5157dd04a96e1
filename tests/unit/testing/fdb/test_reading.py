"""What a transaction sees: one moment of the database, and its own writes over it."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.testing.fdb.doing import code_of, commit, database, number
from tests.unit.testing.fdb.model import do


async def test_all_reads_are_of_one_moment():
    db = database(a="1", b="1")
    reader = db.transaction()
    assert await reader.get(b"a") == b"1"
    await commit(db, a="2", b="2", c="2")
    assert await reader.get(b"b") == b"1"
    assert await reader.get_range(b"a", b"z") == [(b"a", b"1"), (b"b", b"1")]
    later = db.transaction()
    assert await later.get_range(b"a", b"z") == [(b"a", b"2"), (b"b", b"2"), (b"c", b"2")]


async def test_a_moment_outlives_the_keys_that_are_cleared_after_it():
    db = database(a="1", b="1", c="1")
    reader = db.transaction()
    await reader.get_read_version()
    for _ in range(3):
        clearing = db.transaction()
        clearing.clear_range(b"a", b"z")
        await clearing.commit()
        await commit(db, b="again")
    assert await reader.get_range(b"a", b"z", reverse=True) == [(b"c", b"1"), (b"b", b"1"), (b"a", b"1")]
    assert db.pairs() == [(b"b", b"again")]


async def test_a_commit_is_visible_to_the_next_transaction():
    db = database()
    for turn in range(5):
        await commit(db, a=str(turn))
        assert await db.transaction().get(b"a") == str(turn).encode()


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_transaction_sees_its_own_writes(snapshot: bool):
    db = database(a="1", b="1", c="1")
    transaction = db.transaction()
    transaction.set(b"b", b"mine")
    transaction.clear(b"c")
    transaction.set(b"d", b"new")
    assert await transaction.get(b"b", snapshot=snapshot) == b"mine"
    assert await transaction.get(b"c", snapshot=snapshot) is None
    assert await transaction.get_range(b"a", b"z", snapshot=snapshot) == [(b"a", b"1"), (b"b", b"mine"), (b"d", b"new")]
    assert await transaction.get_range(b"a", b"z", limit=2, reverse=True, snapshot=snapshot) == [
        (b"d", b"new"),
        (b"b", b"mine"),
    ]
    assert db.pairs() == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]


async def test_a_range_begins_with_its_first_key_and_ends_before_its_end():
    db = database(a="1", b="2", c="3")
    transaction = db.transaction()
    assert await transaction.get_range(b"a", b"c") == [(b"a", b"1"), (b"b", b"2")]
    assert await transaction.get_range(b"b", b"b") == []
    assert await transaction.get_range(b"c", b"a") == []
    assert await transaction.get_range(b"a", b"z", limit=1) == [(b"a", b"1")]


async def test_a_cleared_range_hides_what_was_there_and_shows_what_is_set_after():
    db = database(a="1", b="1", c="1")
    transaction = db.transaction()
    transaction.set(b"a", b"lost")
    transaction.clear_range(b"a", b"c")
    transaction.set(b"b", b"kept")
    assert await transaction.get_range(b"a", b"z") == [(b"b", b"kept"), (b"c", b"1")]
    await transaction.commit()
    assert db.pairs() == [(b"b", b"kept"), (b"c", b"1")]


async def test_atomic_operations_are_seen_and_applied():
    db = database(text="m", gone="x", kept="x")
    transaction = db.transaction()
    transaction.add(b"count", 5)
    transaction.add(b"count", -7)
    transaction.byte_max(b"text", b"z")
    transaction.byte_min(b"low", b"a")
    transaction.compare_and_clear(b"gone", b"x")
    transaction.compare_and_clear(b"kept", b"y")
    transaction.max(b"largest", b"\x00\x01")
    transaction.max(b"largest", b"\xff\x00")
    transaction.min(b"least", b"\x00\x01")
    transaction.min(b"least", b"\xff\x00")
    want = [
        (b"count", number(-2)),
        (b"kept", b"x"),
        (b"largest", b"\x00\x01"),
        (b"least", b"\xff\x00"),
        (b"low", b"a"),
        (b"text", b"z"),
    ]
    assert await transaction.get_range(b"", b"\xff") == want
    await transaction.commit()
    assert db.pairs() == want


async def test_an_atomic_operation_takes_the_length_of_its_operand():
    db = database()
    transaction = db.transaction()
    transaction.set(b"long", b"\x01\x01\x01\x01\x01\x01\x01\x01\x01")
    transaction.set(b"short", b"\xff")
    transaction.set(b"empty", b"")
    await transaction.commit()
    transaction = db.transaction()
    transaction.add(b"long", 1)
    transaction.add(b"short", 1)
    transaction.max(b"empty", b"\x00\x00")
    transaction.min(b"missing", b"\x05\x00")
    await transaction.commit()
    assert dict(db.pairs()) == {
        b"long": b"\x02\x01\x01\x01\x01\x01\x01\x01",
        b"short": b"\x00\x01\x00\x00\x00\x00\x00\x00",
        b"empty": b"\x00\x00",
        b"missing": b"\x05\x00",
    }


async def test_operations_of_one_kind_are_applied_one_by_one_where_that_differs():
    db = database(both="y")
    transaction = db.transaction()
    transaction.set(b"long", b"\x00\x00\x01")
    await transaction.commit()
    transaction = db.transaction()
    transaction.compare_and_clear(b"both", b"x")
    transaction.compare_and_clear(b"both", b"y")
    transaction.max(b"long", b"\x05\x00\x00\x00")
    transaction.max(b"long", b"\x03\x00")  # 65,536 in two bytes is 0.
    assert await transaction.get_range(b"", b"\xff") == [(b"long", b"\x03\x00")]
    await transaction.commit()
    assert db.pairs() == [(b"long", b"\x03\x00")]


async def test_an_atomic_operation_after_a_clear_begins_at_nothing():
    db = database()
    first = db.transaction()
    first.add(b"n", 40)
    await first.commit()
    second = db.transaction()
    second.clear(b"n")
    second.add(b"n", 2)
    assert await second.get(b"n") == number(2)
    await second.commit()
    assert db.pairs() == [(b"n", number(2))]


async def test_an_unfinished_transaction_changes_nothing():
    db = database(a="1")
    transaction = db.transaction()
    transaction.set(b"a", b"2")
    transaction.reset()
    assert await transaction.get(b"a") == b"1"
    await transaction.commit()
    cancelled = db.transaction()
    cancelled.set(b"a", b"3")
    cancelled.cancel()
    assert await code_of(cancelled.get(b"a")) == 1025
    assert await code_of(cancelled.commit()) == 1025
    cancelled.reset()
    assert await cancelled.get(b"a") == b"1"


async def test_what_a_transaction_has_written_itself_is_read_without_a_version():
    for reads, waits in (
        (("get", b"a"), False),
        (("get", b"b"), True),
        (("get", b"c"), False),
        (("get_range", b"a", b"a\x00", 0, False), False),
        (("get_range", b"b", b"a", 0, False), False),
        (("get_range", b"a", b"c", 0, False), True),
        (("get_range", b"a", b"c", 1, False), False),
        (("get_range", b"a", b"e", 1, True), False),
        (("get_range", b"a", b"e", 2, True), True),
        (("get_range", b"c", b"d", 0, False), False),
    ):
        db = database(x="1")
        transaction = db.transaction()
        transaction.set(b"a", b"1")
        transaction.add(b"b", 1)
        transaction.clear_range(b"c", b"e")
        transaction.set(b"d", b"1")
        await do(transaction, reads)
        await commit(db, x="2")
        assert await transaction.get(b"x") == (b"1" if waits else b"2"), reads


async def test_a_transaction_whose_read_has_failed_cannot_commit():
    db = database()
    transaction = db.transaction()
    transaction.set_versionstamped_value(b"v", bytes(14))
    assert await code_of(transaction.get(b"v")) == 1036
    assert await code_of(transaction.commit()) == 1036
    transaction.reset()
    assert await code_of(transaction.get(b"\xff")) == 2004  # This one never began.
    transaction.set(b"a", b"1")
    await transaction.commit()


async def test_the_error_of_a_write_comes_before_all_others():
    db = database()
    transaction = db.transaction()
    transaction.set(b"v", bytes(100_001))
    transaction.cancel()
    assert await code_of(transaction.get(b"\xff")) == 2103
    assert await code_of(transaction.commit()) == 2103


async def test_a_read_that_was_under_way_at_a_reset_is_cancelled():
    db = database(a="1")
    transaction = db.transaction()
    reading = asyncio.create_task(transaction.get(b"a"))
    await asyncio.sleep(0)
    transaction.reset()
    assert await code_of(reading) == 1025
    assert await transaction.get(b"a") == b"1"


async def test_a_transaction_is_not_used_after_its_commit():
    db = database(a="1")
    transaction = db.transaction()
    transaction.set(b"a", b"2")
    await transaction.commit()
    assert await code_of(transaction.get(b"a")) == 2017
    transaction.reset()
    assert await transaction.get(b"a") == b"2"
