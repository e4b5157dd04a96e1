"""Names that would be something else if they were not kept apart. [TENANT-3]

Invariants verified:
- a name is refused with the reason, or it is kept byte by byte; no two names ever meet
- what is special on a server (hash tags, quotes, escapes, patterns, placeholders) is special nowhere in a name
"""

import itertools

import pytest
from msgspec.structs import replace

from holdfast import InvalidName, Queue
from holdfast.core.job import Cancel, Duplicate, IdempotencyKey, JobState, Queued
from holdfast.core.names import check_tenant
from holdfast.jobs.definition import untyped
from holdfast.opening import open_store
from tests.stores.load import claim_one, complete, key, new, wish

IDS = [
    "a", "a:b", ":", "::", "1:a", "4:acme4:mail1:a", "*", "a*", "?", "[a]", "{}", "{", "}", "{0}", "{a}b", "a{b}",
    "hf:{0}:c", "{s}", "{s}.jobs", "{a,b}", "NULL", "'; DROP TABLE x; --", "$$", "E'\\x'", "\\x00", "_", "a_b", "a%b",
    '{"', "0:c", " ", "a b", " a", "a ", "%s", "%", "\\", "\\n", '"', "'", "`", "$1", "-1", "+inf", "(", "0", "00",
    "1e3", "nil", "-", "A", "é", "e\u0301", "\ufb00", "ff", "\u2028", "\u200b", "\ufeff", "🦀" * 50, "ü" * 100,
    "x" * 200, "日本語", "\U0010ffff",
]  # fmt: skip

BAD_IDS = ["", "\n", "a\nb", "\0", "a\0", "\r", "\t", "\x1b[31m", "\x7f", "\x85", "x" * 201, "🦀" * 51, "\ud800"]
BAD_TENANTS = ["", "a:b", "{a}", "a{", "*", "a*", "a/b", "a b", "a\n", "\0", "é", "-a", ".a", "_a", "x" * 64, "🦀"]
BAD_QUEUES = ["", ":a", "/a", "{a}", "a{b}", "*", "a b", "a\n", "a\0", "é", "x" * 129]


def test_a_bad_tenant_is_refused(url):
    for tenant in BAD_TENANTS:
        with pytest.raises(InvalidName, match="tenant"):
            Queue(url, tenant=tenant)


async def test_bad_ids_keys_and_queues_are_refused_and_not_stored(url, store):
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


async def test_every_id_is_kept_unchanged_through_a_whole_life(url, store):
    """Enqueued, listed, claimed, completed with a result, found in the log and by its id."""
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
        reported = [event.job_id for event in (await store.events("acme", None, 1000)).events]
        assert reported == IDS * 3


def queue_message(id_):
    return untyped({"id": id_}).options(id=id_)


# Tenants, queues and ids which come out the same when they are joined by ':' or by nothing.
TENANTS = ["a", "aa", "a.b", "a-b", "1", "11", "0"]
QUEUES = ["a", "b", "b:c", "c", "a:b", "1:a", "1:a1:b", "c:", "b/c", "1", "11", "0"]
TANGLED_IDS = ["x", "c:x", ":x", "b:c:x", "1:x", "1:b1:x", "{0}", "c::x", "1", "11"]
PLACES = [key(id_, tenant=t, queue=q) for t, q, id_ in itertools.product(TENANTS, QUEUES, TANGLED_IDS)]


@pytest.mark.parametrize("kind, options", [("valkey", "&shards=1"), ("valkey", "&shards=4"), ("postgres", "")])
async def test_names_that_are_equal_when_joined_are_kept_apart(url, options):
    assert all(check_tenant(tenant) for tenant in TENANTS)
    store = await open_store(url + options)
    try:
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
    finally:
        await store.close()


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


async def test_no_name_is_a_prefix_of_another(backend):
    """Stores on one server see nothing of each other, however their prefixes or schemas are written."""
    stores = [await open_store(url) for url in backend.similar_urls()]
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
