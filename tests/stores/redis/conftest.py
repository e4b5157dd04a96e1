"""Servers and stores on them. Each test has a prefix of its own; a server is shared by the tests of one process."""

import uuid

import pytest

from holdfast.store import open_store
from holdfast.testing.proxy import Proxy
from holdfast.testing.servers import HOST, ValkeyCluster, ValkeyServer
from tests.chaos.zygote import Zygote


@pytest.fixture(scope="session")
def valkey():
    """A server that keeps nothing on disk."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def durable():
    """A server of this test alone that has written to disk what it has answered."""
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        yield server


@pytest.fixture(scope="session")
def cluster():
    """A cluster of three nodes."""
    with ValkeyCluster(3) as cluster:
        yield cluster


@pytest.fixture
def prefix():
    """A name that nobody else uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def url(valkey, prefix):
    return valkey.url(prefix=prefix, test_clock=1)


@pytest.fixture
async def store(url):
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture
async def proxy(valkey):
    """A line to the server that can be broken."""
    async with Proxy(HOST, valkey.port) as proxy:
        yield proxy


@pytest.fixture
def far_url(proxy, prefix):
    """The same place as `url`, at the other end of that line; whoever waits there loses patience after a second."""
    return f"redis://{HOST}:{proxy.port}/0?prefix={prefix}&test_clock=1&timeout_s=1&connect_timeout_s=1"


@pytest.fixture
async def far(far_url, store):
    """The store at the other end of the line. `store` is its near side, and closed after it."""
    far = await open_store(far_url)
    yield far
    await far.close()


@pytest.fixture
async def zygote():
    async with Zygote() as zygote:
        yield zygote


@pytest.fixture
def log(tmp_path):
    """Where the processes of a test note what they did."""
    return str(tmp_path / "log")
