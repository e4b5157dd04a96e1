"""Places on servers. Each test has a place of its own; a server is shared by the tests of one process.

A test in this folder runs on each kind of server. In the folder of a store all is of that store's kind.
"""

import pytest

from holdfast.store import open_store
from holdfast.testing.processes import HOST
from holdfast.testing.proxy import Proxy
from tests.stores import load
from tests.stores.postgres import support


@pytest.fixture(params=["valkey", "postgres"])
def kind(request):
    """The kind of server."""
    return request.param


@pytest.fixture
def server(request, kind):
    return request.getfixturevalue(kind)


@pytest.fixture
def url(request, kind, server, prefix):
    """A place with a clock that can be moved."""
    if kind == "postgres":
        return server.url(request.getfixturevalue("database"), test_clock=1)
    return server.url(prefix=prefix, test_clock=1)


@pytest.fixture
async def store(url):
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture
def judge(kind):
    """Judge the log: a shard of Redis has one order for all its jobs, PostgreSQL one for each job."""
    return support.judge if kind == "postgres" else load.judge


@pytest.fixture
async def proxy(server):
    """A line to the server that can be broken."""
    async with Proxy(HOST, server.port) as proxy:
        yield proxy


@pytest.fixture
def far_url(proxy, server, url):
    """The same place as `url`, at the other end of that line; whoever waits there loses patience after a second."""
    return url.replace(f":{server.port}/", f":{proxy.port}/") + "&timeout_s=1&connect_timeout_s=1"


@pytest.fixture
async def far(far_url, store):
    """The store at the other end of the line. `store` is its near side, and closed after it."""
    far = await open_store(far_url)
    yield far
    await far.close()
