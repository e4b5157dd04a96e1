"""Workers in Spark tasks: ordinary workers, so nothing is lost whatever becomes of their tasks."""

from functools import partial

import pytest

from holdfast.cli.running import WorkerConfig, make_worker
from holdfast.core.errors import InvalidOption, StoreError
from holdfast.core.job import Envelope
from holdfast.pipeline import work as working
from holdfast.pipeline.work import WorkPlan, pack, work
from tests.pipeline.faulty import Faulty
from tests.pipeline.traffic import of_store
from tests.pipeline.working import endings, fill, write_jobs


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """The name of a module with jobs, found by this process alone, and the module as it travels."""
    module = write_jobs(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module.stem, pack([module])


def making(url, module, **options):
    return partial(make_worker, WorkerConfig(url, "acme", [module], concurrency=4, **options))


def test_workers_in_two_tasks_drain_a_queue_and_run_each_job_once(spark, url, tmp_path, jobs):
    module, code = jobs
    of_store(url, lambda store: fill(store, 200, tmp_path))
    done = work(spark, WorkPlan(url, tasks=2, until_empty=True), making(url, module), code)
    assert of_store(url, endings) == {f"crunch-{n}": 1 for n in range(200)}
    assert sorted(map(int, (tmp_path / "effects").read_text().split())) == list(range(200))
    assert done.totals == {"completed": 200, "failed": 0, "retrying": 0, "canceled": 0, "stalled": 0}
    assert not any(done.left.values())
    assert len({worker["worker_id"] for worker in done.workers}) == 2


def test_the_jobs_of_a_killed_worker_are_run_by_others(spark, valkey_url, tmp_path, jobs, monkeypatch):
    module, code = jobs
    of_store(valkey_url, lambda store: fill(store, 40, tmp_path))
    real = working.WorkerTask
    faults = [("worker.before_ack", 1, "kill")]
    monkeypatch.setattr(working, "WorkerTask", lambda *args: Faulty(real(*args), tmp_path, faults))
    done = work(spark, WorkPlan(valkey_url, 2, until_empty=True), making(valkey_url, module, lease_s=2.0), code)
    assert (tmp_path / "worker.before_ack.0").exists()
    assert of_store(valkey_url, endings) == {f"crunch-{n}": 1 for n in range(40)}
    assert not any(done.left.values())
    assert len(done.workers) == 2


def test_workers_end_when_the_file_appears_or_their_time_is_over(spark, file_url, tmp_path, jobs):
    module, code = jobs
    asking = Envelope("ask_to_stop", b'{"place":"%s"}' % str(tmp_path).encode())
    of_store(file_url, lambda store: fill(store, 1, tmp_path, [asking]))
    stop = tmp_path / "stop"
    done = work(spark, WorkPlan(file_url, 2, stop_file=str(stop)), making(file_url, module), code)
    assert done.totals["completed"] == 2
    done = work(spark, WorkPlan(file_url, 1, duration_s=0.5), making(file_url, module), code)
    assert done.totals["completed"] == 0
    with pytest.raises(InvalidOption, match="exists already"):
        work(spark, WorkPlan(file_url, 1, stop_file=str(stop)), making(file_url, module), code)


def test_errors_are_reported_before_a_task_starts(spark, file_url, tmp_path, jobs):
    _, code = jobs
    of_store(file_url, lambda store: fill(store, 0, tmp_path))
    with pytest.raises(InvalidOption, match="no module"):
        work(spark, WorkPlan(file_url, 1, until_empty=True), making(file_url, "no_such_module"), code)
    with pytest.raises(InvalidOption, match="tasks"):
        WorkPlan(file_url, 0)
    with pytest.raises(InvalidOption, match="no file"):
        pack([tmp_path / "nowhere.py"])


def test_code_that_was_not_shipped_is_named_as_missing(spark, file_url, tmp_path, jobs):
    module, _ = jobs
    of_store(file_url, lambda store: fill(store, 0, tmp_path))
    with pytest.raises((InvalidOption, StoreError), match="there is no module"):
        work(spark, WorkPlan(file_url, 1, until_empty=True), making(file_url, module))
