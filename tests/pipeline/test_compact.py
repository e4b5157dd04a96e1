"""Fewer files with the same rows, and dropping the past: builds go on as if nothing had happened."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from holdfast.core.errors import InvalidOption, StoreBusy, StoreMismatch
from holdfast.pipeline import compact as compacting
from holdfast.pipeline.audit import audit
from holdfast.pipeline.batches import Batch
from holdfast.pipeline.build import TABLES, build, progress
from holdfast.pipeline.compact import compact, digest, retain
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from tests.pipeline.damages import damage_lake
from tests.pipeline.settings import only_full
from tests.pipeline.traffic import make_traffic, of_store

pytestmark = pytest.mark.timeout(400)

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake", create=True)


def take_in(spark, lake, url, seed=1, jobs=20):
    of_store(url, lambda store: make_traffic(store, jobs, seed=seed))
    ingest(spark, lake, IngestPlan(url, max_events=30, payloads="hash"))


def files(lake, table="events"):
    return sorted(path.relative_to(lake.root) for path in lake.path(table).rglob("*.parquet"))


def state(spark, lake, tables=TABLES):
    return {table: sorted(map(repr, lake.read(spark, table).collect())) for table in tables}


def facts(spark, lake, table="events"):
    return digest(lake.read(spark, table).drop("batch"))


@only_full
def test_compaction_keeps_every_row_and_later_builds_are_equal(spark, file_url, lake):
    take_in(spark, lake, file_url)
    build(spark, lake)
    take_in(spark, lake, file_url, seed=2)
    before, payloads, built = facts(spark, lake), facts(spark, lake, "payloads"), progress(lake)
    many = len(files(lake)) + len(files(lake, "payloads"))

    done = compact(spark, lake)
    assert facts(spark, lake) == before
    assert facts(spark, lake, "payloads") == payloads
    assert done.files_after < done.files_before <= many
    assert len(files(lake)) + len(files(lake, "payloads")) == many - done.files_before + done.files_after
    # Built and new batches stay apart.
    assert len(files(lake)) == 2 < many
    assert lake.read(spark, "events").where(f"batch > {built.batch}").count() > 0
    assert compact(spark, lake).files_before == 0

    # What was compacted before it was built, and what came after that.
    take_in(spark, lake, file_url, seed=3, jobs=10)
    built_now = build(spark, lake)
    assert (built_now.full, built_now.batches > 1) == (False, True)
    incremental = state(spark, lake)
    build(spark, lake, full=True)
    assert state(spark, lake) == incremental


@only_full
def test_a_damaged_lake_is_not_changed(spark, file_url, lake, monkeypatch):
    take_in(spark, lake, file_url, jobs=20)
    # Neither runs beside an ingest or a build.
    for name in ("ingest", "build"):
        with lake.lock(name), pytest.raises(StoreBusy, match=name):
            compact(spark, lake)
        with lake.lock(name), pytest.raises(StoreBusy, match=name):
            retain(spark, lake, 7)
    _check_one_that_dies_or_errs(spark, lake, monkeypatch)
    # A half-written batch is left as it is, and written again.
    last = max(batch.batch for batch in lake.batches())
    whole = facts(spark, lake)
    (lake.root / "_batches" / f"{last:08}.json").unlink()
    compact(spark, lake)
    assert lake.unfinished_batches() == [last]
    lake.record_batch(Batch(last, 0))
    assert facts(spark, lake) == whole


def _check_one_that_dies_or_errs(spark, lake, monkeypatch):
    before, names = facts(spark, lake), files(lake)
    real = compacting.digest
    answers = iter([(1, "1"), (2, "2")])
    monkeypatch.setattr(compacting, "digest", lambda _: next(answers))
    with pytest.raises(StoreMismatch, match="left as it is"):
        compact(spark, lake)
    monkeypatch.setattr(compacting, "digest", real)
    assert (facts(spark, lake), files(lake)) == (before, names)
    # Killed between the two renames of the swap: the table is read where it is, and put back by the next writer.
    lake.path("events").rename(lake.path("events").with_name(".events.old-x"))
    assert facts(spark, Lake(lake.root)) == before


@only_full
@pytest.mark.parametrize("store", ["file", "valkey"])
def test_old_days_are_dropped_from_all_tables_and_the_audit_knows(spark, lake, store, request):
    url = request.getfixturevalue(f"{store}_url")
    clocked = f"{url}{'&' if '?' in url else '?'}test_clock=1"

    async def act(store):
        await make_traffic(store, 30)
        await store.shift_clock(40 * DAY_MS)
        await make_traffic(store, 30, seed=2)

    of_store(clocked, act)
    ingest(spark, lake, IngestPlan(clocked))
    today = (datetime.now(UTC) + timedelta(days=40)).date()
    untouched = state(spark, lake, ["events"])
    assert retain(spark, lake, 7, dry_run=False, today=today).days == {}
    assert state(spark, lake, ["events"]) == untouched
    build(spark, lake)

    reported = retain(spark, lake, 7, today=today)
    assert set(reported.days) == {"events", *TABLES}
    assert reported.bytes > 0
    assert state(spark, lake, ["events"]) == untouched
    dropped = retain(spark, lake, 7, dry_run=False, today=today)
    assert dropped == reported
    for table in ("events", *TABLES):
        days = {row.date for row in lake.read(spark, table).select("date").distinct().collect()}
        assert days == {today} or days == {today, today - timedelta(days=1)}
    found = audit(spark, lake)
    assert not found.broken, found.text()
    assert retain(spark, lake, 7, dry_run=False, today=today).days == {}
    assert build(spark, lake).batches == 0


def test_damage_is_found_before_and_after_a_compaction_and_a_dropped_day_is_none(spark, file_url, lake):
    chance = Random(1)
    take_in(spark, lake, file_url, jobs=10)
    events = lake.read(spark, "events").select("date", "batch", "position").collect()
    assert damages(spark, lake) == []
    day, batch, position = chance.choice(events)
    damage_lake(lake, day, batch, position, "altered", chance)
    (said,) = damages(spark, lake)
    assert said.startswith(f"date={day}/batch={batch} has ")
    assert "events, as many as were ingested, but their checksums differ" in said
    compact(spark, lake)
    (merged,) = damages(spark, lake)
    assert "checksums differ" in merged
    (target,) = {row.batch for row in lake.read(spark, "events").select("batch").distinct().collect()}
    damage_lake(lake, day, target, chance.choice([row.position for row in events]), "doubled", chance)
    assert damages(spark, lake) == [
        f"date={day}/batch={target} has {len(events) + 1} events, but {len(events)} were ingested"
    ]

    # What is dropped on purpose is noted first: a process killed after that has dropped it too.
    lake.record_dropped([str(day)])
    assert lake.read(spark, "events").count() == 0
    assert damages(spark, lake) == []
    # A batch without its note is in no table.
    (lake.root / "_batches" / "00000000.json").unlink()
    assert damages(spark, lake) == ["the record of batch 0 is gone, and its events with it"]


def damages(spark, lake):
    found = audit(spark, lake)
    return [violation.explanation for violation in found.samples if violation.rule == "LAKE-1"]


@pytest.mark.parametrize("days", [0, -3, 10**9])
def test_invalid_arguments_are_refused(spark, lake, days):
    with pytest.raises(InvalidOption, match="days"):
        retain(spark, lake, days)
