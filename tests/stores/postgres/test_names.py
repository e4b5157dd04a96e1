"""What PostgreSQL could take for something else: long names of schemas, and bytes and texts that it cannot hold.

Invariants verified:
- hints of one schema do not reach another
- payloads, results and error texts come back as the other stores give them
"""

import uuid

import pytest

from holdfast import Queue, job
from holdfast.core.job import AttemptError, Finish, IdempotencyKey, JobState, Progress, Report
from holdfast.opening import open_store
from holdfast.store import Hint
from holdfast.worker import Worker
from tests.eventually import eventually
from tests.stores.load import claim_one, complete, new, running, wish


async def test_hints_of_one_schema_do_not_reach_another(postgres, database):
    """Also of schemas whose names are long and differ in the last letter alone."""
    heard = {}
    names = ["x" * 60, "x" * 59 + "y", "x" * 59]
    stores = [await open_store(postgres.url(database, schema=name)) for name in names]
    others = [await open_store(postgres.url(database, schema=name)) for name in names]
    try:
        stops = []
        for name, store in zip(names, stores, strict=True):
            heard[name] = []
            stops.append(store.listen(heard[name].append, {Hint.READY}))
        await eventually(lambda: all(heard.values()))  # They listen from now on.
        for number, other in enumerate(others):
            await other.enqueue([new("x", queue=f"q{number}")])
        for number, name in enumerate(names):
            await eventually(lambda n=number, name=name: any(signal.queue == f"q{n}" for signal in heard[name]))
        reported = {name: {signal.queue for signal in heard[name]} - {""} for name in names}
        assert reported == {name: {f"q{n}"} for n, name in enumerate(names)}
        for stop in stops:
            stop()
    finally:
        for store in [*stores, *others]:
            await store.close()


PAYLOADS = [bytes(range(256)) * 3, b"", b"\0", b"\\x00", b"\xff" * 1000, b"{" * 100, b"\\", b"'"]


async def test_payloads_and_results_are_kept_byte_by_byte(store):
    for n, payload in enumerate(PAYLOADS):
        key = IdempotencyKey(f"k{n}")
        await store.enqueue([new(f"fast-{n}", payload), new(f"slow-{n}", payload, idempotency=key)])
        jobs = (await store.claim(wish())).jobs
        assert [job.envelope.payload for job in jobs] == [payload, payload]
        await store.finish([complete(job, payload) for job in jobs])
        found = await store.get([job.key for job in jobs])
        assert [(job.envelope.payload, job.result.data) for job in found] == [(payload, payload)] * 2


TEXTS = [
    "plain",
    "a\0b",
    "\0",
    "\x1b[31m",
    "line\nline",
    "\u2028",
    "🦀",
    "'; --",
    "\\",
    "%s {s} $1",
]


@pytest.fixture
async def memory():
    memory = await open_store(f"memory:{uuid.uuid4().hex}")
    yield memory
    await memory.close()


@pytest.mark.parametrize("outcome", ["fail", "retry"])
async def test_error_texts_are_returned_as_by_the_other_stores(store, memory, outcome):
    """NUL is nothing that PostgreSQL's text can hold."""

    async def kept(place, text):
        await place.enqueue([new("x", queue=repr(text))])
        job = await claim_one(place, queues=(repr(text),))
        error = AttemptError("Boom", text, text)
        (answer,) = await place.finish([Finish(job.key, job.token, outcome, error=error)])
        (job,) = await place.get([job.key])
        return answer, job.state, job.reason, [(e.type, e.message, e.traceback) for e in job.errors]

    for text in TEXTS:
        assert await kept(store, text) == await kept(memory, text)


async def test_progress_is_returned_as_by_the_other_stores(store, memory):
    async def kept(place, text):
        await place.enqueue([new("x", queue=repr(text))])
        job = await claim_one(place, queues=(repr(text),))
        await place.report([Report(job.key, job.token, Progress(0.5, text))])
        (job,) = await place.get([job.key])
        return job.progress

    for text in TEXTS:
        assert await kept(store, text) == await kept(memory, text)


@pytest.mark.parametrize("text", ["\ud800", "x\udcffy"], ids=["alone", "within"])
async def test_unpaired_surrogates_are_refused_as_by_the_other_stores_and_change_nothing(store, text):
    await store.enqueue([new("x")])
    job = await claim_one(store)
    with pytest.raises(UnicodeEncodeError):
        await store.finish([Finish(job.key, job.token, "fail", error=AttemptError("Boom", text, text))])
    with pytest.raises(UnicodeEncodeError):
        await store.report([Report(job.key, job.token, Progress(0.5, text))])
    (now,) = await store.get([job.key])
    assert (now.state, now.progress, now.errors) == (JobState.LEASED, None, [])
    assert (await store.finish([complete(job)]))[0].state is JobState.COMPLETED


@job(max_attempts=1)
async def break_with(text: str) -> None:
    raise RuntimeError(text.replace("SURROGATE", "\ud800").replace("NUL", "\0"))


async def test_an_exception_of_a_handler_is_stored_whatever_its_text(url):
    """A worker writes what no store can hold as something that it can."""
    async with Queue(url, tenant="acme") as queue, running(Worker(queue, jobs=[break_with])):
        ticket = await queue.enqueue(break_with.message("a SURROGATE, a NUL, and 'quotes'"))
        record = await eventually(ticket.refresh, lambda record: record.state is JobState.FAILED)
        assert [error.message for error in record.errors] == ["a ?, a \ufffd, and 'quotes'"]
