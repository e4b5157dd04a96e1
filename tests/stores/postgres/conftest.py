import tempfile

import pytest

from holdfast.testing.postgres import PostgresServer


@pytest.fixture
def kind():
    return "postgres"


@pytest.fixture(autouse=True)
def in_memory(fast, monkeypatch):
    """Servers and standbys keep their files in memory: a kill of their processes loses the same there as on a disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(fast))


@pytest.fixture
def durable():
    """A server of this test alone, whose commits are on the disk when they are answered."""
    with PostgresServer() as server:
        yield server
