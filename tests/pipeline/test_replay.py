"""Replaying a set of dead letters: exactly these, each once, whatever breaks."""

import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.core import failpoint
from holdfast.core.errors import InvalidOption, StoreMismatch, StoreUnavailable
from holdfast.core.job import Purge
from holdfast.pipeline import replay as replaying
from holdfast.pipeline.replay import ReplayPlan, choose, preview, read_receipt, replay
from holdfast.store import TenantSettings
from tests.log import all_events
from tests.pipeline.failing import fail_waiting, make_dead, replays
from tests.pipeline.faulty import Faulty
from tests.pipeline.settings import only_full
from tests.pipeline.traffic import TENANTS, of_store

VALUE_ERRORS = "error_type = 'ValueError'"


def even(keys):
    return {key.id for key in keys if key.id.endswith(("0", "2", "4", "6", "8"))}


def test_exactly_the_chosen_dead_letters_are_replayed_once_even_if_they_fail_again(spark, valkey_url, tmp_path):
    keys = of_store(valkey_url, make_dead)
    plan, place = ReplayPlan(valkey_url, VALUE_ERRORS, tasks=2), tmp_path / "receipt"
    receipt = replay(spark, plan, place)
    assert of_store(valkey_url, replays) == dict.fromkeys(even(keys), 1)
    check_receipt(spark, receipt, place, even(keys))

    of_store(valkey_url, fail_waiting)
    # As a run leaves it that died before its end.
    replaying.write_json(place / "receipt.json", replace(read_receipt(place), state="chosen", answers={}))
    again = replay(spark, plan, place)
    assert of_store(valkey_url, replays) == dict.fromkeys(even(keys), 1)
    assert (again.state, again.answers) == ("done", {"replayed": 20})
    assert again.check.ok


def check_receipt(spark, receipt, place, ids):
    """It tells of these jobs, and the store agrees."""
    count = len(ids)
    assert (receipt.state, receipt.answers, receipt.chosen) == ("done", {"replayed": count}, count)
    assert receipt.check.ok
    assert (receipt.check.expected, receipt.check.found, receipt.check.more) == (count, count, 0)
    answers = spark.read.parquet(str(place / "answers"))
    assert {row.job_id for row in answers.collect()} == ids


@only_full
def test_only_the_chosen_dead_letters_are_replayed_and_not_later_ones(spark, file_url, tmp_path):
    keys = of_store(file_url, make_dead)
    found = preview(spark, ReplayPlan(file_url, f"{VALUE_ERRORS} AND tenant = 'acme' AND attempts = 1"), sample=3)
    assert found.total == sum(group["count"] for group in found.groups) == 20
    assert {group["tenant"] for group in found.groups} == {"acme"}
    assert {row["error_type"] for row in found.sample} == {"ValueError"}
    assert len(found.sample) == 3
    plan, place = ReplayPlan(file_url, VALUE_ERRORS, tasks=1), tmp_path / "receipt"
    assert choose(spark, plan, place).chosen == 20
    assert not of_store(file_url, replays)
    of_store(file_url, fail_waiting)
    check_receipt(spark, replay(spark, plan, place), place, even(keys))
    assert of_store(file_url, replays) == dict.fromkeys(even(keys), 1)
    with pytest.raises(InvalidOption, match="another replay"):
        replay(spark, replace(plan, where="1 = 1"), place)


@only_full
def test_removed_jobs_are_counted_separately(spark, postgres_url, tmp_path):
    keys = of_store(postgres_url, make_dead)
    plan = ReplayPlan(postgres_url, VALUE_ERRORS, tasks=2, rate=1000)
    assert choose(spark, plan, tmp_path / "receipt").chosen == 20
    of_store(postgres_url, lambda store: store.purge([Purge(keys[0])]))
    of_store(postgres_url, lambda store: store.replay([keys[2]]))
    receipt = replay(spark, plan, tmp_path / "receipt")
    assert receipt.answers == {"gone": 1, "replayed": 19}
    assert receipt.check.ok
    assert of_store(postgres_url, replays) == dict.fromkeys(even(keys[1:]), 1)


@only_full
def test_replays_that_a_quota_refuses_are_left_to_the_next_run(spark, file_url, tmp_path):
    async def narrow(store, room):
        await store.set_tenant(TENANTS[0], TenantSettings(max_waiting=room))

    of_store(file_url, make_dead)
    of_store(file_url, lambda store: narrow(store, 15))
    plan = ReplayPlan(file_url, "tenant = 'acme'", tasks=1, patience_s=0)
    receipt = replay(spark, plan, tmp_path / "receipt")
    assert (receipt.state, receipt.answers) == ("partial", {"replayed": 10, "quota": 10})
    of_store(file_url, lambda store: narrow(store, 1000))
    receipt = replay(spark, plan, tmp_path / "receipt")
    assert (receipt.state, receipt.answers) == ("done", {"replayed": 20})
    assert receipt.check.ok
    assert set(of_store(file_url, replays).values()) == {1}


def test_an_invalid_condition_is_refused(spark, file_url):
    of_store(file_url, lambda store: make_dead(store, 1))
    more = (
        "type IN (SELECT 'a')",
        "true) OR (true",
        "true; DROP VIEW events",
        "reflect('java.lang.System', 'gc') = 'a'",
    )
    for where in ("no_such_column = 1", "error_type = ", "error_type", "", *more):
        with pytest.raises(InvalidOption, match="where: "):
            preview(spark, ReplayPlan(file_url, where))


def test_a_missing_store_is_named(spark, tmp_path):
    with pytest.raises((InvalidOption, StoreMismatch, StoreUnavailable)) as said:
        preview(spark, ReplayPlan(f"file:{tmp_path}/nowhere", "true"))
    assert "Traceback" not in str(said.value)


def test_a_rate_is_kept_by_all_tasks_together():
    task = replaying.ReplayTask("file:x", "turn", 8.0, 0)
    assert task._step == 2
    with pytest.raises(InvalidOption, match="rate"):
        ReplayPlan("file:x", "true", rate=0)


def test_retried_tasks_replay_no_job_twice_even_if_it_failed_again(spark, file_url, tmp_path, monkeypatch):
    keys = of_store(file_url, make_dead)
    # The store has replayed some each time the task dies: twice they fail again at once, once the process is killed.
    faults = [("replay.after_call", 2, "fail again"), ("replay.after_part", 1, "kill")]
    real = replaying.ReplayTask
    monkeypatch.setattr(replaying, "ReplayTask", lambda *args: Faulty(real(*args), tmp_path, faults, file_url))
    receipt = replay(spark, ReplayPlan(file_url, VALUE_ERRORS, rate=200, tasks=2), tmp_path / "receipt")
    assert (receipt.state, receipt.answers) == ("done", {"replayed": 20})
    assert receipt.check.ok
    assert len(list(tmp_path.glob("replay.after_*"))) == 3
    assert of_store(file_url, replays) == dict.fromkeys(even(keys), 1)


def test_a_task_that_was_replaced_too_early_replays_no_job_twice(file_url, tmp_path):
    """Two tasks with the same row: one has looked and not yet replayed, the other comes, and the job fails again."""
    (key,) = of_store(file_url, lambda store: make_dead(store, 1))
    (job,) = of_store(file_url, lambda store: store.get([key]))
    at = {name: datetime.fromtimestamp(getattr(job, name) / 1000, UTC) for name in ("enqueued_at", "finished_at")}
    row = {"tenant": key.tenant, "queue": key.queue, "job_id": key.id, "type": "t", "attempts": 1, "replays": 0} | at
    arrow = to_arrow_schema(replaying.CHOSEN, timezone="UTC")
    answers, other, waits = [], [], threading.Event()

    def run():
        task = replaying.ReplayTask(file_url, str(tmp_path / "turn"), None, 60, "cli:ann")
        for batch in task(iter([pa.RecordBatch.from_pylist([row], schema=arrow)])):
            answers.extend(batch.to_pylist())

    def run_and_fail_again():
        run()
        of_store(file_url, fail_waiting)
        waits.set()

    def meanwhile(step):
        if step == "replay.before_call" and not other:
            other.append(threading.Thread(target=run_and_fail_again))
            other[0].start()
            waits.wait(60)
        if step == "replay.not_my_turn":
            waits.set()

    failpoint.install(meanwhile)
    try:
        run()
        other[0].join()
    finally:
        failpoint.install(None)
    assert [answer["answer"] for answer in answers] == ["replayed", "replayed"]
    events = of_store(file_url, all_events)
    assert [event.data["by"] for event in events if event.kind == "replayed"] == ["cli:ann"]
    assert of_store(file_url, replays) == {key.id: 1}
