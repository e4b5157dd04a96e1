"""Servers and databases. Each test has a database of its own; a server is shared by the tests of one process."""

import uuid

import pytest

from holdfast.testing.postgres import PostgresServer


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
