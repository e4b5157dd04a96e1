import pytest

from holdfast import Queue
from tests.chaos.workers import TENANT


@pytest.fixture(params=["file", "valkey", "postgres"])
def kind(request):
    """The kinds of stores that several processes can share."""
    return request.param


@pytest.fixture
def url(request, kind, prefix, tmp_path):
    if kind == "file":
        return f"file:{tmp_path}/store?test_clock=1"
    if kind == "postgres":
        return request.getfixturevalue("postgres").url(schema=prefix, test_clock=1)
    return request.getfixturevalue("valkey").url(prefix=prefix, test_clock=1)


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=TENANT) as queue:
        yield queue
