"""Workers that wait and are handed jobs as they come: what is this server's own. The rest is in ../test_offers.py."""

import asyncio
import contextlib
import typing

import pytest

from holdfast import Queue
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import JobState
from holdfast.core.waiters import IN_FLIGHT_S
from holdfast.opening import open_store
from holdfast.stores.redis import handoff as redis_offers
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


async def test_forgotten_scripts_are_not_noticed_by_jobs_that_come_alone(valkey, url, queue, store):
    runs = Runs()
    async with working(url, runs.job), flushing(valkey) as flushed:
        for n in range(300):
            assert await queue.enqueue_and_wait(runs.job.message(n), id=f"{n}", timeout=SOON_S) == n
    assert len(flushed) > 20
    assert runs.all == [f"{n}" for n in range(300)]
    jobs = await judge(store)
    assert {job.attempts for job in jobs.values()} == {1}


async def test_offers_are_forgotten_by_the_server_in_the_end(store, valkey, prefix, offers):
    async with place(store, offers, queues=("mail", "news")):
        places = valkey.command("KEYS", f"{prefix}:*:o:*")
        assert len(places) == 2
        for name in places:
            assert 0 < valkey.command("PTTL", name) <= 600_000
    assert await offers() == 0


async def test_what_was_offered_is_taken_back_also_while_the_line_is_away(store, url, valkey, offers, heard):
    """A worker that filled up meanwhile is not sent more when it is heard again."""
    near = await open_store(url)
    try:
        async with place(store, offers) as (post, came):
            valkey.command("CLIENT", "KILL", "TYPE", "pubsub")
            await eventually(lambda: not post._listener.is_subscribed(post._channel), every_s=0.001)
            await near.enqueue([new("a"), new("b")])
            assert [j.id for j in (await post.claim(wish(2))).jobs] == ["a", "b"]
            await eventually(heard, lambda found: found == 1)
            await eventually(lambda: post._listener.is_subscribed(post._channel))
            await near.enqueue([new("c")])
            [found] = await near.get([key("c")])
            assert found.state is JobState.READY
            assert came == []
    finally:
        await near.close()


async def test_an_offer_is_taken_back_wherever_it_stands(store, valkey, prefix, offers):
    """In one of the queues it was dropped, as an enqueue does that finds nobody listening."""
    queues = ("mail", "news")
    async with place(store, offers, queues=queues) as (post, came):
        [first] = valkey.command("KEYS", f"{prefix}:*:o:*mail")
        valkey.command("DEL", first)
        await store.enqueue([new("a"), new("b")])
        jobs = []
        while len(jobs) < 2:
            jobs += (await post.claim(wish(2 - len(jobs), queues=queues))).jobs
        await store.enqueue([new("c", queue="news")])
        [found] = await store.get([key("c", queue="news")])
        assert found.state is JobState.READY
        assert came == []
        await store.finish([complete(found) for found in jobs])


async def test_a_place_waits_for_what_the_server_has_sent(monkeypatch):
    """The answer to the last claim may overtake the jobs: they come on another line."""

    handed = [b"1:t1:qa", b"1", b"1:t1:qb", b"2", b"1:t1:qc", b"3"]

    class Shards:
        prefix = "hf"
        answers: typing.ClassVar = [[0, -1, 3, []], [0, -1, -2, handed]]

        async def run(self, *_args, **_options):
            return self.answers.pop(0)

    class RedisListener:
        take, ended = None, False

        def open_inbox(self, _channel, take):
            self.take = take
            return self.end

        def end(self):
            self.ended = True

        def is_subscribed(self, _channel):
            return True

    class Store:
        async def filled(self, claimed):
            return claimed

    class Job(typing.NamedTuple):
        token: int

    monkeypatch.setattr(redis_offers, "IN_FLIGHT_S", 10 * SOON_S)
    monkeypatch.setattr(redis_offers, "handed_over", lambda token: (1, 0, [Job(token)]))
    listener, came = RedisListener(), []
    post = redis_offers.RedisInbox(Shards(), listener, Store(), lambda claimed, sent: came.extend(claimed.jobs))
    await post.claim(wish(3))
    listener.take(1)
    leaving = asyncio.create_task(post.close())
    for token in (2, 3):
        await asyncio.sleep(0.01)
        assert not leaving.done()
        listener.take(token)
    async with asyncio.timeout(SOON_S):
        await leaving
    assert came == [Job(1), Job(2), Job(3)]
    assert listener.ended


# A message that is lost -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def line_that_keeps(post):
    """What is sent to this place, which does not get it."""
    kept, posts = [], post._listener._inboxes
    take, posts[post._channel] = posts[post._channel], kept.append
    yield kept
    posts[post._channel] = take


async def test_what_never_came_is_released_and_its_message_ignored(store, offers, monkeypatch):
    monkeypatch.setattr(redis_offers, "IN_FLIGHT_S", 0.0)
    async with place(store, offers) as (post, came):
        with line_that_keeps(post) as kept:
            await store.enqueue([new("a", max_attempts=1)])
            await eventually(lambda: kept)
            assert (await post.claim(wish(2))).jobs == []  # Learns of it.
            [found] = (await post.claim(wish(2))).jobs  # Releases it, and gets it.
        assert (found.id, found.attempts) == ("a", 1)
        post._take(kept[0])
        assert came == []
        [answer] = await store.finish([complete(found)])
        assert answer.state is JobState.COMPLETED


async def test_a_claim_that_learned_of_a_lost_job_says_when_to_look_again(store, offers):
    async with place(store, offers, limit=1) as (post, _):
        with line_that_keeps(post) as kept:
            await store.enqueue([new("a")])
            await eventually(lambda: kept)
            for _ in range(2):  # The first keeps room for it, and the second offers that again.
                claimed = await post.claim(wish(1))
            assert claimed.now < claimed.next_at <= claimed.now + 1000 * IN_FLIGHT_S


async def test_a_lost_job_is_learned_of_though_the_reply_that_names_it_is_lost(store, offers, monkeypatch):
    monkeypatch.setattr(redis_offers, "IN_FLIGHT_S", 0.0)
    async with place(store, offers) as (post, _):
        with line_that_keeps(post) as kept:
            await store.enqueue([new("a")])
            await eventually(lambda: kept)
            run = post._shards.run

            async def lose_the_reply(*args, **options):
                await run(*args, **options)
                raise StoreUnavailable("the reply was lost")

            with monkeypatch.context() as patch:
                patch.setattr(post._shards, "run", lose_the_reply)
                with pytest.raises(StoreUnavailable):
                    await post.claim(wish(2))
            jobs = []
            while not jobs:
                jobs = (await post.claim(wish(2))).jobs
        assert [(found.id, found.attempts) for found in jobs] == [("a", 1)]


async def test_a_release_that_failed_is_tried_again(store, offers, monkeypatch):
    """Also if the message comes meanwhile: the server may have released it."""
    monkeypatch.setattr(redis_offers, "IN_FLIGHT_S", 0.0)
    async with place(store, offers) as (post, came):
        with line_that_keeps(post) as kept:
            await store.enqueue([new("a")])
            await eventually(lambda: kept)
            await post.claim(wish(2))

            async def fail(_):
                raise StoreUnavailable("gone")

            with monkeypatch.context() as patch:
                patch.setattr(store, "finish", fail)
                with pytest.raises(StoreUnavailable):
                    await post.claim(wish(2))
            post._take(kept[0])
            assert came == []
            [found] = (await post.claim(wish(2))).jobs
        assert (found.id, found.attempts) == ("a", 1)


async def test_a_worker_that_leaves_releases_what_never_came(store, offers, monkeypatch):
    monkeypatch.setattr(redis_offers, "IN_FLIGHT_S", 0.01)
    async with place(store, offers) as (post, _):
        with line_that_keeps(post) as kept:
            await store.enqueue([new("a")])
            await eventually(lambda: kept)
            await post.close()
        [found] = await store.get([key("a")])
        assert (found.state, found.attempts) == (JobState.READY, 0)


async def test_a_worker_that_leaves_learns_of_a_lost_job_though_the_reply_is_lost(
    proxy, far, store, offers, valkey, monkeypatch
):
    monkeypatch.setattr(redis_offers, "IN_FLIGHT_S", 0.01)
    valkey.command("SCRIPT", "LOAD", SCRIPTS["claim"].text)
    async with place(far, offers) as (post, _):
        with line_that_keeps(post) as kept:
            await store.enqueue([new("a", max_attempts=1)])
            await eventually(lambda: kept)
            proxy.cut_replies(when=SCRIPTS["claim"].sha.encode())
            await post.close()
        assert proxy.counts.replies_cut == 1
        [found] = await store.get([key("a")])
        assert (found.state, found.attempts) == (JobState.READY, 0)


async def test_the_server_names_what_it_handed_over_until_the_worker_knows(store, offers, valkey, prefix):
    async with place(store, offers, limit=4) as (post, came):
        name = f"{prefix}:{{0}}:i:{post._channel.decode()}"
        for count in (1, 2):
            await store.enqueue([new(f"{count}")])
            await eventually(lambda count=count: len(came) == count)
            assert valkey.command("ZCARD", name) == count
        assert 0 < valkey.command("PTTL", name) <= 4 * wish(1).lease_ms // 3
        await post.claim(wish(4))
        assert post._awaited == {}
        await post.claim(wish(4))
        assert valkey.command("EXISTS", name) == 0
        await store.finish([complete(found) for found in came])
