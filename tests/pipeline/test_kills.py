"""A killed driver loses nothing and doubles nothing. By hand: python -m tests.pipeline.kills."""

import pytest

from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from tests.pipeline.kills import POINTS, kill_at, random_points
from tests.pipeline.settings import only_full
from tests.stores.load import seeded

KILLS = 20


@pytest.fixture
def finish(spark):
    """Takes in what the killed drivers have left."""
    return lambda url, root: ingest(spark, Lake(root), IngestPlan(url))


@only_full
@pytest.mark.timeout(900)
def test_a_driver_killed_at_every_step_of_a_batch_loses_and_duplicates_no_event(finish, file_url, tmp_path):
    events, lost, doubled = kill_at(file_url, tmp_path / "lake", POINTS, finish)
    assert (lost, doubled) == (0, 0)
    assert events > 0


@only_full
@pytest.mark.timeout(1800)
def test_drivers_killed_at_twenty_random_moments_lose_and_duplicate_no_event(finish, url, tmp_path):
    events, lost, doubled = kill_at(url, tmp_path / "lake", random_points(seeded(), KILLS), finish)
    assert (lost, doubled) == (0, 0)
    assert events > 0
