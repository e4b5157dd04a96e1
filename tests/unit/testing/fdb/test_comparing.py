"""The comparison that a real server is held against the simulation with: it finds a difference, and only that."""

from __future__ import annotations

import pytest

from holdfast.testing.fdb import SimulatedDatabase
from tests.unit.testing.fdb.comparing import compare


@pytest.mark.parametrize("seed", range(20))
async def test_two_simulations_answer_the_same(seed: int):
    other = SimulatedDatabase(seed=2, frozen=True)
    other.advance(1000)
    await compare(SimulatedDatabase(seed=1, frozen=True), other, seed)


async def test_a_database_without_conflicts_is_found():
    other = SimulatedDatabase(frozen=True)
    other._data.conflicts = lambda *_: False
    with pytest.raises(AssertionError):
        await compare(SimulatedDatabase(frozen=True), other, 1)
