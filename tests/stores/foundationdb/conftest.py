"""Simulated clusters, and handles on a store in one."""

import itertools

import pytest

from holdfast.opening import make_store
from holdfast.stores.foundationdb import clock
from holdfast.testing.fdb import NONE, SimulatedDatabase

_numbers = itertools.count()


class Machine:
    """The clocks of this machine, which move only here."""

    def __init__(self):
        self.steady = 0
        self.wall = 1_700_000_000_000

    def advance(self, ms):
        self.steady += ms
        self.wall += ms


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(clock, "_steady_ms", lambda: machine.steady)
    monkeypatch.setattr(clock, "wall_ms", lambda: machine.wall)
    return machine


@pytest.fixture
async def cluster():
    """A function that makes a simulated cluster; its `handle` opens a store there, one for each process."""
    opened = []

    def make(*, faults=NONE, seed=0, frozen=False):
        database = SimulatedDatabase(seed=seed, faults=faults, frozen=frozen)
        name = f"cluster{next(_numbers)}"

        async def handle(**options):
            url = f"fdb:?simulation={name}" + "".join(f"&{key}={value}" for key, value in options.items())
            store = make_store(url)
            store._given = database
            await store.open()
            opened.append(store)
            return store

        database.handle = handle
        return database

    yield make
    for store in opened:
        await store.close()
