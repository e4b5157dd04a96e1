"""Direct hand-off on Redis. What all stores share is in ../test_handoff.py."""

import asyncio
import contextlib
import typing

import pytest

from holdfast import Queue
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import JobState
from holdfast.core.waiters import IN_FLIGHT_S
from holdfast.opening import open_store
from holdfast.stores.redis import handoff
from holdfast.stores.redis.scripts import SCRIPTS
from tests.chaos.workers import TENANT
from tests.eventually import eventually
from tests.stores.handing_off import SOON_S, Runs, place, working
from tests.stores.load import complete, judge, key, new, wish
from tests.stores.redis.test_script_flush import flushing


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=TENANT) as queue:
        yield queue


async def test_flushed_scripts_do_not_affect_single_jobs(valkey, url, queue, store):
    runs = Runs()
    async with working(url, runs.job), flushing(valkey) as flushed:
        for n in range(300):
            assert await queue.enqueue_and_wait(runs.job.message(n), id=f"{n}", timeout=SOON_S) == n
    assert len(flushed) > 20
    assert runs.all == [f"{n}" for n in range(300)]
    jobs = await judge(store)
    assert {job.attempts for job in jobs.values()} == {1}


async def test_waiter_tables_expire(store, valkey, prefix, waiting_workers):
    async with place(store, waiting_workers, queues=("mail", "sms")):
        tables = valkey.command("KEYS", f"{prefix}:*:o:*")
        assert len(tables) == 2
        for name in tables:
            assert 0 < valkey.command("PTTL", name) <= 600_000
    assert await waiting_workers() == 0


async def test_a_registration_ends_even_without_a_subscription(store, url, valkey, waiting_workers, heard):
    """A worker that is full is sent no more jobs when it is subscribed again."""
    near = await open_store(url)
    try:
        async with place(store, waiting_workers) as (inbox, came):
            valkey.command("CLIENT", "KILL", "TYPE", "pubsub")
            await eventually(lambda: not inbox._listener.is_subscribed(inbox._channel), every_s=0.001)
            await near.enqueue([new("a"), new("b")])
            assert [j.id for j in (await inbox.claim(wish(2))).jobs] == ["a", "b"]
            await eventually(heard, lambda found: found == 1)
            await eventually(lambda: inbox._listener.is_subscribed(inbox._channel))
            await near.enqueue([new("c")])
            [found] = await near.get([key("c")])
            assert found.state is JobState.READY
            assert came == []
    finally:
        await near.close()


async def test_a_registration_is_ended_in_every_table(store, valkey, prefix, waiting_workers):
    """One table has lost it, as after an enqueue that found no subscriber."""
    queues = ("mail", "sms")
    async with place(store, waiting_workers, queues=queues) as (inbox, came):
        [first] = valkey.command("KEYS", f"{prefix}:*:o:*mail")
        valkey.command("DEL", first)
        await store.enqueue([new("a"), new("b")])
        jobs = []
        while len(jobs) < 2:
            jobs += (await inbox.claim(wish(2 - len(jobs), queues=queues))).jobs
        await store.enqueue([new("c", queue="sms")])
        [found] = await store.get([key("c", queue="sms")])
        assert found.state is JobState.READY
        assert came == []
        await store.finish([complete(found) for found in jobs])


async def test_a_closing_inbox_waits_for_jobs_in_flight(monkeypatch):
    """The answer to the last claim may overtake the jobs: they arrive on another connection."""

    handed = [b"1:t1:qa", b"1", b"1:t1:qb", b"2", b"1:t1:qc", b"3"]

    class Shards:
        prefix = "hf"
        answers: typing.ClassVar = [[0, -1, 3, []], [0, -1, -2, handed]]

        async def run(self, *_args, **_options):
            return self.answers.pop(0)

    class RedisListener:
        receive, ended = None, False

        def open_inbox(self, _channel, receive):
            self.receive = receive
            return self.end

        def end(self):
            self.ended = True

        def is_subscribed(self, _channel):
            return True

    class Job(typing.NamedTuple):
        token: int

    monkeypatch.setattr(handoff, "IN_FLIGHT_S", 10 * SOON_S)
    monkeypatch.setattr(handoff, "handed_off", lambda token: (1, 0, [Job(token)]))
    listener, came = RedisListener(), []
    inbox = handoff.RedisInbox(Shards(), listener, None, lambda claimed, sent: came.extend(claimed.jobs))
    await inbox.claim(wish(3))
    listener.receive(1)
    leaving = asyncio.create_task(inbox.close())
    for token in (2, 3):
        await asyncio.sleep(0.01)
        assert not leaving.done()
        listener.receive(token)
    async with asyncio.timeout(SOON_S):
        await leaving
    assert came == [Job(1), Job(2), Job(3)]
    assert listener.ended


# A message that is lost -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def intercepted(inbox):
    """The messages to this inbox, which does not get them."""
    kept, inboxes = [], inbox._listener._inboxes
    receive, inboxes[inbox._channel] = inboxes[inbox._channel], kept.append
    yield kept
    inboxes[inbox._channel] = receive


async def test_a_job_that_does_not_arrive_is_released_and_its_message_ignored(store, waiting_workers, monkeypatch):
    monkeypatch.setattr(handoff, "IN_FLIGHT_S", 0.0)
    async with place(store, waiting_workers) as (inbox, came):
        with intercepted(inbox) as kept:
            await store.enqueue([new("a", max_attempts=1)])
            await eventually(lambda: kept)
            assert (await inbox.claim(wish(2))).jobs == []  # Lists it.
            [found] = (await inbox.claim(wish(2))).jobs  # Releases it, and gets it.
        assert (found.id, found.attempts) == ("a", 1)
        inbox._receive(kept[0])
        assert came == []
        [answer] = await store.finish([complete(found)])
        assert answer.state is JobState.COMPLETED


async def test_a_claim_that_lists_a_lost_job_says_when_to_claim_again(store, waiting_workers):
    async with place(store, waiting_workers, limit=1) as (inbox, _):
        with intercepted(inbox) as kept:
            await store.enqueue([new("a")])
            await eventually(lambda: kept)
            for _ in range(2):  # The first keeps room for it, the second registers that room again.
                claimed = await inbox.claim(wish(1))
            assert claimed.now < claimed.next_at <= claimed.now + 1000 * IN_FLIGHT_S


async def test_a_lost_job_is_listed_again_if_the_reply_is_lost(store, waiting_workers, monkeypatch):
    monkeypatch.setattr(handoff, "IN_FLIGHT_S", 0.0)
    async with place(store, waiting_workers) as (inbox, _):
        with intercepted(inbox) as kept:
            await store.enqueue([new("a")])
            await eventually(lambda: kept)
            run = inbox._shards.run

            async def lose_the_reply(*args, **options):
                await run(*args, **options)
                raise StoreUnavailable("the reply was lost")

            with monkeypatch.context() as patch:
                patch.setattr(inbox._shards, "run", lose_the_reply)
                with pytest.raises(StoreUnavailable):
                    await inbox.claim(wish(2))
            jobs = []
            while not jobs:
                jobs = (await inbox.claim(wish(2))).jobs
        assert [(found.id, found.attempts) for found in jobs] == [("a", 1)]


async def test_a_release_that_failed_is_tried_again(store, waiting_workers, monkeypatch):
    """Also if the message arrives meanwhile: the server may have released the job."""
    monkeypatch.setattr(handoff, "IN_FLIGHT_S", 0.0)
    async with place(store, waiting_workers) as (inbox, came):
        with intercepted(inbox) as kept:
            await store.enqueue([new("a")])
            await eventually(lambda: kept)
            await inbox.claim(wish(2))

            async def fail(_):
                raise StoreUnavailable("gone")

            with monkeypatch.context() as patch:
                patch.setattr(store, "finish", fail)
                with pytest.raises(StoreUnavailable):
                    await inbox.claim(wish(2))
            inbox._receive(kept[0])
            assert came == []
            [found] = (await inbox.claim(wish(2))).jobs
        assert (found.id, found.attempts) == ("a", 1)


async def test_a_worker_that_leaves_releases_jobs_that_did_not_arrive(store, waiting_workers, monkeypatch):
    monkeypatch.setattr(handoff, "IN_FLIGHT_S", 0.01)
    async with place(store, waiting_workers) as (inbox, _):
        with intercepted(inbox) as kept:
            await store.enqueue([new("a")])
            await eventually(lambda: kept)
            await inbox.close()
        [found] = await store.get([key("a")])
        assert (found.state, found.attempts) == (JobState.READY, 0)


async def test_a_worker_that_leaves_releases_a_lost_job_though_a_reply_is_lost(
    proxy, far, store, waiting_workers, valkey, monkeypatch
):
    monkeypatch.setattr(handoff, "IN_FLIGHT_S", 0.01)
    valkey.command("SCRIPT", "LOAD", SCRIPTS["claim"].text)
    async with place(far, waiting_workers) as (inbox, _):
        with intercepted(inbox) as kept:
            await store.enqueue([new("a", max_attempts=1)])
            await eventually(lambda: kept)
            proxy.cut_replies(when=SCRIPTS["claim"].sha.encode())
            await inbox.close()
        assert proxy.counts.replies_cut == 1
        [found] = await store.get([key("a")])
        assert (found.state, found.attempts) == (JobState.READY, 0)


async def test_the_server_lists_jobs_handed_off_until_the_worker_knows(store, waiting_workers, valkey, prefix):
    async with place(store, waiting_workers, limit=4) as (inbox, came):
        name = f"{prefix}:{{0}}:i:{inbox._channel.decode()}"
        for count in (1, 2):
            await store.enqueue([new(f"{count}")])
            await eventually(lambda count=count: len(came) == count)
            assert valkey.command("ZCARD", name) == count
        assert 0 < valkey.command("PTTL", name) <= 4 * wish(1).lease_ms // 3
        await inbox.claim(wish(4))
        assert inbox._awaited == {}
        await inbox.claim(wish(4))
        assert valkey.command("EXISTS", name) == 0
        await store.finish([complete(found) for found in came])
