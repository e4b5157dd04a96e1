"""Workers that wait and are handed jobs as they come: what is this server's own. The rest is in ../test_offers.py."""

import asyncio
import typing

import pytest

from holdfast import Queue
from holdfast.core.job import JobState
from holdfast.store import open_store
from holdfast.stores.redis import offers as redis_offers
from tests.chaos.workers import TENANT
from tests.eventually import eventually
from tests.stores.load import complete, judge, key, new, wish
from tests.stores.offering import SOON_S, Runs, place, working
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
            await eventually(lambda: not post._ears.hears(post._channel), every_s=0.001)
            await near.enqueue([new("a"), new("b")])
            assert [j.id for j in (await post.claim(wish(2))).jobs] == ["a", "b"]
            await eventually(heard, lambda found: found == 1)
            await eventually(lambda: post._ears.hears(post._channel))
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

    class Shards:
        prefix = "hf"
        answers: typing.ClassVar = [[0, -1, 3], [0, -1, -2]]

        async def run(self, *_args, **_options):
            return self.answers.pop(0)

    class Ears:
        take, ended = None, False

        def post(self, _channel, take):
            self.take = take
            return self.end

        def end(self):
            self.ended = True

        def hears(self, _channel):
            return True

    async def fill(claimed):
        return claimed

    monkeypatch.setattr(redis_offers, "LAST_WORD_S", 10 * SOON_S)
    monkeypatch.setattr(redis_offers, "handed_over", lambda data: (1, 0, [data]))
    ears, came = Ears(), []
    post = redis_offers.RedisPost(Shards(), ears, None, fill, lambda claimed, sent: came.extend(claimed.jobs))
    await post.claim(wish(3))
    ears.take("a")
    leaving = asyncio.create_task(post.close())
    for job_ in ("b", "c"):
        await asyncio.sleep(0.01)
        assert not leaving.done()
        ears.take(job_)
    async with asyncio.timeout(SOON_S):
        await leaving
    assert came == ["a", "b", "c"]
    assert ears.ended
