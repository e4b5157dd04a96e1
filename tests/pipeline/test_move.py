"""Moves whose steps are done by Spark's tasks."""

import asyncio
import json

import pytest

from holdfast.core.errors import InvalidOption
from holdfast.migrate import MovePlan, move
from holdfast.pipeline import move as moving
from holdfast.pipeline.move import check_stores, spark_walker
from tests.migrate.filling import TENANT, fill, names, run_all
from tests.pipeline.faulty import Faulty
from tests.pipeline.traffic import of_store

ALL = ("mail", "video", "odd")


def test_failed_tasks_are_retried_and_no_row_comes_twice(spark, file_url, valkey_url, tmp_path, monkeypatch):
    of_store(file_url, lambda store: fill(store, 600))
    before = of_store(file_url, lambda store: names(store, *ALL))
    real = moving.Walk
    # After a page of 500: the first has come, or is gone, and the task begins again.
    faults = [("move.copy", 1, "kill"), ("move.take", 1, "raise")]
    monkeypatch.setattr(moving, "Walk", lambda *args: Faulty(real(*args), tmp_path, faults))
    plan = MovePlan(file_url, valkey_url, TENANT)
    done = asyncio.run(move(plan, spark_walker(spark, plan)))
    assert (tmp_path / "move.copy.0").exists()
    assert (tmp_path / "move.take.0").exists()
    assert done.jobs == 604
    assert all(one.source_sum == one.target_sum for one in done.queues)
    assert of_store(valkey_url, lambda store: names(store, *ALL)) == before
    assert of_store(file_url, lambda store: names(store, *ALL)) == {"mail": [], "video": [], "odd": []}
    ran = of_store(valkey_url, lambda store: run_all(store, "mail"))
    assert ran == [id for id in before["mail"] if id != "later"]


def test_the_command_moves_and_reports_the_counts(spark, file_url, tmp_path, capsys, monkeypatch):
    from holdfast.cli import main

    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    of_store(file_url, fill)
    with pytest.raises(SystemExit) as end:
        main(["pipeline", "move", file_url, f"file:{tmp_path}/other", "--tenant", TENANT, "--json"])
    printed = capsys.readouterr()
    assert not end.value.code, printed.err
    said = json.loads(printed.out)
    assert said["jobs"] == 16
    assert [one["queue"] for one in said["queues"]] == ["mail", "odd", "video"]
    assert all(one["source_sum"] == one["target_sum"] for one in said["queues"])


def test_a_memory_store_is_refused():
    with pytest.raises(InvalidOption, match="a memory: store exists in one process"):
        check_stores(MovePlan("file:./here", "memory:there", TENANT))
