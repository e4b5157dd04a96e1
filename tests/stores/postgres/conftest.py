"""Servers and databases. Each test has a database of its own; a server is shared by the tests of one process."""

import uuid

import pytest

from holdfast.store import open_store
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.processes import HOST
from holdfast.testing.proxy import Proxy
from tests.chaos.zygote import Zygote


@pytest.fixture(scope="session")
def postgres():
    """A server that flushes nothing."""
    with PostgresServer(durable=False) as server:
        yield server


@pytest.fixture
def durable():
    """A server of this test alone, whose commits are on the disk when they are answered."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres):
    """The name of a database that nobody else uses."""
    name = f"t{uuid.uuid4().hex[:12]}"
    postgres.sql(f"CREATE DATABASE {name}")
    yield name
    postgres.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def url(postgres, database):
    return postgres.url(database, test_clock=1)


@pytest.fixture
async def store(url):
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture
async def proxy(postgres):
    """A line to the server that can be broken."""
    async with Proxy(HOST, postgres.port) as proxy:
        yield proxy


@pytest.fixture
def far_url(proxy, postgres, url):
    """The same place as `url`, at the other end of that line; whoever waits there loses patience after a second."""
    return url.replace(f":{postgres.port}/", f":{proxy.port}/") + "&timeout_s=1&connect_timeout_s=1"


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
