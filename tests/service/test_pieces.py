"""Large work of one tenant is done in pieces, one at a time, and rests while other tenants are active. [TENANT-4]"""

import asyncio
import contextlib
import uuid

import pytest
from msgspec import json

from holdfast import Queue
from holdfast.core.job import PAYLOAD_LIMIT
from holdfast.service import answer_size, call, context, turns
from holdfast.service.call import Reply, send_reply
from holdfast.service.routes.batches import ITEM_WORK
from holdfast.service.turns import Activity, CheckTurns, PieceTurns
from tests.service.support import PATIENCE_S, serving

LONG_S = 1000.0


@pytest.fixture
def long_rests(monkeypatch):
    """A tenant that has to rest does so until the end of the test."""
    monkeypatch.setattr(turns, "RECENT_S", LONG_S)
    monkeypatch.setattr(Activity, "rest_s", lambda self, tenant, _: LONG_S if self.has_others(tenant) else 0.0)


class Reads:
    """Reads that end when the test says so, with the number that ran at the same time."""

    def __init__(self):
        self.began, self.ended, self.at_once, self.peak = [], [], 0, 0
        self.go = asyncio.Semaphore(0)

    async def read(self, name):
        self.began.append(name)
        self.at_once += 1
        self.peak = max(self.peak, self.at_once)
        try:
            await self.go.acquire()
        finally:
            self.at_once -= 1
        self.ended.append(name)
        return name


async def ticks(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_pieces_of_a_tenants_read_run_one_at_a_time_in_order():
    pieces, reads = PieceTurns(Activity()), Reads()
    tasks = [asyncio.create_task(pieces.run("a", reads.read, number)) for number in range(5)]
    other = asyncio.create_task(pieces.run("b", reads.read, "other"))
    await ticks()
    assert reads.began == [0, "other"]
    for _ in range(6):
        reads.go.release()
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*tasks, other) == [0, 1, 2, 3, 4, "other"]
    assert reads.peak == 2
    assert [name for name in reads.began if name != "other"] == [0, 1, 2, 3, 4]
    assert not pieces._waiting


async def test_a_canceled_or_failed_piece_passes_its_turn_on():
    pieces, reads = PieceTurns(Activity()), Reads()

    async def fail():
        await reads.read("fails")
        raise LookupError

    first = asyncio.create_task(pieces.run("a", fail))
    tasks = [asyncio.create_task(pieces.run("a", reads.read, number)) for number in range(3)]
    await ticks()
    tasks[0].cancel()
    reads.go.release()
    with pytest.raises(LookupError):
        await first
    await ticks(1)
    tasks[1].cancel()  # Just when it is given its turn, or has begun.
    reads.go.release()
    async with asyncio.timeout(PATIENCE_S):
        assert await tasks[2] == 2
    assert [task.cancelled() for task in tasks] == [True, True, False]
    assert not pieces._waiting


@pytest.mark.usefixtures("long_rests")
async def test_a_tenants_next_piece_waits_while_others_are_active():
    activity, reads = Activity(), Reads()
    pieces = PieceTurns(activity)
    for name in ("a", "b", "a"):
        activity.note(name)
    for _ in range(4):
        reads.go.release()
    async with asyncio.timeout(PATIENCE_S):
        # The answer of the first piece does not wait for the rest after it.
        assert await pieces.run("a", reads.read, "first") == "first"
        resting = asyncio.create_task(pieces.run("a", reads.read, "second"))
        assert await pieces.run("b", reads.read, "other") == "other"
    await ticks()
    assert reads.began == ["first", "other"]
    resting.cancel()


@pytest.mark.usefixtures("long_rests")
async def test_a_tenant_without_active_neighbors_does_not_rest():
    activity, reads = Activity(), Reads()
    pieces = PieceTurns(activity)
    for number in range(3):
        activity.note("a")
        reads.go.release()
        async with asyncio.timeout(PATIENCE_S):
            assert await pieces.run("a", reads.read, number) == number


def slices(done, name, count=4):
    for _ in range(count):
        done.append(name)
        yield


@pytest.mark.usefixtures("long_rests")
async def test_a_check_rests_after_each_slice_while_others_are_active():
    activity, done = Activity(), []
    checks = CheckTurns(activity)
    for name in ("a", "b"):
        activity.note(name)
    checking = asyncio.create_task(checks.run(slices(done, "a"), "a"))
    await ticks()
    before = len(done)
    assert before <= 2  # One at once, if the turn was free, and one in the next turn.
    async with asyncio.timeout(PATIENCE_S):
        await checks.take(turns.TURN, "b")  # It does not wait behind the rest of the other.
    await ticks()
    assert len(done) == before
    checking.cancel()


async def test_a_check_without_active_neighbors_continues_in_each_turn():
    activity, done = Activity(), []
    activity.note("a")
    async with asyncio.timeout(PATIENCE_S):
        await CheckTurns(activity).run(slices(done, "a", 50), "a")
    assert len(done) == 50


async def test_a_rest_is_a_multiple_of_the_piece_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(turns, "RECENT_S", LONG_S)
    activity = Activity()
    activity.note("a")
    assert activity.rest_s("a", 0.01) == 0
    activity.note("b")
    activity.note("b")
    assert activity.rest_s("a", 0.01) == activity.rest_s("b", 0.01) == turns.REST * 0.01
    assert activity.rest_s("c", 60) == turns.MAX_REST_S


# In the service ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def noted(monkeypatch, store, name):
    """The arguments and the answer of each call."""
    made, method = [], getattr(store, name)

    async def run(*args):
        made.append([args, None])
        made[-1][1] = await method(*args)
        return made[-1][1]

    with monkeypatch.context() as patch:
        patch.setattr(store, name, run)
        yield made


async def test_a_page_of_queues_is_read_in_pieces(monkeypatch):
    monkeypatch.setattr(context, "QUEUES_IN_PIECE", 20)
    async with serving(f"memory:{uuid.uuid4()}") as service:
        client, store = await service.client(), service.context.store
        names = [f"q{number:03}" for number in range(50)]
        jobs = [{"queue": name} for name in names]
        assert (await client.post("/v1/jobs:batch", json={"jobs": jobs})).status_code == 200
        for limit, pieces in ((1000, [20, 20, 20]), (50, [20, 20, 10]), (5, [5])):
            with noted(monkeypatch, store, "queue_page") as made:
                page = (await client.get("/v1/queues", params={"limit": limit})).json()
            assert [args[2] for args, _ in made] == pieces
            assert [one["queue"] for one in page["queues"]] == names[:limit]
        rest = await client.get("/v1/queues", params={"limit": 1000, "cursor": page["cursor"]})
        assert [one["queue"] for one in rest.json()["queues"]] == names[5:]


async def test_the_queues_of_a_token_are_counted_in_pieces(monkeypatch):
    monkeypatch.setattr(context, "QUEUES_IN_PIECE", 20)
    async with serving(f"memory:{uuid.uuid4()}") as service:
        names = [f"q{number:02}" for number in range(50)]
        client, store = await service.client(queues=names), service.context.store
        assert (await client.post("/v1/jobs:batch", json={"jobs": [{"queue": n} for n in names]})).status_code == 200
        with noted(monkeypatch, store, "stats") as made:
            page = (await client.get("/v1/queues", params={"limit": 1000})).json()
        assert [len(args[1]) for args, _ in made] == [20, 20, 10]
        assert [one["queue"] for one in page["queues"]] == names


async def test_a_page_of_large_jobs_is_read_in_pieces(monkeypatch):
    async with serving(f"memory:{uuid.uuid4()}") as service:
        client, store = await service.client(), service.context.store
        payload = "x" * (PAYLOAD_LIMIT - 2)
        ids = [(await client.enqueue(queue="large", payload=payload))["id"] for _ in range(12)]
        assert (await client.get("/v1/queues/large/jobs", params={"limit": 1})).status_code == 200  # It is known now.
        with noted(monkeypatch, store, "list") as made:
            page = (await client.get("/v1/queues/large/jobs", params={"limit": 100})).json()
        assert [job["id"] for job in page["jobs"]] == ids
        assert len(made) > 1
        for _, found in made:
            assert sum(len(job.envelope.payload) for job in found.jobs) <= answer_size.PIECE_BYTES


async def test_refused_items_are_answered_over_several_turns(monkeypatch):
    async with serving(f"memory:{uuid.uuid4()}") as service:
        client, taken = await service.client(), []
        take = service.context.turns.take

        async def noted(work, tenant):
            taken.append(work)
            await take(work, tenant)

        monkeypatch.setattr(service.context.turns, "take", noted)
        lease = {"queue": "q", "id": "x", "token": f"1.1.{'0' * 32}", "outcome": "release"}
        answer = await client.post("/v1/leases:finish", json={"leases": [lease] * 1000})
        assert {item["error"]["code"] for item in answer.json()["items"]} == {"lease_lost"}
        # Once to read them, and once to show them.
        assert taken.count(100 * ITEM_WORK) == 20


@pytest.mark.parametrize("size", [0, 1, call.SENT_AT_ONCE, call.SENT_AT_ONCE + 1, 3 * call.SENT_AT_ONCE])
async def test_an_answer_is_sent_in_pieces(size):
    body, sent = json.encode("x" * (size - 2)) if size > 1 else b"1" * size, []

    async def send(message):
        sent.append(dict(message))

    await send_reply(send, Reply(body))
    start, *parts = sent
    assert (b"content-length", str(size).encode()) in start["headers"]
    assert b"".join(part["body"] for part in parts) == body
    assert max(len(part["body"]) for part in parts) <= call.SENT_AT_ONCE
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]


async def test_streams_that_begin_at_the_start_read_one_at_a_time(monkeypatch):
    """[EVENT-2]"""
    async with serving(f"memory:{uuid.uuid4()}") as service:
        client, store = await service.client(), service.context.store
        queue = Queue(store=store, tenant="acme")
        await queue.enqueue_many(list(range(1000)))
        events, at_once, peak = store.events, 0, 0

        async def counted(*args):
            nonlocal at_once, peak
            at_once += 1
            peak = max(peak, at_once)
            await asyncio.sleep(0)
            try:
                page = await events(*args)
                assert len(page.events) <= 100
                return page
            finally:
                at_once -= 1

        monkeypatch.setattr(store, "events", counted)
        answers = await asyncio.gather(*(client.get("/v1/events", params={"follow": "false"}) for _ in range(8)))
        assert [answer.text.count("\nevent: enqueued") for answer in answers] == [1000] * 8
        assert peak == 1
