"""A little of the storm; all of it: python -m tests.stores.postgres.storm"""

import pytest

from tests.stores.postgres.bouncer import needs_bouncer
from tests.stores.postgres.storm import WAYS


@pytest.mark.parametrize("way, losses", [("crash", 2), ("failover", 1), ("restore", 1)])
async def test_a_restore_mixes_no_lives_and_reports_every_gap(way, losses):
    await _weathered(way, losses, pooler=False)


@needs_bouncer
async def test_a_failover_behind_a_pooler_mixes_no_lives():
    await _weathered("failover", 1, pooler=True)


async def _weathered(way, losses, *, pooler):
    run, _ = WAYS[way]
    figures, wrong = await run(losses, 1, pooler=pooler)
    assert not wrong, figures
