"""For all tests: servers, which the tests of one process share, and processes to run beside them."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.testing.postgres import PostgresServer
from holdfast.testing.servers import ValkeyServer
from tests.chaos.zygote import Zygote, warmed

# A shell that starts a job in the background has it ignore Ctrl-C, and every process below inherits that. Tests send
# SIGINT to processes of their own, which must heed it wherever the tests were started from.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail: how long it takes to make examples says nothing about the code.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

IN_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def fast():
    """A directory in memory where there is room: for what need not last."""
    has_room = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 2 << 30
    with tempfile.TemporaryDirectory(prefix="holdfast-tests-", dir=IN_MEMORY if has_room else None) as place:
        Path(place).chmod(0o755)  # A PostgreSQL server runs as another user.
        yield Path(place)


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
def prefix():
    """A name that nothing else uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def pattern(postgres):
    """The name of a database with our schema in it: to copy it is quicker than to migrate anew."""
    postgres.sql("CREATE DATABASE pattern")
    subprocess.run([sys.executable, "-m", "holdfast", "migrate", postgres.url("pattern")], check=True)
    postgres.sql(
        "ALTER DATABASE pattern ALLOW_CONNECTIONS false"
    )  # No copy is made of a database with open connections.
    return "pattern"


@pytest.fixture
def database(postgres, pattern, prefix):
    """The name of a database that nothing else uses, with our schema in it."""
    with _database(postgres, prefix, pattern) as name:
        yield name


@pytest.fixture
def empty_database(postgres, prefix):
    """The name of an empty database that nothing else uses."""
    with _database(postgres, prefix, "template1") as name:
        yield name


@contextlib.contextmanager
def _database(postgres, name, pattern):
    postgres.sql(f"CREATE DATABASE {name} TEMPLATE {pattern}")
    yield name
    postgres.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


# Places of each kind: a test or its folder names the kinds as `kind`, and asks for `url` or `plain_url`.


@pytest.fixture
def memory_url(prefix):
    return f"memory:{prefix}"


@pytest.fixture
def file_url(fast, prefix):
    return f"file:{fast / prefix}"


@pytest.fixture
def valkey_url(valkey, prefix):
    return valkey.url(prefix=prefix)


@pytest.fixture
def postgres_url(postgres, database):
    return postgres.url(database)


@pytest.fixture
def plain_url(request, kind):
    """A place of this kind that nothing else uses."""
    return request.getfixturevalue(f"{kind}_url")


@pytest.fixture
def url(plain_url):
    """The same place, with a clock that can be moved."""
    return f"{plain_url}{'&' if '?' in plain_url else '?'}test_clock=1"


@pytest.fixture(scope="session")
def warm():
    with warmed() as process:
        yield process


@pytest.fixture
async def zygote(warm):
    async with Zygote(warm) as zygote:
        yield zygote


@pytest.fixture
def log(tmp_path):
    """Where the processes of a test note what they did."""
    return str(tmp_path / "log")
