"""A tenant's page of events decodes no chunks of other tenants, and scans a bounded part of the log. [EVENT-3]"""

import pytest

from holdfast.stores.file import reads, rows
from tests.stores.file.support import new, opened


@pytest.fixture
def unpacked(monkeypatch):
    """How many events each chunk had that was decoded."""
    found, unpack = [], rows.unpack_events

    def count(chunk):
        events = unpack(chunk)
        found.append(len(events))
        return events

    monkeypatch.setattr(rows, "unpack_events", count)
    return found


async def enqueue(store, name, count, tenant):
    await store.enqueue([new(f"{name}-{number}", tenant=tenant) for number in range(count)])


async def test_chunks_of_others_are_not_decoded(directory, unpacked):
    async with opened(directory) as store:
        for number in range(20):
            await enqueue(store, number, 10, "other")
        await enqueue(store, "mine", 3, "mine")
        await enqueue(store, "last", 10, "other")
        page = await store.events("mine", None, 100)
        assert [event.job_id for event in page.events] == ["mine-0", "mine-1", "mine-2"]
        assert not page.more
        assert unpacked == [3]
        # The end is one from which the next page goes on.
        await enqueue(store, "next", 1, "mine")
        assert [event.job_id for event in (await store.events("mine", page.next, 100)).events] == ["next-0"]
        assert unpacked == [3, 1]


async def test_a_page_scans_a_bounded_part_and_says_that_there_is_more(directory, unpacked, monkeypatch):
    monkeypatch.setattr(reads, "EVENT_SCAN", 100)
    async with opened(directory) as store:
        for number in range(30):
            await enqueue(store, number, 10, "other")
        await enqueue(store, "mine", 1, "mine")
        offset, pages, found = None, 0, []
        while True:
            page = await store.events("mine", offset, 10)
            pages, offset, found = pages + 1, page.next, found + page.events
            if not page.more:
                break
        assert (pages, [event.job_id for event in found]) == (4, ["mine-0"])
        assert unpacked == [1]
        # Within a chunk of others too.
        await enqueue(store, "large", 250, "other")
        await enqueue(store, "mine again", 1, "mine")
        offsets = [offset]
        while page.more or len(offsets) == 1:
            page = await store.events("mine", offsets[-1], 10)
            offsets.append(page.next)
        assert [event.job_id for event in page.events] == ["mine again-0"]
        assert len(offsets) == len(set(offsets)) == 4
