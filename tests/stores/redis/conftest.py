import pytest

from holdfast.testing.servers import ValkeyCluster, ValkeyServer


@pytest.fixture
def kind():
    return "valkey"


@pytest.fixture
def durable():
    """A server of this test alone that has written to disk what it has answered."""
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        yield server


@pytest.fixture(scope="session")
def cluster():
    """A cluster of three nodes."""
    with ValkeyCluster(3) as cluster:
        yield cluster
