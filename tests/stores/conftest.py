"""Places on servers. Each test has a place of its own; a server is shared by the tests of one process.

A test in this folder runs on each kind of server. In the folder of a store all is of that store's kind.
"""

import asyncpg
import pytest

from holdfast.opening import open_store
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
async def asked(request, server):
    """Ask PostgreSQL for one value, in the database of the test."""
    connection = await asyncpg.connect(server.url(request.getfixturevalue("database")))
    yield connection.fetchval
    await connection.close()


@pytest.fixture
def offers(request, kind, server):
    """How many workers have offered to take jobs."""
    if kind == "postgres":
        asked = request.getfixturevalue("asked")
        return lambda: asked("SELECT count(*) FROM holdfast.waiters WHERE expires_at > 0")
    prefix = request.getfixturevalue("prefix")

    async def count():
        places = server.command("KEYS", f"{prefix}:*:o:*")
        return len({channel for place in places for channel in server.command("HKEYS", place)})

    return count


POSTS = """
pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE datname = current_database() AND locktype = 'advisory' AND mode = 'ExclusiveLock' AND objsubid = 1
"""


@pytest.fixture
def heard(request, kind, server):
    """How many workers can be sent jobs."""
    if kind == "postgres":
        asked = request.getfixturevalue("asked")
        return lambda: asked(f"SELECT count(*) FROM {POSTS}")
    prefix = request.getfixturevalue("prefix")

    async def count():
        return len(server.command("PUBSUB", "CHANNELS", f"{prefix}:post:*"))

    return count


@pytest.fixture
def hang_up(request, kind, server):
    """Cut the connections that workers are sent jobs on, at the server's end; how many there were."""
    if kind == "postgres":
        asked = request.getfixturevalue("asked")
        return lambda: asked(f"SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM {POSTS}) x")

    async def kill():
        return server.command("CLIENT", "KILL", "TYPE", "pubsub")

    return kill
