"""Streams of one tenant share their reads of the store, and each still sees every event after its offset once."""

import asyncio
import random
import uuid
from contextlib import AsyncExitStack, suppress
from functools import partial

import pytest
import pytest_asyncio

from holdfast import Queue
from holdfast.core.errors import StoreUnavailable
from holdfast.opening import open_store
from holdfast.service import event_cache
from holdfast.service.event_cache import EventCaches
from holdfast.service.turns import Activity, PieceTurns
from tests.eventually import eventually
from tests.service.support import PATIENCE_S, serving, token

FOLLOWERS = 500


@pytest.fixture
def looks(monkeypatch):
    """Counts the reads of a store's log, each of which takes a turn or a few of the loop."""

    def count(store, rng=None):
        made, look = [], store.events

        async def noted(*args):
            made.append(args)
            for _ in range(rng.randrange(4) if rng else 0):
                await asyncio.sleep(0)
            page = await look(*args)
            for _ in range(rng.randrange(4) if rng else 0):
                await asyncio.sleep(0)
            return page

        monkeypatch.setattr(store, "events", noted)
        return made

    return count


async def test_many_followers_cause_as_many_reads_as_one(looks):
    """[EVENT-2, EVENT-3]"""
    async with serving("memory:many-followers") as service:
        client = await service.client()
        await client.enqueue(id="before")
        head = f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n\r\n".encode()
        async with asyncio.timeout(3 * PATIENCE_S), AsyncExitStack() as stack:
            readers = []
            for _ in range(FOLLOWERS):
                reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
                stack.callback(writer.close)
                writer.write(head)
                readers.append(reader)
            for reader in readers:
                await reader.readuntil(b'"job_id":"before"')
            made = looks(service.context.store)
            for number in range(10):
                await client.enqueue(id=f"job-{number}")
                for reader in readers:
                    seen = await reader.readuntil(f'"job_id":"job-{number}"'.encode())
                    assert seen.count(b"\nevent: ") == 1
        assert len(made) <= 60  # A hint or a few for each job, however many follow.
        await eventually(lambda: service.context.event_caches._caches, lambda caches: not caches)


class Follower:
    """Follows as a stream does, sometimes leaves, and resumes from the last offset it saw."""

    def __init__(self, caches, tenant, start):
        self.tenant, self.start, self.seen = tenant, start, []
        self._caches, self._last = caches, start
        self.task = asyncio.create_task(self._run())

    async def _run(self):
        while True:
            with suppress(StoreUnavailable):
                await self._follow(random.randrange(1, 8))

    async def _follow(self, looks):
        after = self._last
        with self._caches.follow(self.tenant) as (cache, grown):
            while looks:
                grown.clear()
                page = await cache.after(after)
                after = self._last = page.next
                self.seen += page.events
                if page.events and random.random() < 0.5:
                    self._last = page.events[-1].offset
                if not page.more:
                    looks -= 1
                    async with asyncio.timeout(PATIENCE_S):
                        await grown.wait()


async def events_after(store, tenant, offset):
    found, more = [], True
    while more:
        page = await store.events(tenant, offset, 1000)
        found, offset, more = found + page.events, page.next, page.more
    return found


def reported(events):
    return [(event.kind, event.job_id) for event in events]


@pytest.mark.parametrize("seed", range(3))
async def test_each_follower_sees_each_event_once_wherever_it_began(url, looks, monkeypatch, seed):
    """[EVENT-2] Pages are small, reads overlap, some of them fail, and other tenants write as well."""
    monkeypatch.setattr(event_cache, "PAGE", 3)
    monkeypatch.setattr(event_cache, "HISTORY_PAGE", 3)
    monkeypatch.setattr(event_cache, "MAX_CACHED", 6)
    rng = random.Random(seed)
    random.seed(seed)
    names = [f"{seed}-busy", f"{seed}-quiet", f"{seed}-other"]
    store = await open_store(url)
    followers = []
    try:
        queues = [Queue(store=store, tenant=name) for name in names]
        caches, offsets = EventCaches(store, PieceTurns(Activity())), [None, await store.last_offset()]
        looks(store, rng)
        for step in range(60):
            (queue,) = rng.choices(queues, [6, 1, 6])
            await queue.enqueue_many([step] * rng.choice([1, 1, 2, 7]))
            offsets.append(await store.last_offset())
            if step % 4 == 0:
                followers.append(Follower(caches, rng.choice(names[:2]), rng.choice(offsets)))
            if step % 15 == 7:
                fail_once(monkeypatch, store)
            await asyncio.sleep(rng.choice([0, 0, 0.01]))
        for follower in followers:
            wanted = reported(await events_after(store, follower.tenant, follower.start))
            seen = follower.seen
            await eventually(lambda seen=seen, wanted=wanted: len(seen) >= len(wanted))
            assert reported(seen) == wanted
    finally:
        for follower in followers:
            follower.task.cancel()
        await asyncio.wait([follower.task for follower in followers])
        await store.close()


def fail_once(monkeypatch, store):
    look = store.events

    async def fail(*_):
        monkeypatch.setattr(store, "events", look)
        raise StoreUnavailable("for a moment")

    monkeypatch.setattr(store, "events", fail)


class Scene:
    """A cache on a memory store, with or without hints, and with actions at the end of a read from some offset."""

    def __init__(self, store, caches, monkeypatch):
        self.store, self.caches = store, caches
        self.meanwhile = {}
        look = store.events

        async def noted(tenant, after, limit):
            page = await look(tenant, after, limit)
            if after in self.meanwhile:
                await self.meanwhile.pop(after)()
            return page

        monkeypatch.setattr(store, "events", noted)

    async def happens(self, id, tenant="acme"):
        """An event, and the end of the log after it."""
        await Queue(store=self.store, tenant=tenant).enqueue(1, id=id)
        return await self.store.last_offset()

    async def follower(self, cache, offset):
        """Follow from an offset, woken again and again. Returns the events."""
        ids = []
        for _ in range(6):
            page = await cache.after(offset)
            offset, ids = page.next, [*ids, *(event.job_id for event in page.events)]
            cache._hints += 1
        return offset, ids


class Overlapping:
    """In a scene one follower reads in the middle of another's read: no read waits for its turn."""

    async def run(self, _, read, *args):
        return await read(*args)


@pytest_asyncio.fixture
async def scene(monkeypatch):
    store = await open_store(f"memory:{uuid.uuid4()}")
    yield Scene(store, EventCaches(store, Overlapping()), monkeypatch)
    await store.close()


@pytest_asyncio.fixture
async def cache(scene):
    """Another follower has read to the end."""
    with scene.caches.follow("acme") as (cache, _):
        cache._unlisten()
        await scene.follower(cache, None)
        yield cache


async def test_earlier_events_are_seen_without_a_hint(scene, cache):
    _, seen = await scene.follower(cache, None)
    end = await scene.store.last_offset()
    await cache.after(end)
    await scene.happens("unheard")
    with scene.caches.follow("acme") as (same, _):
        assert same is cache
        assert [event.job_id for event in (await same.after(end)).events] == ["unheard"]
    assert seen == []


async def test_events_added_while_a_follower_joins_are_not_missed(scene, cache):
    """[EVENT-2]"""
    offset = await scene.happens("x", "other")
    scene.meanwhile[offset] = partial(scene.happens, "meanwhile")
    assert (await scene.follower(cache, offset))[1] == ["meanwhile"]


async def test_a_follower_that_is_ahead_of_the_others_sees_nothing_twice(scene, cache):
    """[EVENT-2]"""
    offset = await scene.happens("unheard")
    offset, seen = await scene.follower(cache, await scene.happens("x", "other"))
    assert seen == []
    await scene.happens("next")
    assert (await scene.follower(cache, offset))[1] == ["next"]


async def test_a_follower_that_has_read_further_than_the_others_sees_nothing_twice(scene, cache):
    """[EVENT-2]"""
    offset = await scene.happens("x", "other")
    await scene.happens("unheard")
    offset, seen = await scene.follower(cache, offset)
    assert seen == ["unheard"]
    await scene.happens("next")
    assert (await scene.follower(cache, offset))[1] == ["next"]


async def test_a_follower_that_joins_while_the_cache_is_cleared_misses_nothing(scene, cache):
    """[EVENT-2] After a failed read, at a later place."""
    end = cache._end
    offset = await scene.happens("x", "other")

    async def fail():
        raise StoreUnavailable("for a moment")

    async def begin_anew():
        scene.meanwhile[end] = fail
        cache._hints += 1
        with pytest.raises(StoreUnavailable):
            await cache.after(end)
        await cache.after(await scene.happens("meanwhile"))

    scene.meanwhile[offset] = begin_anew
    assert (await scene.follower(cache, offset))[1] == ["meanwhile"]


async def test_a_follower_answered_from_the_cache_reads_on(scene, cache):
    """[EVENT-2] One hint woke both: the second reads when there are more events than the first one found."""
    start = cache._end
    await scene.happens("first")
    cache._hints += 1
    await cache.after(start)
    await scene.happens("second")
    cache._hints += 1
    seen, page = [], await cache.after(start)
    seen += page.events
    while page.more:
        page = await cache.after(page.next)
        seen += page.events
    assert [event.job_id for event in seen] == ["first", "second"]


async def test_an_end_of_the_log_is_read_from_the_store(looks):
    """With `follow=false`, with or without a hint."""
    async with serving("memory:ends") as service:
        client = await service.client()
        async with asyncio.timeout(PATIENCE_S), client.stream("GET", "/v1/events") as following:
            await anext(following.aiter_lines())
            made = looks(service.context.store)
            await client.enqueue(id="x")
            assert '"job_id":"x"' in (await client.get("/v1/events", params={"follow": "false"})).text
            assert made
