"""Stores on servers. Each test has a space of its own; the tests of one process share a server.

A test in this folder runs on each kind of server; what differs between them is in `backends.py`. The tests in a
store's folder run on that store.
"""

import asyncpg
import pytest

from holdfast.opening import open_store
from holdfast.testing.processes import HOST
from holdfast.testing.proxy import Proxy
from tests.stores.backends import PostgresBackend, ValkeyBackend


@pytest.fixture(params=["valkey", "postgres"])
def kind(request):
    """The kind of server."""
    return request.param


@pytest.fixture
def server(request, kind):
    return request.getfixturevalue(kind)


@pytest.fixture
async def store(url):
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture
def valkey_backend(valkey, prefix):
    return ValkeyBackend(valkey, prefix)


@pytest.fixture
def postgres_backend(postgres, database):
    return PostgresBackend(postgres, database)


@pytest.fixture
def backend(request, kind):
    """What differs between kinds of servers."""
    return request.getfixturevalue(f"{kind}_backend")


@pytest.fixture
def judge(backend):
    """Judge the log."""
    return backend.judge


@pytest.fixture
async def proxy(server):
    """A proxy in front of the server that can break connections."""
    async with Proxy(HOST, server.port) as proxy:
        yield proxy


@pytest.fixture
def far_url(proxy, server, url):
    """The same store as `url`, behind the proxy, with timeouts of a second."""
    return url.replace(f":{server.port}/", f":{proxy.port}/") + "&timeout_s=1&connect_timeout_s=1"


@pytest.fixture
async def far(far_url, store):
    """The store behind the proxy. `store` is the same without it, and closed after it."""
    far = await open_store(far_url)
    yield far
    await far.close()


@pytest.fixture
async def asked(request, server):
    """Ask PostgreSQL for one value, in the database of the test."""
    connection = await asyncpg.connect(server.url(request.getfixturevalue("database")))
    yield connection.fetchval
    await connection.close()


@pytest.fixture
def waiting_workers(backend):
    """How many workers are registered for jobs."""
    return backend.waiters


@pytest.fixture
def heard(backend):
    """How many workers can be sent jobs."""
    return backend.inboxes


@pytest.fixture
def hang_up(backend):
    """Cut the connections that workers are sent jobs on, at the server's end; how many there were."""
    return backend.hang_up
