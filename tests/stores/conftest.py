"""Servers and places on them. Each test has a place of its own; a server is shared by the tests of one process.

A test in this folder runs on each kind of server. In the folder of a store all is of that store's kind.
"""

import uuid

import pytest

from holdfast.store import open_store
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.processes import HOST
from holdfast.testing.proxy import Proxy
from holdfast.testing.servers import ValkeyServer
from tests.chaos.zygote import Zygote
from tests.stores import load
from tests.stores.postgres import support


@pytest.fixture(params=["valkey", "postgres"])
def kind(request):
    """The kind of server."""
    return request.param


@pytest.fixture(scope="session")
def valkey():
    """A server that keeps nothing on disk."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres():
    """A server that flushes nothing."""
    with PostgresServer(durable=False, max_connections=300) as server:
        yield server


@pytest.fixture
def server(request, kind):
    return request.getfixturevalue(kind)


@pytest.fixture
def prefix():
    """A name that nobody else uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def database(postgres, prefix):
    """The name of a database that nobody else uses."""
    postgres.sql(f"CREATE DATABASE {prefix}")
    yield prefix
    postgres.sql(f"DROP DATABASE {prefix} WITH (FORCE)")


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


@pytest.fixture
async def zygote():
    async with Zygote() as zygote:
        yield zygote


@pytest.fixture
def log(tmp_path):
    """Where the processes of a test note what they did."""
    return str(tmp_path / "log")
