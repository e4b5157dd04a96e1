"""Dashboards for the tests."""

import uuid

import pytest_asyncio

from tests.dashboard.support import by_token, site


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
