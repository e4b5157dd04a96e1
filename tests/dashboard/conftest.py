"""Dashboards for the tests."""

import uuid

import pytest
import pytest_asyncio

from holdfast.dashboard.pages import dead_run, grouping
from tests.dashboard.support import by_token, site


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch):
    """What a page shows depends on its bounded counts, not on how busy this machine is."""
    for module, name in ((dead_run, "PLAN_S"), (dead_run, "STEP_S"), (grouping, "LOOK_S")):
        monkeypatch.setattr(module, name, 3600.0)


@pytest_asyncio.fixture
async def opened():
    """A dashboard that opens as it is, on a store of the test's own."""
    async with site(f"memory:{uuid.uuid4().hex}") as found:
        yield found


@pytest_asyncio.fixture
async def guarded():
    """A dashboard that asks for tokens."""
    async with site(f"memory:{uuid.uuid4().hex}", by_token) as found:
        yield found
