"""The simulated FoundationDB answers as a real server does, where there is one."""

from __future__ import annotations

import pytest

from holdfast.testing.fdb import SimulatedDatabase
from holdfast.testing.fdb.server import FdbServer, missing
from tests.unit.testing.fdb.comparing import compare

LEFT_OUT = missing()
if LEFT_OUT:
    pytest.skip(f"the simulation is not compared with a FoundationDB server: {LEFT_OUT}", allow_module_level=True)


@pytest.fixture(scope="module")
def server():
    with FdbServer() as server:
        yield server


@pytest.fixture
async def real(server):
    from holdfast.stores.foundationdb.client import open_cluster

    database = await open_cluster(server.cluster_file)
    yield database
    await database.close()


@pytest.mark.parametrize("seed", range(50))
async def test_random_transactions_are_answered_alike(real, seed):
    await compare(SimulatedDatabase(), real, seed)
