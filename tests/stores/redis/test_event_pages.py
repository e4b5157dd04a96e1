"""A tenant's page of events reads little more than it returns, and a bounded part of the log. [EVENT-3]"""

import pytest

from holdfast.stores.redis import log
from tests.stores.load import new


@pytest.fixture
def read(monkeypatch):
    """How many events were wanted of each script, and how many it gave."""
    made, entries = [], log._read_entries

    async def counted(shards, shard, start, wanted, tenant=None):
        found = await entries(shards, shard, start, wanted, tenant)
        made.append((wanted, sum(entry[1] for entry in found.entries)))
        return found

    monkeypatch.setattr(log, "_read_entries", counted)
    return made


@pytest.fixture
def decoded(monkeypatch):
    """How many events each entry had that was decoded."""
    found, to_events = [], log.to_events

    def counted(number, count, at, chunk):
        found.append(count)
        return to_events(number, count, at, chunk)

    monkeypatch.setattr(log, "to_events", counted)
    return found


async def enqueue(store, name, count, tenant):
    for first in range(0, count, 10):
        jobs = [new(f"{name}-{number}", tenant=tenant) for number in range(first, min(count, first + 10))]
        await store.enqueue(jobs)


async def test_a_page_of_its_own_events_reads_no_more_than_it_returns(store, read):
    await enqueue(store, "job", 1200, "mine")
    page = await store.events("mine", None, 100)
    assert (len(page.events), page.more) == (100, True)
    assert read == [(100, 100)]
    await store.events("mine", None, 1)
    assert read[1:] == [(log.FIRST_SCAN, log.FIRST_SCAN)]


async def test_a_page_with_few_events_of_its_own_reads_on_up_to_a_bound(store, read, decoded):
    await enqueue(store, "job", 1500, "other")
    await enqueue(store, "job", 5, "mine")
    first = await store.events("mine", None, 100)
    assert (first.events, first.more) == ([], True)
    assert read == [(100, 100), (200, 200), (200, 200)]
    assert decoded == []
    pages, rest = 1, first
    while rest.more:
        pages, rest = pages + 1, await store.events("mine", rest.next, 100)
    assert pages == 4
    assert [event.job_id for event in rest.events] == [f"job-{number}" for number in range(5)]
    assert sum(decoded) == 5
