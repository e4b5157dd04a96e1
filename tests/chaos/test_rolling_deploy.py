"""A rolling deploy under load, once; for as long as you like: python -m tests.chaos.rolling"""

import pytest

from holdfast.testing.servers import ValkeyServer
from tests.chaos.rolling import deploy


@pytest.fixture(params=["file", "valkey", "postgres"])
def place(request, tmp_path):
    if request.param == "file":
        yield f"file:{tmp_path}/store"
    elif request.param == "valkey":
        with ValkeyServer(directory=tmp_path / "valkey") as server:
            yield server.url()
    else:
        yield request.getfixturevalue("postgres").url(request.getfixturevalue("empty_database"))


async def test_every_job_of_a_rolling_deploy_completes(place):
    figures, wrong = await deploy(place)
    assert not wrong, figures
