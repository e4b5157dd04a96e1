"""For all tests: servers, which the tests of one process share, and processes to run beside them."""

import signal
import uuid

import pytest

from holdfast.testing.postgres import PostgresServer
from holdfast.testing.servers import ValkeyServer
from tests.chaos.zygote import Zygote, warmed

# A shell that starts a job in the background has it ignore Ctrl-C, and every process below inherits that. Tests send
# SIGINT to processes of their own, which must heed it wherever the tests were started from.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
    """A name that nobody else uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def database(postgres, prefix):
    """The name of a database that nobody else uses."""
    postgres.sql(f"CREATE DATABASE {prefix}")
    yield prefix
    postgres.sql(f"DROP DATABASE IF EXISTS {prefix} WITH (FORCE)")


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
