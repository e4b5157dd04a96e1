"""Names that would be something else if they were not kept apart. [TENANT-3]

Invariants verified:
- a name is refused with the reason, or it is kept byte by byte; no two names ever meet
- what is special on the server (quotes, escapes, patterns, placeholders) is special nowhere in a name
- payloads, results and error texts come back as the other stores give them
"""

import asyncio
import itertools
import uuid

import pytest
from msgspec.structs import replace

from holdfast import InvalidName, Queue, job
from holdfast.core.job import (
    AttemptError,
    Cancel,
    Duplicate,
    Finish,
    IdempotencyKey,
    JobState,
    Progress,
    Queued,
    Report,
)
from holdfast.core.names import check_tenant
from holdfast.jobs import untyped
from holdfast.store import Hint, open_store
from holdfast.worker import Worker
from tests.eventually import eventually
from tests.stores.load import claim_one, complete, key, new, wish

IDS = [
    "a", "a:b", ":", "::", "1:a", "4:acme4:mail1:a", "*", "a*", "?", "[a]", "{}", "{", "}", "{s}", "{s}.jobs", "{a,b}",
    "NULL", "'; DROP TABLE x; --", "$$", "E'\\x'", "\\x00", "_", "a_b", "a%b", '{"', "0:c", " ",
    "a b", " a", "a ", "%s", "%", "\\", "\\n", '"', "'", "`", "$1", "-1", "+inf", "(", "0", "00",
    "1e3", "nil", "-", "A", "é", "e\u0301", "\ufb00", "ff", "\u2028", "\u200b", "\ufeff", "🦀" * 50, "ü" * 100,
    "x" * 200, "日本語", "\U0010ffff",
]  # fmt: skip

BAD_IDS = ["", "\n", "a\nb", "\0", "a\0", "\r", "\t", "\x1b[31m", "\x7f", "\x85", "x" * 201, "🦀" * 51, "\ud800"]
BAD_TENANTS = ["", "a:b", "{a}", "a{", "*", "a*", "a/b", "a b", "a\n", "\0", "é", "-a", ".a", "_a", "x" * 64, "🦀"]
BAD_QUEUES = ["", ":a", "/a", "{a}", "a{b}", "*", "a b", "a\n", "a\0", "é", "x" * 129]


@pytest.mark.parametrize("tenant", BAD_TENANTS)
def test_a_bad_tenant_is_refused(url, tenant):
    with pytest.raises(InvalidName, match="tenant"):
        Queue(url, tenant=tenant)


async def test_bad_ids_keys_and_queues_are_refused_and_leave_nothing(url, store):
    async with Queue(url, tenant="acme") as queue:
        for bad in BAD_IDS:
            with pytest.raises(InvalidName):
                await queue.enqueue({}, id=bad)
            with pytest.raises(InvalidName):
                await queue.enqueue({}, idempotency_key=bad)
            with pytest.raises(InvalidName):
                await queue.get(bad)
            with pytest.raises(InvalidName):
                await queue.cancel(bad)
        for bad in BAD_QUEUES:
            with pytest.raises(InvalidName):
                await queue.enqueue({}, queue=bad)
    assert await store.tenants() == []
    assert (await store.events(None, None, 10)).events == []


async def test_every_id_goes_through_a_whole_life_unchanged(url, store):
    """Enqueued, listed, claimed, completed with a result, told in the log, found by its id."""
    async with Queue(url, tenant="acme") as queue:
        tickets = await queue.enqueue_many([queue_message(id_) for id_ in IDS])
        assert [(ticket.id, ticket.status) for ticket in tickets] == [(id_, "queued") for id_ in IDS]
        assert [record.id for record in await queue.list(limit=1000)] == IDS
        assert [(await queue.get(id_)).id for id_ in IDS] == IDS
        jobs = (await store.claim(wish(1000, queues=("default",)))).jobs
        assert [job.id for job in jobs] == IDS
        await store.finish([complete(job, repr(job.id).encode()) for job in jobs])
        found = await store.get([key(id_, queue="default") for id_ in IDS])
        assert [job.result.data for job in found] == [repr(id_).encode() for id_ in IDS]
        told = [event.job_id for event in (await store.events("acme", None, 1000)).events]
        assert told == IDS * 3


def queue_message(id_):
    return untyped({"id": id_}).options(id=id_)


# Tenants, queues and ids which come out the same when they are joined by ':' or by nothing.
TENANTS = ["a", "aa", "a.b", "a-b", "1", "11", "0"]
QUEUES = ["a", "b", "b:c", "c", "a:b", "1:a", "1:a1:b", "c:", "b/c", "1", "11", "0"]
TANGLED_IDS = ["x", "c:x", ":x", "b:c:x", "1:x", "1:b1:x", "{0}", "c::x", "1", "11"]
PLACES = [key(id_, tenant=t, queue=q) for t, q, id_ in itertools.product(TENANTS, QUEUES, TANGLED_IDS)]


async def test_places_that_look_alike_when_joined_are_kept_apart(store):
    assert all(check_tenant(tenant) for tenant in TENANTS)
    answers = await store.enqueue([new(k.id, repr(k).encode(), tenant=k.tenant, queue=k.queue) for k in PLACES])
    assert all(isinstance(answer, Queued) for answer in answers)
    assert [job.envelope.payload for job in await store.get(PLACES)] == [repr(k).encode() for k in PLACES]
    assert await store.tenants() == sorted(TENANTS)
    # Cancelling in one place touches no other.
    canceled = PLACES[::7]
    assert set(await store.cancel([Cancel(k) for k in canceled])) == {"canceled"}
    for tenant in TENANTS:
        left = [k for k in PLACES if k.tenant == tenant and k not in canceled]
        stats = {s.queue: s.counts[JobState.READY] for s in await store.stats(tenant)}
        assert stats == {queue: sum(k.queue == queue for k in left) for queue in sorted(QUEUES)}
        for queue in QUEUES:
            jobs = (await store.claim(wish(100, tenant=tenant, queues=(queue,)))).jobs
            assert [job.key for job in jobs] == [k for k in left if k.queue == queue]
            assert [job.envelope.payload for job in jobs] == [repr(job.key).encode() for job in jobs]


async def test_keys_of_one_type_are_not_those_of_another(store):
    """An idempotency key belongs to its queue and its job type. [ENQ-3]"""
    tangled = [
        ("a", "b:c"),
        ("a:b", "c"),
        ("a", "1:c"),
        ("a1", ":c"),
        ("1:a", "c"),
        ("a", "c"),
        ("aa", "c"),
        ("a", "ac"),
    ]
    for number, (type_, text) in enumerate(tangled):
        (answer,) = await store.enqueue([typed(f"id-{number}", type_, text)])
        assert isinstance(answer, Queued), (type_, text)
    for number, (type_, text) in enumerate(tangled):
        (answer,) = await store.enqueue([typed(f"again-{number}", type_, text)])
        assert (type(answer), answer.id) == (Duplicate, f"id-{number}")
    (answer,) = await store.enqueue([typed("other", "a", "c", queue="other")])
    assert isinstance(answer, Queued)


def typed(id_, type_, text, *, queue="mail"):
    item = new(id_, queue=queue, idempotency=IdempotencyKey(text))
    return replace(item, envelope=replace(item.envelope, type=type_))


async def test_a_schema_is_not_the_beginning_of_another(postgres, database):
    """Two stores in one database see nothing of each other, however their schemas are written."""
    names = ["a", "A", "a-b", "a_b", "1", "x" * 60, "x" * 59]
    urls = [postgres.url(database, schema=name, test_clock=1) for name in names]
    stores = [await open_store(url) for url in urls]
    try:
        for number, store in enumerate(stores):
            await store.enqueue([new("same", b"%d" % number)])
            await store.shift_clock(1_000_000_000 * number)
        for number, store in enumerate(stores):
            job = await claim_one(store)
            assert job.envelope.payload == b"%d" % number
            assert (await store.claim(wish())).jobs == []
            assert abs(await store.now() - await stores[0].now() - 1_000_000_000 * number) < 60_000
    finally:
        for store in stores:
            await store.close()


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
        told = {name: {signal.queue for signal in heard[name]} - {""} for name in names}
        assert told == {name: {f"q{n}"} for n, name in enumerate(names)}
        for stop in stops:
            stop()
    finally:
        for store in [*stores, *others]:
            await store.close()


PAYLOADS = [bytes(range(256)) * 3, b"", b"\0", b"\\x00", b"\xff" * 1000, b"{" * 100, b"\\", b"'"]


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
async def test_payloads_and_results_are_kept_byte_by_byte(store, payload):
    await store.enqueue([new("fast", payload), new("slow", payload, idempotency=IdempotencyKey("k"))])
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


@pytest.mark.parametrize("outcome", ["fail", "retry"])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_error_texts_come_back_as_from_the_other_stores(store, text, outcome):
    """NUL is nothing that PostgreSQL's text can hold."""
    memory = await open_store(f"memory:{uuid.uuid4().hex}")
    found = []
    for place in (memory, store):
        await place.enqueue([new("x")])
        job = await claim_one(place)
        error = AttemptError("Boom", text, text)
        (answer,) = await place.finish([Finish(job.key, job.token, outcome, error=error)])
        (job,) = await place.get([job.key])
        found.append((answer, job.state, job.reason, [(e.type, e.message, e.traceback) for e in job.errors]))
    assert found[0] == found[1]
    await memory.close()


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_progress_comes_back_as_from_the_other_stores(store, text):
    memory = await open_store(f"memory:{uuid.uuid4().hex}")
    found = []
    for place in (memory, store):
        await place.enqueue([new("x")])
        job = await claim_one(place)
        await place.report([Report(job.key, job.token, Progress(0.5, text))])
        (job,) = await place.get([job.key])
        found.append(job.progress)
    assert found[0] == found[1]
    await memory.close()


@pytest.mark.parametrize("text", ["\ud800", "x\udcffy"], ids=["alone", "within"])
async def test_lone_surrogates_are_refused_as_by_the_other_stores_and_change_nothing(store, text):
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


async def test_what_a_handler_raises_is_kept_whatever_is_in_it(url):
    """A worker writes what no store can hold as something that it can."""
    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[break_with])
        running = asyncio.create_task(worker.run(handle_signals=False))
        ticket = await queue.enqueue(break_with.message("a SURROGATE, a NUL, and 'quotes'"))
        record = await eventually(ticket.refresh, lambda record: record.state is JobState.FAILED)
        assert [error.message for error in record.errors] == ["a ?, a \ufffd, and 'quotes'"]
        await worker.stop()
        await running
