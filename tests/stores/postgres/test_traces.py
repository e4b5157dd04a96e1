"""Within one process turns and quotas are exact: then traces compare every claim with the memory store's.

A few seeds; HOLDFAST_TRACES=100 runs 100.
"""

import os

import pytest
from msgspec.structs import replace

from holdfast.stores.postgres import doctor, turns
from holdfast.testing.traces import check_trace

STEPS = 80
SEEDS = int(os.environ.get("HOLDFAST_TRACES", "6"))


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """The traces have both handles in this process."""
    stated = doctor.capabilities
    monkeypatch.setattr(
        doctor, "capabilities", lambda **found: replace(stated(**found), exact_turns=True, exact_quota=True)
    )


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_postgres_store_never_differs_from_the_memory_store(postgres, seed):
    await check_trace(postgres.url(), seed, STEPS)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_postgres_store_never_differs_when_tenants_enter_unseen(postgres, monkeypatch, seed):
    """As with many tenants: a claim reads no more lanes than it wants jobs."""
    monkeypatch.setattr(turns, "MIN_LANES", 0)
    await check_trace(postgres.url(), seed, STEPS)
