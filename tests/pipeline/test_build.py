"""Incremental builds: random histories, cut at random places, give the same tables as one build of everything."""

import asyncio
from random import Random

import pytest

from holdfast.pipeline import build as building
from holdfast.pipeline.batches import Batch
from holdfast.pipeline.build import TABLES, build
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.transforms.slo import Objective
from tests.pipeline.histories import frame, random_history
from tests.pipeline.settings import FULL, only_full

pytestmark = pytest.mark.xdist_group("spark")


def add_batch(spark, lake, number, rows):
    """The files that an ingest leaves."""
    events = frame(spark, [row | {"batch": number} for row in rows])
    events.write.mode("append").partitionBy("date", "batch").parquet(str(lake.path("events")))
    lake.record_batch(Batch(number, len(rows)))


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake", create=True)


def files_of(lake, day):
    return {path.name: path.stat().st_ino for path in lake.root.glob(f"silver/job_runs/date={day}/*.parquet")}


def die_at_failures(monkeypatch):
    def die(lake, table, frame, days):
        if table == "failures":
            raise KeyboardInterrupt
        return replace_days(lake, table, frame, days)

    replace_days = building.replace_days
    monkeypatch.setattr(building, "replace_days", die)


@pytest.fixture
def rows():
    rows = asyncio.run(random_history(range(3 if FULL else 1), steps=120))
    rows.sort(key=lambda row: (row["at"], row["shard"], row["position"]))
    return rows


def test_incremental_builds_make_what_a_full_build_makes(spark, lake, tmp_path, rows):
    assert build(spark, lake).batches == 0
    cut = Random(7).randrange(len(rows))
    add_batch(spark, lake, 0, rows[:cut])
    assert build(spark, lake).full
    add_batch(spark, lake, 1, rows[cut:])
    again = build(spark, lake)
    assert (again.full, again.batches) == (False, 1)
    assert build(spark, lake) == building.Built(full=False, batches=0, days=[])
    built = assert_equal_to_a_full_build(spark, lake, tmp_path, rows)
    assert sum(row["jobs"] for row in built["failures"]) > 0
    assert any(row["life"] > 1 for row in built["job_runs"])
    assert any(row["replays"] > 0 for row in built["job_runs"])


def assert_equal_to_a_full_build(spark, lake, tmp_path, rows):
    """The tables, as they are in both."""
    whole = Lake(tmp_path / "whole", create=True)
    add_batch(spark, whole, 0, rows)
    build(spark, whole)
    found = {table: lake.read(spark, table).collect() for table in TABLES}
    for table, built in found.items():
        assert sorted(map(reported, built)) == sorted(map(reported, whole.read(spark, table).collect())), table
    assert not list(lake.root.glob("*/.*"))
    return found


def reported(row):
    """A row as what can be compared: a histogram has no order."""
    return repr([sorted(value.items()) if isinstance(value, dict) else value for value in row])


@only_full
def test_a_failed_build_is_repeated_and_new_events_rebuild_only_their_day(spark, lake, tmp_path, monkeypatch, rows):
    first, last = rows[0]["date"], rows[-1]["date"]
    assert first < last
    cut = Random(7).randrange(len(rows))
    add_batch(spark, lake, 0, rows[:cut])
    build(spark, lake)
    before = sorted(map(str, lake.read(spark, "job_runs").collect()))

    # One that dies leaves the old tables, and the next one does all of it.
    add_batch(spark, lake, 1, rows[cut:])
    die_at_failures(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        build(spark, lake)
    monkeypatch.undo()
    assert sorted(map(str, lake.read(spark, "job_runs").collect())) == before
    again = build(spark, lake)
    assert (again.full, again.batches) == (False, 1)

    # A job that begins now touches its day alone.
    files = files_of(lake, first)
    assert files
    born = next(row for row in rows if row["date"] == last and row["kind"] == "enqueued")
    young = born | {"job_id": "young", "position": "9" * 18}
    add_batch(spark, lake, 2, [young])
    assert build(spark, lake).days == [last.isoformat()]
    assert files_of(lake, first) == files
    assert_equal_to_a_full_build(spark, lake, tmp_path, [*rows, young])
    build(spark, lake, objective=Objective(0.5, 1))
    assert {row["target"] for row in lake.read(spark, "slo").collect()} == {0.5}
