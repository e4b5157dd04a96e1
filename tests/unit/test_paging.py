"""A page over all queues of a tenant does a bounded amount of work, whatever it finds."""

from __future__ import annotations

from holdfast.core.job import Envelope, JobKey, NewJob
from holdfast.core.listing import SCAN_LIMIT
from holdfast.opening import open_store
from holdfast.paging import list_across
from holdfast.store import PAGE_LIMIT, ListQuery
from tests.unit.running import asynchronous


class Counted:
    """A store that counts the lists of single queues, and what they may read."""

    def __init__(self, store):
        self._store = store
        self.lists = self.scans = self.jobs = 0

    async def list(self, query):
        page = await self._store.list(query)
        assert query.queue
        self.lists, self.scans, self.jobs = self.lists + 1, self.scans + query.scan, self.jobs + len(page.jobs)
        return page

    def __getattr__(self, name):
        return getattr(self._store, name)


async def filled(url: str, queues: int, jobs: int):
    store = await open_store(url)
    await store.enqueue(
        [
            NewJob(JobKey("acme", f"q{number % queues:03}", str(number)), Envelope("t", b""), number)
            for number in range(queues * jobs)
        ]
    )
    return Counted(store)


@asynchronous
async def test_a_page_reads_each_queue_at_most_twice_and_little_more_than_it_shows():
    for queues, jobs in ((1, 300), (10, 100), (PAGE_LIMIT, 10), (PAGE_LIMIT + 30, 3)):
        store = await filled(f"memory:across-{queues}?test_clock=frozen", queues, jobs)
        page = await list_across(store, ListQuery("acme", "", limit=100, newest=True))
        at_once = min(queues, PAGE_LIMIT)
        assert len(page.jobs) == 100
        assert store.lists <= 2 * at_once
        assert store.scans <= SCAN_LIMIT
        assert store.jobs <= 2 * (100 + at_once)
        assert [job.visible_at for job in page.jobs] == sorted((job.visible_at for job in page.jobs), reverse=True)


@asynchronous
async def test_a_page_that_finds_nothing_reads_no_more():
    store = await filled("memory:across-nothing?test_clock=frozen", PAGE_LIMIT, 10)
    query = ListQuery("acme", "", limit=100, newest=True, id="nothing")
    page = await list_across(store, query)
    assert page.jobs == []
    assert store.lists <= 2 * PAGE_LIMIT
    assert store.scans <= SCAN_LIMIT
