"""The log in pieces: whatever the sizes, together they are the log, each event once and in order. [EVENT-2]"""

import asyncio
import json
from itertools import chain, product
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from holdfast.core import events
from holdfast.core.errors import EventsTrimmed
from holdfast.opening import open_store
from holdfast.pipeline import reader
from holdfast.pipeline.schemas import EVENTS
from tests.log import all_events
from tests.pipeline.traffic import as_rows, make_traffic


@pytest.fixture
async def store(url):
    store = await open_store(url)
    yield store
    await store.close()


async def read_piece(store, log_range, limit):
    read = []
    while True:
        page = await store.read(log_range, limit)
        read += page.events
        if not page.more:
            assert page.next == log_range.end
            return read
        assert page.next != log_range.after
        log_range = replace(log_range, after=page.next)


def without_offset(event):
    return replace(event, offset="")


def reported(found):
    """Events without their order, and without offsets: those of a sharded log depend on how it is read."""
    return sorted(map(repr, map(without_offset, found)))


def none(gap):
    """What to do with gaps where there are none."""
    raise AssertionError(gap)


@pytest.mark.parametrize("large", [2, events.LARGE])
async def test_the_ranges_of_a_split_log_are_the_whole_log(store, large, monkeypatch):
    # Batches as they are, with one value for all in some columns, or put together.
    monkeypatch.setattr(events, "LARGE", large)
    await make_traffic(store, 40)
    whole = await all_events(store)
    for size, limit in product([1, 7, 1000], [1, 5, 1000]):
        await check_pieces(store, whole, size, limit)


def ms(instant):
    return None if instant is None else round(instant.timestamp() * 1000)


async def check_pieces(store, whole, size, limit):
    start, end = await store.bounds(None)
    pieces = await store.split(start, end, size)
    read = [await read_piece(store, piece, limit) for piece in pieces]
    assert reported(chain.from_iterable(read)) == reported(whole)
    for shard in {piece.shard for piece in pieces}:
        mine = [event for piece, found in zip(pieces, read, strict=True) if piece.shard == shard for event in found]
        jobs = {(event.tenant, event.queue, event.job_id) for event in mine}
        of_shard = [event for event in whole if (event.tenant, event.queue, event.job_id) in jobs]
        assert list(map(without_offset, mine)) == list(map(without_offset, of_shard))


@pytest.mark.parametrize("large", [2, events.LARGE])
@pytest.mark.parametrize("page", [5, 1000])
async def test_the_rows_of_all_ranges_are_the_events(store, url, page, large, monkeypatch):
    monkeypatch.setattr(events, "LARGE", large)
    monkeypatch.setattr(reader, "PAGE", page)
    await make_traffic(store, 40)
    read = []
    for piece in await store.split(*await store.bounds(None), 30):
        batches = await asyncio.to_thread(list, reader.read_range(url, piece, EVENTS, reader.EventFilter(), none))
        rows = [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]
        positions = [row.position for row in rows]
        assert positions == sorted(set(positions))
        assert {row.shard for row in rows} == {piece.shard}
        assert rows[-1].offset == piece.end
        for row in rows:
            said = json.loads(row.data)
            error = said.get("error", {})
            assert (row.priority, row.max_attempts) == (said.get("priority"), said.get("max_attempts"))
            assert (ms(row.visible_at), ms(row.deadline)) == (said.get("visible_at"), said.get("deadline"))
            assert (row.reason, row.error_message) == (said.get("reason"), error.get("message"))
            assert (row.error_type, row.fingerprint) == (error.get("type"), error.get("fingerprint"))
        read += rows
    assert as_rows(read) == as_rows(await all_events(store))


async def test_only_the_selected_events_are_read(store, url, monkeypatch):
    monkeypatch.setattr(events, "LARGE", 2)
    await make_traffic(store, 40)
    whole = await all_events(store)
    latest = max(event.at for event in whole)
    for wanted, kept in (
        (reader.EventFilter(tenant=frozenset({"acme"})), lambda event: event.tenant == "acme"),
        (reader.EventFilter(kind=frozenset({"claimed", "failed"})), lambda event: event.kind in ("claimed", "failed")),
        (reader.EventFilter(queue=frozenset({"mail"}), until=latest), lambda e: e.queue == "mail" and e.at < latest),
        (reader.EventFilter(job_id=frozenset({whole[0].job_id})), lambda event: event.job_id == whole[0].job_id),
        (reader.EventFilter(since=latest + 1), lambda _: False),
    ):
        read = []
        for piece in await store.split(*await store.bounds(None), 30):
            batches = await asyncio.to_thread(list, reader.read_range(url, piece, EVENTS, wanted, none))
            read += [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]
        assert as_rows(read) == as_rows(filter(kept, whole))


async def test_a_log_read_in_short_steps_while_it_grows_is_read_once(store):
    async def grow():
        for seed in range(6):
            await make_traffic(store, 20, seed)

    growing = asyncio.create_task(grow())
    read, place = [], None
    while True:
        ended = growing.done()
        start, end = await store.bounds(place, 13)
        for piece in await store.split(start, end, 5):
            read += await read_piece(store, piece, 3)
        if ended and start == end:
            break
        place = end
        await asyncio.sleep(0)
    await growing
    assert reported(read) == reported(await all_events(store))


async def test_steps_are_about_as_long_as_asked_for(store):
    await make_traffic(store, 100)
    count = len(await all_events(store))
    place, sizes = None, []
    while True:
        start, end = await store.bounds(place, 50)
        if start == end:
            break
        sizes.append(sum([len(await read_piece(store, piece, 1000)) for piece in await store.split(start, end, 1000)]))
        place = end
    assert sum(sizes) == count
    assert max(sizes) <= 50 + 3 * 40  # in each shard up to the end of a chunk


async def test_a_trimmed_log_raises_and_the_rest_can_be_read(url):
    store = await open_store(url + ("&" if "?" in url else "?") + "keep_events=0")
    try:
        start, _ = await store.bounds(None)
        await make_traffic(store, 40)
        end = await store.last_offset()
        while (await store.prune(1000)).more:
            pass
        await make_traffic(store, 5, seed=2)
        with pytest.raises(EventsTrimmed):
            await store.bounds(start)
        with pytest.raises(EventsTrimmed) as gap:
            await store.split(start, await store.last_offset(), 10)
        rest = await store.split(gap.value.to, await store.last_offset(), 10)
        read = [event for piece in rest for event in await read_piece(store, piece, 10)]
        assert reported(read) == reported(await all_events(store))
        # Where all that was to be read is gone, nothing is left of it.
        assert all([await read_piece(store, piece, 10) == [] for piece in await store.split(gap.value.to, end, 10)])
    finally:
        await store.close()
