import pytest

from holdfast.testing.postgres import PostgresServer


@pytest.fixture
def kind():
    return "postgres"


@pytest.fixture
def durable():
    """A server of this test alone, whose commits are on the disk when they are answered."""
    with PostgresServer() as server:
        yield server
