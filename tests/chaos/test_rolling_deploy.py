"""A rolling deploy under load, once; for as long as you like: python -m tests.chaos.rolling"""

import pytest

from tests.chaos.rolling import deploy


@pytest.mark.parametrize("kind", ["file", "valkey", "postgres"])
async def test_every_job_of_a_rolling_deploy_completes(plain_url):
    figures, wrong = await deploy(plain_url)
    assert not wrong, figures
