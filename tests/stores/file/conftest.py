from __future__ import annotations

import pytest

from holdfast.core import failpoint
from tests.stores.file.support import opened


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "store"


@pytest.fixture
async def store(directory):
    async with opened(directory, "?test_clock=1") as store:
        yield store


@pytest.fixture
def at_failpoints():
    """Install a hook at the failpoints of this process, for the length of a test."""
    yield failpoint.install
    failpoint.install(None)
