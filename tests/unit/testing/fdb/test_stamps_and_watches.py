"""Versionstamps and watches."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.testing.fdb import Faults
from holdfast.testing.fdb.watches import MAX_WATCHES
from tests.unit.testing.fdb.doing import code_of, commit, database, finish

OFFSET_4 = (4).to_bytes(4, "little")
LOG = b"log/" + bytes(10) + OFFSET_4


async def test_a_versionstamp_is_the_version_and_the_place_in_the_batch():
    db = database()
    transaction = db.transaction()
    transaction.set_versionstamped_key(LOG[:-4] + b"/tail" + OFFSET_4, b"v")
    transaction.set_versionstamped_value(b"at", b"at: " + bytes(10) + b"!" + OFFSET_4)
    stamp = transaction.versionstamp()
    await transaction.commit()
    assert await stamp == transaction.committed_version().to_bytes(8, "big") + bytes(2)
    assert db.pairs() == [(b"at", b"at: " + await stamp + b"!"), (b"log/" + await stamp + b"/tail", b"v")]


async def test_commit_order_is_the_order_of_versionstamps():
    db = database(faults=Faults(shared_version=0.5))
    for turn in range(40):
        transaction = db.transaction()
        transaction.set_versionstamped_key(LOG, str(turn).encode())
        await transaction.commit()
    assert [value for _, value in db.pairs()] == [str(turn).encode() for turn in range(40)]
    versions = {key[4:12] for key, _ in db.pairs()}
    assert 5 < len(versions) < 35


async def test_where_a_versionstamp_may_come_to_lie_cannot_be_read():
    db = database(k="1")
    transaction = db.transaction()
    transaction.set_versionstamped_key(LOG, b"")
    transaction.set_versionstamped_value(b"v", bytes(14))
    assert await code_of(transaction.get(b"v")) == 1036
    assert await code_of(transaction.get(b"log/\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00")) == 1036
    assert await code_of(transaction.get_range(b"k", b"m")) == 1036
    assert await code_of(transaction.get_range(b"m", b"z", reverse=True)) == 1036
    assert await transaction.get_range(b"k", b"m", limit=1) == [(b"k", b"1")]
    assert await transaction.get(b"k") == b"1"
    assert await code_of(transaction.commit()) == 1036
    assert len(db) == 1


async def test_clearing_a_versionstamped_value_makes_it_readable():
    db = database()
    transaction = db.transaction()
    transaction.set_versionstamped_value(b"v", bytes(14))
    transaction.set(b"v", b"over")
    assert await code_of(transaction.get(b"v")) == 1036
    transaction.clear(b"v")
    assert await transaction.get(b"v") is None
    transaction.set_versionstamped_key(LOG, b"")
    transaction.clear_range(b"log/", b"log0")
    assert await transaction.get_range(b"a", b"z") == []


@pytest.mark.parametrize("text", [b"", b"\x00\x00\x00\x00", bytes(10) + b"\x01\x00\x00\x00", bytes(10) + b"\xff" * 4])
async def test_a_versionstamp_without_room_is_an_invalid_operation(text: bytes):
    db = database()
    transaction = db.transaction()
    transaction.set_versionstamped_value(b"v", text)
    assert await code_of(transaction.commit()) == 2000
    transaction.reset()
    transaction.set_versionstamped_key(text, b"v")
    assert await code_of(transaction.get(b"a")) == 2000


async def test_without_a_commit_of_writes_there_is_no_versionstamp():
    db = database(a="1")
    reading = db.transaction()
    stamp = reading.versionstamp()
    await reading.commit()
    assert await code_of(stamp) == 2021
    conflicting = db.transaction()
    stamp = conflicting.versionstamp()
    await conflicting.get(b"a")
    conflicting.set(b"a", b"2")
    await commit(db, a="3")
    assert await code_of(conflicting.commit()) == 1020
    assert await code_of(stamp) == 2020


async def test_a_watch_ends_when_the_key_changes():
    db = database(a="1", b="1")
    transaction = db.transaction()
    watch = transaction.watch(b"a")
    await transaction.commit()
    await commit(db, b="2")
    await commit(db, a="1")
    assert not watch.done
    await commit(db, a="2")
    assert watch.done
    await watch
    assert len(db.watches) == 0


async def test_a_watch_ends_when_the_key_is_cleared_or_comes():
    db = database(a="1")
    transaction = db.transaction()
    going, coming = transaction.watch(b"a"), transaction.watch(b"n")
    await transaction.commit()
    clearing = db.transaction()
    clearing.clear_range(b"", b"\xff")
    clearing.add(b"n", 1)
    await clearing.commit()
    await asyncio.gather(going, coming)


async def test_a_watch_is_armed_by_the_commit_with_the_value_that_was_read():
    db = database(a="1")
    transaction = db.transaction()
    watch = transaction.watch(b"a")
    await commit(db, a="2")
    assert not watch.done
    await transaction.commit()
    assert watch.done


async def test_own_writes_before_a_watch_are_its_value_and_those_after_end_it():
    db = database(a="1")
    transaction = db.transaction()
    transaction.set(b"a", b"2")
    watch = transaction.watch(b"a")
    await transaction.commit()
    assert not watch.done
    await commit(db, a="1")
    assert watch.done
    second = db.transaction()
    watch, other = second.watch(b"a"), second.watch(b"b")
    second.set(b"a", b"1")
    assert not watch.done
    second.set(b"a", b"3")
    second.add(b"b", 1)
    assert watch.done
    assert other.done


async def test_a_watch_is_a_read():
    db = database(a="1")
    transaction = db.transaction()
    watch = transaction.watch(b"a")
    transaction.set(b"z", b"")
    await commit(db, a="2")
    assert await code_of(transaction.commit()) == 1020
    assert await code_of(watch) == 1020


async def test_a_watch_fails_with_its_transaction():
    db = database(a="1")
    transaction = db.transaction()
    watch = transaction.watch(b"a")
    transaction.reset()
    assert await code_of(watch) == 1025
    watch = transaction.watch(b"a")
    transaction.set(b"z", b"")
    db.fail_commit(1021, applied=True)
    assert await code_of(transaction.commit()) == 1021
    assert await code_of(watch) == 1021
    watch = db.transaction().watch(b"a")  # Its transaction is gone.
    assert await code_of(watch) == 1025
    assert len(db.watches) == 0


async def test_the_watches_of_a_cancelled_transaction_end_when_it_is_reset():
    db = database(a="1")
    transaction = db.transaction()
    watch = transaction.watch(b"a")
    transaction.cancel()
    assert not watch.done
    transaction.reset()
    assert await code_of(watch) == 1025


async def test_there_is_a_limit_to_watches():
    db = database()
    transaction = db.transaction()
    watches = [transaction.watch(b"a") for _ in range(MAX_WATCHES)]
    assert await code_of(transaction.watch(b"a")) == 1032
    watches[0].cancel()
    assert await code_of(watches[0]) == 1025
    assert not transaction.watch(b"a").done


async def test_a_watch_may_end_without_a_change():
    db = database(faults=Faults(spurious_watch=1.0), a="1")
    transaction = db.transaction()
    watch = transaction.watch(b"a")
    await transaction.commit()
    await commit(db, b="1")
    assert watch.done
    assert dict(db.pairs())[b"a"] == b"1"


async def test_a_task_that_stops_waiting_leaves_the_watch_to_others():
    db = database(a="1")
    transaction = db.transaction()
    watch = transaction.watch(b"a")
    await transaction.commit()

    async def wait() -> str:
        await watch
        return "changed"

    tasks = [asyncio.create_task(wait()) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await commit(db, a="2")
    assert await tasks[1] == "changed"


def test_a_watch_wakes_a_task_of_another_event_loop():
    db = database(a="1")
    transaction = db.transaction()
    watch = transaction.watch(b"a")
    finish(transaction.commit())
    waiting, seen = threading.Event(), []

    async def wait() -> None:
        asyncio.get_running_loop().call_soon(waiting.set)
        await watch
        seen.append("changed")

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    waiting.wait()
    finish(commit(db, a="2"))
    thread.join(30)
    assert seen == ["changed"]
