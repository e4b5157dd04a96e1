"""Within one process turns and quotas are exact: then traces compare every claim with the memory store's."""

import pytest
from msgspec.structs import replace

from holdfast.stores.postgres import doctor
from holdfast.testing.traces import check_trace

STEPS = 80
BLOCK = 10


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """The traces have both handles in this process."""
    stated = doctor.capabilities
    monkeypatch.setattr(
        doctor, "capabilities", lambda **found: replace(stated(**found), exact_turns=True, exact_quota=True)
    )


@pytest.mark.parametrize("first", range(0, 20, BLOCK))
async def test_the_postgres_store_never_differs_from_the_memory_store(postgres, first):
    for seed in range(first, first + BLOCK):
        await check_trace(postgres.url(), seed, STEPS)
