"""Chunks of the log: events of one call, packed in columns; and as they were packed before there were columns."""

import contextlib
import sqlite3

import pytest
from msgspec import msgpack

from holdfast.stores.file import rows
from tests.stores.file.support import key, new, opened, wish

NOW = 1_900_000_000_000


def logged(n, *, alike):
    """An event of a call whose events are all alike but for the job, or not alike at all."""
    other = 0 if alike else n
    data = {"priority": other % 10, "max_attempts": 4, "visible_at": NOW + other}
    return NOW + other, "enqueued", 1 + other % 2, f"job-{n}", f"type-{other % 3}", 0, 0, f"w{other}", data


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("count", [1, 9, 10, 11, 15, 16, 300])
def test_events_come_out_as_they_were_put_in(count, alike):
    events = [logged(n, alike=alike) for n in range(count)]
    assert rows.unpack_events(rows.pack_events(events)) == events
    before = msgpack.encode(events)
    assert rows.unpack_events(before) == events
    names = {1: ("acme", "mail"), 2: ("globex", "mail")}.__getitem__
    columns = rows.to_columns(7, rows.pack_events(events), names)
    assert columns.events() == rows.to_columns(7, before, names).events()
    assert [event.offset for event in columns.events()] == [str(n) for n in range(7, 7 + count)]


def test_what_all_events_of_a_call_have_is_there_once():
    alike, unlike = (rows.pack_events([logged(n, alike=alike) for n in range(100)]) for alike in (True, False))
    assert len(alike) < len(unlike) / 4


async def test_a_log_that_was_begun_before_there_were_columns_goes_on(directory):
    async with opened(directory) as store:
        await store.enqueue([new("a"), new("b")])
    with contextlib.closing(sqlite3.connect(directory / "holdfast.db", isolation_level=None)) as db:
        for last, chunk in db.execute("SELECT last, chunk FROM events").fetchall():
            old = msgpack.encode(rows.unpack_events(chunk))
            assert old != chunk
            db.execute("UPDATE events SET chunk = ? WHERE last = ?", (old, last))
    async with opened(directory) as store:
        claimed = await store.claim(wish())
        page = await store.events(None, None, 100)
        assert [event.kind for event in page.events] == ["enqueued", "enqueued", *["claimed"] * len(claimed.jobs)]
        (piece,) = await store.split(*await store.reach(None), 100)
        assert (await store.read(piece, 100)).events == page.events
        assert page.events[0].job_id == key("a").id
