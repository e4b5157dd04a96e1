"""Which transactions conflict: those that have read what another one has written since."""

from __future__ import annotations

from tests.unit.testing.fdb.doing import commit, conflicts, database, number


async def test_a_read_conflicts_with_a_later_write_of_the_key():
    db = database(a="1", b="1")
    transaction = db.transaction()
    await transaction.get(b"a")
    transaction.set(b"z", b"")
    await commit(db, a="1")  # The same value: a write all the same.
    assert await conflicts(transaction)
    assert dict(db.pairs()).get(b"z") is None


async def test_a_read_does_not_conflict_with_writes_of_other_keys():
    db = database(a="1", b="1")
    transaction = db.transaction()
    await transaction.get(b"a")
    transaction.set(b"z", b"")
    await commit(db, b="2", c="2")
    assert not await conflicts(transaction)


async def test_a_missing_key_that_was_read_conflicts_when_it_comes():
    db = database()
    transaction = db.transaction()
    assert await transaction.get(b"a") is None
    transaction.set(b"z", b"")
    await commit(db, a="1")
    assert await conflicts(transaction)


async def test_writes_alone_never_conflict():
    db = database(a="1")
    first, second = db.transaction(), db.transaction()
    first.set(b"a", b"first")
    second.set(b"a", b"second")
    assert not await conflicts(first)
    assert not await conflicts(second)


async def test_a_snapshot_read_does_not_conflict():
    db = database(a="1", b="1")
    transaction = db.transaction()
    await transaction.get(b"a", snapshot=True)
    await transaction.get_range(b"a", b"z", snapshot=True)
    transaction.set(b"z", b"")
    await commit(db, a="2", b="2")
    assert not await conflicts(transaction)


async def test_a_transaction_without_writes_never_conflicts():
    db = database(a="1")
    transaction = db.transaction()
    await transaction.get(b"a")
    await commit(db, a="2")
    assert not await conflicts(transaction)
    assert transaction.committed_version() == -1


async def test_a_range_that_was_read_conflicts_with_a_new_key_in_it():
    db = database(a="1", c="1")
    for key, conflict in ((b"b", True), (b"a", True), (b"d", False)):
        transaction = db.transaction()
        await transaction.get_range(b"a", b"d")
        transaction.set(b"z", b"")
        await commit(db, **{key.decode(): "2"})
        assert await conflicts(transaction) is conflict, key


async def test_a_range_cut_by_its_limit_conflicts_up_to_the_last_key_returned_unless_it_is_reversed():
    for reverse, key, conflict in (
        (False, "a", True),
        (False, "b", True),
        (False, "bb", False),
        (False, "c", False),
        (True, "c", True),
        (True, "bb", True),
        (True, "aa", True),
        (True, "a", True),
    ):
        db = database(a="1", b="1", c="1")
        transaction = db.transaction()
        assert len(await transaction.get_range(b"a", b"d", limit=2, reverse=reverse)) == 2
        transaction.set(b"z", b"")
        await commit(db, **{key: "2"})
        assert await conflicts(transaction) is conflict, (reverse, key)


async def test_a_read_conflicts_with_a_range_that_is_cleared():
    db = database(b="1")
    transaction = db.transaction()
    await transaction.get(b"b")
    transaction.set(b"z", b"")
    clearing = db.transaction()
    clearing.clear_range(b"a", b"c")
    await clearing.commit()
    assert await conflicts(transaction)
    ranging = db.transaction()
    await ranging.get_range(b"c", b"d")
    ranging.set(b"z", b"")
    clearing = db.transaction()
    clearing.clear_range(b"a", b"c")
    await clearing.commit()
    assert not await conflicts(ranging)


async def test_what_a_transaction_has_written_itself_is_no_read_of_the_database():
    db = database(a="1", b="1")
    transaction = db.transaction()
    transaction.set(b"a", b"mine")
    transaction.clear(b"b")
    await transaction.get(b"a")
    await transaction.get_range(b"a", b"c")
    transaction.add_read_conflict_key(b"a")  # Too late: it is written.
    await commit(db, a="2", b="2")
    assert not await conflicts(transaction)
    assert db.pairs() == [(b"a", b"mine")]


async def test_the_rest_of_a_range_with_own_writes_in_it_conflicts():
    db = database(a="1", b="1")
    transaction = db.transaction()
    transaction.set(b"a", b"mine")
    await transaction.get_range(b"a", b"c")
    await commit(db, b="2")
    assert await conflicts(transaction)


async def test_atomic_operations_on_unread_keys_do_not_conflict():
    db = database()
    first, second = db.transaction(), db.transaction()
    await first.get(b"other")
    await second.get(b"other")
    first.add(b"n", 1)
    second.add(b"n", 2)
    assert not await conflicts(first)
    assert not await conflicts(second)
    assert db.pairs() == [(b"n", number(3))]


async def test_reading_a_key_before_or_after_an_atomic_operation_conflicts():
    for before in (True, False):
        db = database()
        transaction = db.transaction()
        if before:
            await transaction.get(b"n")
        transaction.add(b"n", 1)
        if not before:
            assert await transaction.get(b"n") == number(1)
        other = db.transaction()
        other.add(b"n", 5)
        await other.commit()
        assert await conflicts(transaction)
        assert db.pairs() == [(b"n", number(5))]


async def test_a_range_with_an_own_atomic_operation_in_it_is_read_there():
    db = database()
    transaction = db.transaction()
    transaction.add(b"n", 1)
    await transaction.get_range(b"m", b"o")
    other = db.transaction()
    other.add(b"n", 5)
    await other.commit()
    assert await conflicts(transaction)


async def test_conflicts_can_be_added():
    db = database()
    reading, writing = db.transaction(), db.transaction()
    await reading.get_read_version()
    reading.add_read_conflict_range(b"a", b"c")
    reading.set(b"z", b"")
    writing.add_write_conflict_key(b"b")
    assert not await conflicts(writing)
    assert await conflicts(reading)


async def test_a_write_without_a_conflict_does_not_disturb_readers():
    db = database(a="1", b="1")
    for quiet in (True, False):
        reader = db.transaction()
        await reader.get_range(b"a", b"c")
        reader.set(b"z", b"")
        writer = db.transaction()
        if quiet:
            writer.next_write_no_write_conflict_range()
        writer.set(b"a", b"2")
        await writer.commit()
        assert await conflicts(reader) is not quiet
    writer.reset()
    writer.next_write_no_write_conflict_range()
    writer.set(b"a", b"3")
    writer.set(b"b", b"3")  # Only the first write is meant.
    reader = db.transaction()
    await reader.get(b"b")
    reader.set(b"z", b"")
    await writer.commit()
    assert await conflicts(reader)


async def test_a_versionstamped_key_conflicts_with_readers_of_where_it_comes_to_lie():
    db = database()
    reader = db.transaction()
    await reader.get_range(b"log/", b"log0")
    reader.set(b"z", b"")
    writer = db.transaction()
    writer.set_versionstamped_key(b"log/" + bytes(10) + (4).to_bytes(4, "little"), b"")
    await writer.commit()
    assert await conflicts(reader)
