"""What a worker does with what handlers return and raise."""

import asyncio
import contextlib
import contextvars
import json
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from holdfast import current_job, job
from holdfast.core.errors import InvalidOption, Permanent, RetryLater
from holdfast.core.job import Envelope, JobKey, JobState, NewJob
from holdfast.jobs.definition import RetryPolicy
from holdfast.queue.queue import Queue
from holdfast.worker import Worker
from tests.eventually import eventually
from tests.unit.worker.serving import TERMINAL, heard, run, serving, until

SOON = RetryPolicy(base=timedelta(0), jitter="none")


async def test_an_async_handler_completes_its_job(queue):
    @job
    async def add(a: int, b: int = 2) -> int:
        await asyncio.sleep(0)
        return a + b

    async with serving(queue, add):
        assert await queue.enqueue_and_wait(add.message(1), timeout=60) == 3


async def test_a_plain_handler_runs_in_a_thread(queue):
    @job
    def where() -> str:
        return threading.current_thread().name

    async with serving(queue, where):
        assert await queue.enqueue_and_wait(where.message(), timeout=60) == "holdfast job"


async def test_a_handler_sees_its_job(queue):
    @job
    async def look() -> list[object]:
        me = current_job()
        return [me.id, me.tenant, me.queue, me.type, me.attempt, me.fence > 0]

    async with serving(queue, look):
        ticket = await queue.enqueue(look.message(), id="x")
        assert await ticket.wait(timeout=60) == ["x", "acme", "default", "look", 1, True]


async def test_jobs_do_not_see_each_others_context_variables(queue):
    seen = contextvars.ContextVar("seen", default="")

    @job
    async def leak() -> str:
        before = seen.get()
        seen.set("other")
        return before

    @job
    def leak_in_thread() -> str:
        before = seen.get()
        seen.set("other")
        return before

    async with serving(queue, leak, leak_in_thread, concurrency=1):
        for message in (leak.message(), leak.message(), leak_in_thread.message(), leak_in_thread.message()):
            assert await queue.enqueue_and_wait(message, timeout=60) == ""


async def test_the_catch_all_gets_the_payload_of_jobs_without_a_type(queue):
    async def handler(payload):
        return {"got": payload}

    async with serving(queue, handler=handler):
        assert await queue.enqueue_and_wait({"any": "json"}, timeout=60) == {"got": {"any": "json"}}


async def test_an_exception_is_a_failed_attempt_with_its_traceback(queue):
    @job(retry=RetryPolicy(base=timedelta(hours=1), jitter="none"))
    async def explode() -> None:
        raise ValueError("no\x00t \ud800 good" + "x" * 5000)

    async with serving(queue, explode) as worker:
        reported = heard(worker)
        job_ = await until(queue, await queue.enqueue(explode.message(), id="x"), JobState.RETRYING)
        [error] = job_.errors
        assert error.type == "ValueError"
        assert error.message.startswith("no\ufffdt ? good")
        assert len(error.message.encode()) <= 2048
        assert "in explode" in error.traceback
        assert "runner.py" not in error.traceback
        assert len(error.traceback.encode()) <= 8192
        assert job_.attempts == 1
    assert reported == [("retrying", "x")]


async def test_a_job_without_attempts_left_becomes_a_dead_letter(queue):
    @job(max_attempts=3, retry=SOON)
    def explode() -> None:
        raise ValueError(current_job().attempt)

    async with serving(queue, explode) as worker:
        reported = heard(worker)
        job_ = await until(queue, await queue.enqueue(explode.message(), id="x"))
        assert (job_.state, job_.reason, job_.attempts) == (JobState.FAILED, "max_attempts", 3)
        assert [error.message for error in job_.errors] == ["1", "2", "3"]
    assert reported == [("retrying", "x"), ("retrying", "x"), ("failed", "x")]


async def test_permanent_fails_at_once(queue):
    @job
    async def refuse() -> None:
        raise Permanent("never")

    async with serving(queue, refuse):
        job_ = await until(queue, await queue.enqueue(refuse.message()))
        assert (job_.state, job_.reason, job_.attempts) == (JobState.FAILED, "permanent", 1)


async def test_retry_later_returns_the_attempt(queue):
    @job
    async def later() -> None:
        raise RetryLater("not yet", delay=timedelta(hours=1))

    async with serving(queue, later):
        job_ = await until(queue, await queue.enqueue(later.message()), JobState.SCHEDULED)
        assert (job_.attempts, job_.errors) == (0, [])


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), BaseException("x")])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_exception_of_a_handler_does_not_end_the_worker(queue, error, in_thread):
    @job(name="bad", max_attempts=1)
    async def bad() -> None:
        raise error

    @job(name="bad", max_attempts=1)
    def bad_in_thread() -> None:
        raise error

    @job
    async def good() -> str:
        return "fine"

    async with serving(queue, bad_in_thread if in_thread else bad, good):
        job_ = await until(queue, await queue.enqueue(bad.message()))
        assert job_.state is JobState.FAILED
        assert job_.errors[0].type == type(error).__name__
        assert await queue.enqueue_and_wait(good.message(), timeout=60) == "fine"


async def test_an_error_that_cannot_be_shown_is_still_a_failed_attempt(queue):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    @job(max_attempts=1)
    async def mute() -> None:
        raise Mute

    async with serving(queue, mute):
        job_ = await until(queue, await queue.enqueue(mute.message()))
        assert (job_.errors[0].type, "RuntimeError" in job_.errors[0].message) == ("Mute", True)


async def put(queue, envelope, id="x"):
    """Enqueue a job that no definition would make."""
    await queue.store.enqueue([NewJob(JobKey("acme", "default", id), envelope)])
    return SimpleNamespace(id=id, queue="default")


async def test_an_unknown_type_is_released_without_counting_an_attempt(queue, store, caplog):
    """It may be claimed here any number of times: with one attempt it would fail during a deploy. [RETRY-6]"""
    ran = asyncio.Event()

    @job
    async def known() -> None: ...

    @job(name="new", max_attempts=1)
    async def new() -> None:
        ran.set()

    async def reasons():
        return [event.data["reason"] async for event in queue.events() if event.kind == "released"]

    async with serving(queue, known):
        ticket = await queue.enqueue(new.message())
        for times in range(1, 4):
            await eventually(reasons, lambda found, times=times: found == ["unknown_type"] * times)
            job_ = await until(queue, ticket, JobState.SCHEDULED)
            assert (job_.attempts, job_.errors, job_.released_for) == (0, [], "unknown_type")
            await store.shift_clock(1000)
    async with serving(queue, known, new):
        await until(queue, ticket, JobState.COMPLETED)
    assert ran.is_set()
    lines = [record.msg for record in caplog.records if "left to another worker" in str(record.msg)]
    assert [(line.fields["type"], line.fields["reason"]) for line in lines] == [("new", "unknown_type")]


async def test_an_unknown_codec_or_version_is_released(queue):
    @job(version=2)
    async def known(a: int) -> None: ...

    async with serving(queue, known):
        for envelope in (
            Envelope("known", b"{}", "klingon", version=2),
            Envelope("known", b'{"a":1}', version=9),
            Envelope("known", b'{"a":1}', version=1),
        ):
            job_ = await until(
                queue, await put(queue, envelope, f"{envelope.codec}{envelope.version}"), JobState.SCHEDULED
            )
            assert (job_.attempts, job_.errors, job_.released_for) == (0, [], "unknown_version")


async def test_a_job_that_no_worker_knows_fails_after_the_limit(queue):
    @job
    async def known() -> None: ...

    async with serving(queue, known, fail_unknown_after=0):
        job_ = await until(queue, await put(queue, Envelope("unknown", b"{}")))
        assert (job_.state, job_.reason, job_.errors[0].type) == (JobState.FAILED, "permanent", "UnknownJobType")
        job_ = await until(queue, await put(queue, Envelope("known", b"{}", version=2), "v"))
        assert (job_.state, job_.reason, job_.errors[0].type) == (JobState.FAILED, "permanent", "UnknownCodec")


async def test_a_lifespan_surrounds_the_jobs(queue):
    """It is entered before the first claim and left after the last job; an exception in it ends the worker."""
    said = []

    @contextlib.asynccontextmanager
    async def around(worker):
        said.append("begins")
        yield
        said.append("ends")

    @job
    async def last() -> None:
        said.append("runs")
        await worker.stop()
        said.append("finished")

    worker = Worker(queue, jobs=[last], lifespan=around)
    await queue.enqueue(last.message())
    await worker.run(signals=False)
    assert said == ["begins", "runs", "finished", "ends"]

    @contextlib.asynccontextmanager
    async def broken(worker):
        raise ValueError("no database")
        yield

    with pytest.raises(ValueError, match="no database"):
        await Worker(queue, jobs=[last], lifespan=broken).run(signals=False)


async def test_a_payload_that_cannot_be_decoded_fails_at_once(queue):
    @job
    async def known(a: int) -> None: ...

    async with serving(queue, known):
        for id_, payload in (("broken", b"{"), ("wrong", b'{"a": "x"}'), ("missing", b"{}")):
            job_ = await until(queue, await put(queue, Envelope("known", payload), id_))
            assert (job_.state, job_.reason) == (JobState.FAILED, "permanent")
            assert job_.errors[0].type == "InvalidPayload"


UNKEEPABLE = {
    "not encodable": (object(), "objects of type object cannot be encoded"),
    "NUL": ({"a": ["x\0"]}, "NUL characters cannot be stored (at $.a[0])"),
    "NaN": (float("nan"), "nan is not a number JSON can carry (at $)"),
    "too deep": (json.loads("[" * 150 + "]" * 150), "nested deeper than 100"),
}


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("what", UNKEEPABLE)
async def test_a_result_that_cannot_be_kept_fails_the_job_at_once(queue, what, kind):
    """[RESULT-1] The handler has had its effect: it is not run again, although attempts are left."""
    value, reason = UNKEEPABLE[what]
    runs = []

    @job(name="odd")
    async def in_the_loop() -> object:
        runs.append(1)
        return value

    @job(name="odd")
    def in_a_thread() -> object:
        runs.append(1)
        return value

    odd = in_the_loop if kind == "async" else in_a_thread
    async with serving(queue, odd):
        job_ = await until(queue, await queue.enqueue(odd.message()), {*TERMINAL, JobState.RETRYING})
    (error,) = job_.errors
    assert (job_.state, job_.reason, error.type, runs) == (JobState.FAILED, "permanent", "InvalidPayload", [1])
    assert error.message.startswith("the result cannot be stored: ")
    assert reason in error.message


async def test_a_large_result_without_a_blob_store_fails_permanently(queue):
    @job
    async def large() -> str:
        return "x" * 300_000

    async with serving(queue, large):
        job_ = await until(queue, await queue.enqueue(large.message()))
        assert (job_.state, job_.reason, job_.errors[0].type) == (JobState.FAILED, "permanent", "ResultTooLarge")


async def test_progress_reaches_the_store(queue):
    go_on = asyncio.Event()

    @job
    async def slow() -> None:
        current_job().progress(0.1)
        current_job().progress(0.5, "half")
        await go_on.wait()

    async with serving(queue, slow):
        ticket = await queue.enqueue(slow.message())
        record = await eventually(lambda: queue.get(ticket.id), lambda record: record.progress is not None)
        assert (record.progress.fraction, record.progress.message) == (0.5, "half")
        go_on.set()
        await ticket.wait(timeout=60)


async def test_a_worker_serves_the_queues_of_its_jobs(queue):
    @job(queue="emails")
    async def one() -> None: ...

    @job
    async def two() -> None: ...

    async def handler(payload): ...

    assert Worker(queue, jobs=[one]).settings.queues == ("emails",)
    assert Worker(queue, jobs=[one, two]).settings.queues == ("emails", "default")
    assert Worker(queue, jobs=[one], handler=handler).settings.queues == ("emails", "default")
    assert Worker(queue, jobs=[one], queues=["a", "b", "a"]).settings.queues == ("a", "b")


async def test_wrong_options_are_refused_with_the_reason(queue):
    @job(name="same")
    async def one() -> None: ...

    @job(name="same")
    async def two() -> None: ...

    @job(executor="process")
    def hidden() -> None: ...

    for options in (
        {"jobs": [one, two]},
        {"jobs": []},
        {"jobs": [hidden]},
        {"jobs": [print]},
        {"handler": one},
        {"jobs": [one], "queues": "emails"},
        {"jobs": [one], "queues": []},
        {"jobs": [one], "concurrency": 0},
        {"jobs": [one], "prefetch": -1},
        {"jobs": [one], "lease": timedelta(milliseconds=10)},
        {"jobs": [one], "shutdown_grace": -1},
    ):
        with pytest.raises(InvalidOption):
            Worker(queue, **options)
    with pytest.raises(InvalidOption):
        Worker(queue, jobs=[one]).on("finished", print)


async def test_callbacks_that_raise_do_not_affect_the_worker(queue):
    called = []

    @job
    async def fine() -> str:
        return "ok"

    async def bad_async(event):
        called.append("async")
        raise RuntimeError

    def bad(event):
        called.append("sync")
        raise RuntimeError

    async with serving(queue, fine) as worker:
        worker.on("completed", bad)
        worker.on("completed", bad_async)
        assert await queue.enqueue_and_wait(fine.message(), timeout=60) == "ok"
        assert await queue.enqueue_and_wait(fine.message(), timeout=60) == "ok"
    assert sorted(called) == ["async", "async", "sync", "sync"]


async def test_run_opens_and_closes_a_store_given_by_its_url(tmp_path):
    ran = []

    @job
    async def note() -> None:
        ran.append(current_job().tenant)
        await worker.stop()

    url = f"file:{tmp_path}/store"
    worker = Worker.for_all_tenants(url, jobs=[note], concurrency=3, queues=["default"])
    for tenant in ("a", "b"):
        async with Queue(url, tenant=tenant) as queue:
            await queue.enqueue(note.message())
        await asyncio.wait_for(worker.run(signals=False), 20)
    assert ran == ["a", "b"]
    assert fifos(tmp_path / "store") == []


def fifos(store):
    return [path.name for path in (store / "notifications").iterdir()]


async def test_a_worker_for_all_tenants_gives_each_its_turns(store):
    order = []

    @job
    async def note(n: int) -> None:
        order.append(current_job().tenant)

    for tenant in ("a", "b", "c"):
        async with Queue(store=store, tenant=tenant) as queue:
            await queue.enqueue_many([note.message(n) for n in range(5)])
    worker = Worker.for_all_tenants(store, jobs=[note], concurrency=1)
    all_done = asyncio.Event()
    worker.on("completed", lambda _event: len(order) == 15 and all_done.set())
    async with run(worker), asyncio.timeout(10):
        await all_done.wait()
    assert order == ["a", "b", "c"] * 5


def test_a_job_in_place_of_a_list_is_refused_by_name(queue):
    @job
    async def send() -> None: ...

    with pytest.raises(InvalidOption, match=r"write jobs=\[send\]"):
        Worker(queue, jobs=send)
