"""Handlers in child processes."""

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.core.job import Envelope, JobKey, JobState, NewJob
from holdfast.worker import Worker
from tests.eventually import eventually
from tests.unit.worker import process_jobs as jobs
from tests.unit.worker.serving import heard, run, serving, until


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def pid_in(path):
    return int(await eventually(lambda: path.exists() and path.read_text()))


async def test_a_job_runs_in_another_process_which_is_reused(queue):
    async with serving(queue, jobs.pid, jobs.pid_async, jobs.facts):
        first = await queue.enqueue_and_wait(jobs.pid.message(), timeout=20)
        second = await queue.enqueue_and_wait(jobs.pid_async.message(), timeout=20)
        assert first == second != os.getpid()
        ticket = await queue.enqueue(jobs.facts.message(), id="x")
        assert await ticket.wait(timeout=20) == ["x", "acme", 1, True]
    assert not is_alive(first)


async def test_concurrent_jobs_have_a_process_each(queue, tmp_path):
    async with serving(queue, jobs.report_and_wait, concurrency=2, shutdown_grace=0):
        pids = set()
        for n in range(2):
            started = tmp_path / f"started{n}"
            await queue.enqueue(jobs.report_and_wait.message(str(tmp_path / f"done{n}"), str(started)))
            pids.add(await pid_in(started))
        assert len(pids) == 2
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(
    "how, type_, text",
    [
        ("kill", "ProcessDied", "signal 9 (SIGKILL)"),
        ("exit", "ProcessDied", "exit code 3"),
        ("sys.exit", "SystemExit", "3"),
        ("permanent", "Permanent", "never"),
        ("anything", "ValueError", "anything"),
    ],
)
async def test_the_death_of_a_child_fails_one_attempt(queue, how, type_, text):
    async with serving(queue, jobs.die, jobs.pid):
        job_ = await until(queue, await queue.enqueue(jobs.die.message(how)), patience=20)
        assert job_.state is JobState.FAILED
        assert (job_.errors[0].type, text in job_.errors[0].message) == (type_, True)
        assert job_.reason == ("permanent" if how == "permanent" else "max_attempts")
        await queue.enqueue_and_wait(jobs.pid.message(), timeout=20)


async def test_the_death_of_one_child_harms_no_other(queue, tmp_path):
    async with serving(queue, jobs.die, jobs.report_and_wait, shutdown_grace=0) as worker:
        reported = heard(worker)
        started = tmp_path / "started"
        await queue.enqueue(jobs.report_and_wait.message(str(tmp_path / "done"), str(started)), id="other")
        await pid_in(started)
        await until(queue, await queue.enqueue(jobs.die.message("kill"), id="x"), patience=20)
        assert (await queue.get("other")).state is JobState.LEASED
        assert reported == [("failed", "x")]


async def test_retry_later_in_a_child_returns_the_attempt(queue):
    async with serving(queue, jobs.die):
        job_ = await until(queue, await queue.enqueue(jobs.die.message("later")), JobState.SCHEDULED, patience=20)
        assert job_.attempts == 0


async def test_progress_of_a_child_reaches_the_store(queue, tmp_path):
    async with serving(queue, jobs.report_and_wait, shutdown_grace=0):
        ticket = await queue.enqueue(jobs.report_and_wait.message(str(tmp_path / "done"), str(tmp_path / "started")))
        record = await eventually(lambda: queue.get(ticket.id), lambda record: record.progress is not None)
        assert (record.progress.fraction, record.progress.message) == (0.25, "a quarter")


@pytest.mark.parametrize("definition", [jobs.report_and_wait, jobs.async_and_wait])
async def test_a_canceled_child_cleans_up_and_ends(queue, tmp_path, definition):
    done, started = tmp_path / "done", tmp_path / "started"
    async with serving(queue, definition) as worker:
        reported = heard(worker)
        ticket = await queue.enqueue(definition.message(str(done), str(started)), id="x")
        pid = await pid_in(started)
        await ticket.cancel()
        await eventually(lambda: not is_alive(pid))
        assert done.read_text() in ("True", "cleaned up")
    assert reported == [("canceled", "x")]


async def test_a_child_past_its_timeout_is_ended(queue, tmp_path):
    started = tmp_path / "started"
    async with serving(queue, jobs.too_slow):
        job_ = await until(queue, await queue.enqueue(jobs.too_slow.message(str(started))), patience=20)
        assert (job_.state, job_.reason) == (JobState.FAILED, "timeout")
        assert not started.exists() or not is_alive(int(started.read_text()))


async def test_a_child_that_ignores_its_cancel_is_killed(queue, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.worker.processes.TERM_S", 0.2)
    started = tmp_path / "started"
    worker = Worker(queue, jobs=[jobs.stubborn], shutdown_grace=0)
    await queue.enqueue(jobs.stubborn.message(str(started)), id="x")
    async with run(worker):
        pid = await pid_in(started)
    assert not is_alive(pid)
    assert (await queue.get("x")).state is JobState.READY


async def test_a_second_stop_does_not_wait_for_children(queue, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.worker.processes.TERM_S", 60)
    started = tmp_path / "started"
    worker = Worker(queue, jobs=[jobs.stubborn], shutdown_grace=60)
    await queue.enqueue(jobs.stubborn.message(str(started)), id="x")
    async with run(worker):
        pid = await pid_in(started)
        worker._loop.stop_now()
        await asyncio.wait_for(worker.stop(), 30)
    assert not is_alive(pid)
    record = await queue.get("x")
    assert (record.state, record.attempts) == (JobState.READY, 0)


async def test_results_of_a_child_have_the_usual_size_limit(queue):
    async with serving(queue, jobs.odd_result, jobs.large_result):
        states = {JobState.FAILED, JobState.RETRYING}
        odd = await until(queue, await queue.enqueue(jobs.odd_result.message()), states, patience=20)
        assert (odd.state, odd.reason, odd.errors[0].type) == (JobState.FAILED, "permanent", "InvalidPayload")
        large = await until(queue, await queue.enqueue(jobs.large_result.message()), patience=20)
        assert (large.state, large.errors[0].type) == (JobState.FAILED, "ResultTooLarge")


async def test_a_payload_that_the_child_cannot_read_fails_at_once(queue):
    async with serving(queue, jobs.die):
        await queue.store.enqueue([NewJob(JobKey("acme", "default", "x"), Envelope("die", b"{}"))])
        job_ = await until(queue, await queue.enqueue(jobs.die.message("x"), id="x"), patience=20)
        assert (job_.state, job_.reason, job_.errors[0].type) == (JobState.FAILED, "permanent", "InvalidPayload")


MAIN = """
import asyncio, sys
from holdfast import Queue, job
from holdfast.worker import Worker

@job(executor="process")
def twice(n: int) -> int:
    return 2 * n

async def main():
    async with Queue("memory:", tenant="acme") as queue:
        worker = Worker(queue, jobs=[twice])
        task = asyncio.create_task(worker.run())
        print(await queue.enqueue_and_wait(twice.message(21), timeout=20))
        await worker.stop()
        await task

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_a_child_finds_a_job_of_the_main_program(tmp_path):
    import sys

    program = tmp_path / "program.py"
    program.write_text(MAIN)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), stdout=asyncio.subprocess.PIPE, cwd=Path.cwd()
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert (output.decode().strip(), process.returncode) == ("42", 0)


async def test_the_child_of_a_killed_worker_ends(tmp_path):
    import sys

    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, os\n"
        "from holdfast import Queue\n"
        "from holdfast.worker import Worker\n"
        "from tests.unit.worker import process_jobs as jobs\n"
        "async def main():\n"
        "    async with Queue('memory:', tenant='acme') as queue:\n"
        f"        await queue.enqueue(jobs.stubborn.message({str(tmp_path / 'started')!r}))\n"
        "        await Worker(queue, jobs=[jobs.stubborn]).run()\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), env=env)
    pid = await pid_in(tmp_path / "started")
    process.kill()
    await process.wait()
    await eventually(lambda: not is_alive(pid) or _is_zombie(pid))


def _is_zombie(pid):
    """Dead, although possibly not reaped: the process that inherits orphans here may be slow."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return False
