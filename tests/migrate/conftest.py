import pytest


@pytest.fixture
def file_url(fast, prefix):
    return f"file:{fast / prefix}?test_clock=1"


@pytest.fixture
def valkey_url(valkey, prefix):
    return valkey.url(prefix=prefix, shards=2, test_clock=1)


@pytest.fixture
def postgres_url(postgres, database):
    return f"{postgres.url(database)}?test_clock=1"


@pytest.fixture
def other_url(fast, prefix):
    """A second store in a directory."""
    return f"file:{fast / prefix}-other?test_clock=1"
