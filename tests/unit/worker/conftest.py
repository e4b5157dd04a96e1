"""A memory store of its own for each test, with a clock that can be shifted, and a Queue on it."""

import itertools

import pytest

from holdfast.opening import open_store
from holdfast.queue.queue import Queue
from holdfast.testing import failpoints
from tests.unit.worker.faulty import FaultyStore

_numbers = itertools.count()


@pytest.fixture
async def store():
    inner = await open_store(f"memory:worker-{next(_numbers)}?test_clock=1")
    return FaultyStore(inner)


@pytest.fixture
async def queue(store):
    async with Queue(store=store, tenant="acme") as queue:
        yield queue


@pytest.fixture(autouse=True)
def no_failpoint_is_left():
    yield
    failpoints.disarm()
