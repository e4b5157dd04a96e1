"""A killed driver loses nothing and doubles nothing. Twenty random kills: python -m tests.pipeline.kills."""

import pytest

from holdfast.pipeline.ingest import Plan, ingest
from holdfast.pipeline.lake import Lake
from tests.pipeline.kills import POINTS, kill_at
from tests.pipeline.settings import only_full


@only_full
@pytest.mark.timeout(900)
def test_a_driver_killed_at_every_step_of_a_batch_loses_and_doubles_nothing(spark, file_url, tmp_path):
    def finish(url, root):
        ingest(spark, Lake(root), Plan(url))

    events, lost, doubled = kill_at(file_url, tmp_path / "lake", POINTS, finish)
    assert (lost, doubled) == (0, 0)
    assert events > 0
