import pytest

from holdfast import Queue
from tests.chaos.workers import TENANT


@pytest.fixture(params=["file", "valkey", "postgres"])
def kind(request):
    """The kinds of stores that several processes can share."""
    return request.param


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=TENANT) as queue:
        yield queue
