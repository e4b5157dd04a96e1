"""Stores of each kind, shared by the tests of a module: they keep apart by their tenants."""

import uuid

import pytest

from holdfast import Queue


@pytest.fixture(scope="module")
def flow_database(postgres, pattern):
    name = f"t{uuid.uuid4().hex[:12]}"
    postgres.sql(f"CREATE DATABASE {name} TEMPLATE {pattern}")
    yield name
    postgres.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="module", params=["memory", "file", "valkey", "postgres"])
def url(request, fast):
    """A place of each kind, with a clock that can be moved."""
    name = f"t{uuid.uuid4().hex[:12]}"
    if request.param == "memory":
        return f"memory:{name}?test_clock=1"
    if request.param == "file":
        return f"file:{fast}/{name}?test_clock=1"
    if request.param == "valkey":
        return request.getfixturevalue("valkey").url(prefix=name, test_clock=1)
    return request.getfixturevalue("postgres").url(request.getfixturevalue("flow_database"), test_clock=1)


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=f"t{uuid.uuid4().hex[:12]}") as queue:
        yield queue
