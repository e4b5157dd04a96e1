import uuid

import pytest

from holdfast import Queue
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.servers import ValkeyServer
from tests.chaos.workers import TENANT
from tests.chaos.zygote import Zygote


@pytest.fixture
async def zygote():
    async with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="session")
def valkey():
    with ValkeyServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres():
    with PostgresServer(durable=False) as server:
        yield server


@pytest.fixture(params=["file", "valkey", "postgres"])
def kind(request):
    """The kinds of stores that several processes can share."""
    return request.param


@pytest.fixture
def url(kind, request, tmp_path):
    if kind == "file":
        return f"file:{tmp_path}/store?test_clock=1"
    name = f"t{uuid.uuid4().hex[:12]}"
    if kind == "postgres":
        return request.getfixturevalue("postgres").url(schema=name, test_clock=1)
    return request.getfixturevalue("valkey").url(prefix=name, test_clock=1)


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=TENANT) as queue:
        yield queue


@pytest.fixture
def log(tmp_path):
    return str(tmp_path / "log")
