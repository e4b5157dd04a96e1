"""The log in pieces: whatever the sizes, together they are the log, each event once and in order. [EVENT-2]"""

import asyncio
from itertools import chain, product

import pytest
from msgspec.structs import replace

from holdfast.core.errors import EventsTrimmed
from holdfast.store import open_store
from tests.log import all_events
from tests.pipeline.traffic import make_traffic


@pytest.fixture
async def store(url):
    store = await open_store(url)
    yield store
    await store.close()


async def read_piece(store, stretch, limit):
    events = []
    while True:
        page = await store.read(stretch, limit)
        events += page.events
        if not page.more:
            assert page.next == stretch.end
            return events
        assert page.next != stretch.after
        stretch = replace(stretch, after=page.next)


def without_offset(event):
    return replace(event, offset="")


def told(events):
    """Events without their order, and without offsets: those of a sharded log depend on how it is read."""
    return sorted(map(repr, map(without_offset, events)))


async def test_the_pieces_of_the_log_are_the_log(store):
    await make_traffic(store, 40)
    whole = await all_events(store)
    for size, limit in product([1, 7, 1000], [1, 5, 1000]):
        await check_pieces(store, whole, size, limit)


async def check_pieces(store, whole, size, limit):
    start, end = await store.reach(None)
    pieces = await store.split(start, end, size)
    read = [await read_piece(store, piece, limit) for piece in pieces]
    assert told(chain.from_iterable(read)) == told(whole)
    for shard in {piece.shard for piece in pieces}:
        mine = [event for piece, events in zip(pieces, read, strict=True) if piece.shard == shard for event in events]
        jobs = {(event.tenant, event.queue, event.job_id) for event in mine}
        of_shard = [event for event in whole if (event.tenant, event.queue, event.job_id) in jobs]
        assert list(map(without_offset, mine)) == list(map(without_offset, of_shard))


async def test_a_log_read_in_short_steps_while_it_grows_is_read_once(store):
    async def grow():
        for seed in range(6):
            await make_traffic(store, 20, seed)

    growing = asyncio.create_task(grow())
    read, place = [], None
    while True:
        ended = growing.done()
        start, end = await store.reach(place, 13)
        for piece in await store.split(start, end, 5):
            read += await read_piece(store, piece, 3)
        if ended and start == end:
            break
        place = end
        await asyncio.sleep(0)
    await growing
    assert told(read) == told(await all_events(store))


async def test_steps_are_about_as_long_as_asked_for(store):
    await make_traffic(store, 100)
    count = len(await all_events(store))
    place, sizes = None, []
    while True:
        start, end = await store.reach(place, 50)
        if start == end:
            break
        sizes.append(sum([len(await read_piece(store, piece, 1000)) for piece in await store.split(start, end, 1000)]))
        place = end
    assert sum(sizes) == count
    assert max(sizes) <= 50 + 3 * 40  # in each shard up to the end of a chunk


async def test_a_cut_log_is_told_and_the_rest_can_be_read(url):
    store = await open_store(url + ("&" if "?" in url else "?") + "keep_events=0")
    try:
        start, _ = await store.reach(None)
        await make_traffic(store, 40)
        end = await store.last_offset()
        while (await store.prune(1000)).more:
            pass
        await make_traffic(store, 5, seed=2)
        with pytest.raises(EventsTrimmed):
            await store.reach(start)
        with pytest.raises(EventsTrimmed) as gap:
            await store.split(start, await store.last_offset(), 10)
        rest = await store.split(gap.value.to, await store.last_offset(), 10)
        read = [event for piece in rest for event in await read_piece(store, piece, 10)]
        assert told(read) == told(await all_events(store))
        # Where all that was to be read is gone, nothing is left of it.
        assert all([await read_piece(store, piece, 10) == [] for piece in await store.split(gap.value.to, end, 10)])
    finally:
        await store.close()
