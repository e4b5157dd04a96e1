"""Results over the limit, with a blob store to keep them in. [RESULT-1]"""

import asyncio

import pytest

from holdfast import job
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import Cancel, JobKey, JobState
from holdfast.queue.queue import Queue
from tests.eventually import eventually
from tests.unit.worker.serving import heard, serving, until

SIZE = 300_000


class Blobs:
    """A blob store in a dict."""

    def __init__(self):
        self.kept = {}
        self.failures = 0
        self.gate = None

    async def put(self, name, data):
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("gone")
        if self.gate:
            await self.gate.wait()
        self.kept[name] = data

    async def get(self, name):
        return self.kept.get(name)

    async def delete(self, names):
        for name in names:
            self.kept.pop(name, None)


@pytest.fixture
def blobs():
    return Blobs()


@pytest.fixture
async def queue(store, blobs):
    async with Queue(store=store, tenant="acme", blobs=blobs) as queue:
        yield queue


@job(max_attempts=1)
async def large() -> str:
    return "x" * SIZE


@job(name="large", max_attempts=1)
def large_in_thread() -> str:
    return "x" * SIZE


@pytest.mark.parametrize("definition", [large, large_in_thread])
async def test_a_large_result_is_stored_as_a_blob_and_read_back(queue, blobs, definition):
    async with serving(queue, definition):
        assert await queue.enqueue_and_wait(definition.message(), timeout=10) == "x" * SIZE
    assert len(blobs.kept) == 1


async def test_a_blob_store_that_is_down_briefly_is_tried_again(queue, blobs, monkeypatch):
    monkeypatch.setattr("holdfast.maintenance.backoff.FIRST_S", 0.01)
    blobs.failures = 3
    async with serving(queue, large):
        assert await queue.enqueue_and_wait(large.message(), timeout=10) == "x" * SIZE


async def test_a_blob_store_that_stays_down_fails_the_attempt(queue, blobs, monkeypatch):
    monkeypatch.setattr("holdfast.maintenance.backoff.FIRST_S", 0.01)
    blobs.failures = 100
    async with serving(queue, large):
        job_ = await until(queue, await queue.enqueue(large.message()))
        assert (job_.state, job_.reason, job_.errors[0].type) == (JobState.FAILED, "max_attempts", "StoreUnavailable")


async def test_the_blob_of_a_refused_outcome_is_deleted(queue, store, blobs):
    gate = store.hold("finish")
    async with serving(queue, large) as worker:
        reported = heard(worker)
        await queue.enqueue(large.message(), id="x")
        await eventually(lambda: store.calls["finish"])
        assert len(blobs.kept) == 1
        await store.cancel([Cancel(JobKey("acme", "default", "x"))])
        gate.set()
        await eventually(lambda: ("canceled", "x") in reported)
        await eventually(lambda: not blobs.kept)


async def test_a_cancel_ends_the_writing_of_a_blob(queue, blobs):
    blobs.gate = asyncio.Event()
    async with serving(queue, large) as worker:
        reported = heard(worker)
        ticket = await queue.enqueue(large.message(), id="x")
        await eventually(lambda: worker._loop.state.running)
        await ticket.cancel()
        await eventually(lambda: ("canceled", "x") in reported)
        await eventually(lambda: not worker._loop.state.running)
    assert not blobs.kept
