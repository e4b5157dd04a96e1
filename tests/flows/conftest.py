"""Stores of each kind, shared by the tests of a module; each test has a tenant of its own."""

import uuid

import pytest

from holdfast import Queue


@pytest.fixture(scope="module")
def flow_database(postgres, pattern):
    name = f"t{uuid.uuid4().hex[:12]}"
    postgres.sql(f"CREATE DATABASE {name} TEMPLATE {pattern}")
    yield name
    postgres.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def shared_memory():
    return f"memory:t{uuid.uuid4().hex[:12]}?test_clock=1"


@pytest.fixture(scope="module")
def shared_file(fast):
    return f"file:{fast}/t{uuid.uuid4().hex[:12]}?test_clock=1"


@pytest.fixture(scope="module")
def shared_valkey(valkey):
    return valkey.url(prefix=f"t{uuid.uuid4().hex[:12]}", test_clock=1)


@pytest.fixture(scope="module")
def shared_postgres(postgres, flow_database):
    return postgres.url(flow_database, test_clock=1)


@pytest.fixture(scope="module", params=["memory", "file", "valkey", "postgres"])
def url(request):
    """A store of each kind, with a clock that can be moved."""
    return request.getfixturevalue(f"shared_{request.param}")


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=f"t{uuid.uuid4().hex[:12]}") as queue:
        yield queue
