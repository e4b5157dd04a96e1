"""A little of the storm; all of it: python -m tests.stores.postgres.storm"""

import pytest

from tests.stores.postgres.storm import WAYS


@pytest.mark.parametrize("way, losses", [("crash", 2), ("restore", 1)])
async def test_nothing_crosses_and_nothing_is_missed_in_silence(way, losses):
    run, _ = WAYS[way]
    figures, wrong = await run(losses, 1, pooler=False)
    assert not wrong, figures
