"""The demo, run as a newcomer runs it, only smaller."""

import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from holdfast import JobState, Queue
from holdfast.demo import history
from holdfast.demo.audit import audit, percentile
from holdfast.demo.directory import NotOurs, fresh, store_url
from holdfast.demo.effects import Effect, read
from holdfast.demo.jobs import thumbnail
from holdfast.demo.plan import POISON_ID, plans
from holdfast.pipeline import session


def start(*arguments):
    """Without its last part: tests/pipeline/test_demo.py."""
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "demo", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"JAVA_HOME": "/nowhere"},
    )  # fmt: skip


@pytest.mark.timeout(600)
async def test_a_small_demo_loses_no_job_and_the_poison_job_becomes_a_dead_letter(tmp_path):
    directory = tmp_path / "demo data"
    demo = start("--dir", directory, "--jobs", 150, "--lease", 1)
    output, _ = demo.communicate(timeout=500)
    assert demo.returncode == 0, output
    assert "lost: 0" in output.splitlines()
    assert "SIGKILL to worker-2" in output
    assert (directory / "workers.log").exists()
    async with Queue(store_url(directory), tenant="initech") as queue:
        (dead,) = await queue.dead_letters(queue="images")
        assert (dead.id, dead.reason, dead.attempts) == (POISON_ID, "lease_expired", 3)
        for stats in await queue.queues():
            ended = stats.counts[JobState.COMPLETED] + stats.counts[JobState.FAILED] + stats.counts[JobState.CANCELED]
            assert sum(stats.counts.values()) == ended
    began = [effect for effect in read(directory / "effects.log") if effect.what == "began"]
    assert sum(effect.id == POISON_ID for effect in began) == 3
    assert "last part was left out" in output


def test_without_java_the_demo_names_what_it_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    said = Console(record=True, width=200)
    assert history.audit_log(said, tmp_path, "file:nowhere")
    (line,) = filter(None, said.export_text().splitlines())
    assert "does not run" in line
    assert "last part was left out" in line
    assert list(tmp_path.iterdir()) == []


def test_pyspark_is_installed_last_and_only_with_java(tmp_path, monkeypatch):
    brought = tmp_path / "brought"
    monkeypatch.setattr(session, "find_spec", lambda _: True if brought.exists() else None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "does not run" in history.missing(f"touch {brought}")
    assert not brought.exists()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.9\"' >&2\n")
    java.chmod(0o755)
    assert "needs pyspark" in history.missing("false")
    assert history.missing(f"touch {brought}") == ""
    assert brought.exists()


async def test_an_interrupted_demo_leaves_no_worker_behind(tmp_path):
    demo = start("--dir", tmp_path / "demo")
    with demo.stdout:
        for line in demo.stdout:
            if "while it was running" in line:
                break
        async with Queue(store_url(tmp_path / "demo"), tenant="acme") as queue:
            workers = await queue.workers()
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.wait(60) == 130
    assert "Interrupted" in rest
    assert workers
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)


def test_a_foreign_directory_is_left_unchanged(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    demo = start("--dir", tmp_path)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 2
    assert "holds something other than a demo" in output
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_earlier_demo_is_removed_but_not_a_running_one(tmp_path):
    directory = tmp_path / "demo"
    with fresh(directory):
        (directory / "effects.log").write_text("old")
        (directory / "notifications").mkdir()
        with pytest.raises(NotOurs, match="another demo is running"), fresh(directory):
            pass
        assert (directory / "effects.log").exists()
    with fresh(directory):
        assert [path.name for path in directory.iterdir()] == ["demo.lock"]


async def test_a_job_that_has_not_ended_or_is_unknown_counts_as_lost():
    async with Queue("memory:demo-audit", tenant="acme") as queue:
        ticket = await queue.enqueue(thumbnail.message(1, 0.0), id="waiting")
        await queue.enqueue(thumbnail.message(1, 0.0), id="ended")
        await queue.cancel("ended", queue="images")
        jobs = [("acme", ticket.queue, id_) for id_ in ("waiting", "ended", "never-was")]
        found = await audit([queue], jobs, [])
    assert [(lost.job[2], lost.text) for lost in found.lost] == [
        ("never-was", "the store does not know it"),
        ("waiting", "it is still ready"),
    ]
    assert found.acknowledged["acme"] == 3


async def test_a_handler_that_finished_under_two_leases_counts_as_twice_done():
    effects = [Effect(what, "acme", "images", "a", fence, 0.0) for fence in (1, 2) for what in ("began", "finished")]
    async with Queue("memory:demo-audit", tenant="acme") as queue:
        found = await audit([queue], [], effects)
    assert found.finished_twice == 1


def test_every_plan_is_the_same_each_time():
    first, second = ([[message.resolved for message in plan.messages] for plan in plans(500)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("percent, value", [(50, 2.0), (99, 4.0), (1, 1.0)])
def test_a_percentile_is_one_of_the_values(percent, value):
    assert percentile([4.0, 1.0, 2.0, 3.0], percent) == value
