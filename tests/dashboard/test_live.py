"""Live pages: what a stream says, to whom, and what it costs."""

import asyncio
import json
import uuid
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from holdfast.dashboard import live
from holdfast.dashboard.view import EVERYTHING, View, Viewer
from holdfast.service.shares import Shares
from holdfast.store import Hint, Signal
from tests.dashboard.support import NO_TLS, by_token, operator_token, served, site, token
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio


class Reads:
    """Counts the reads of a store."""

    def __init__(self, store, monkeypatch, *names):
        self.count = 0
        self.listeners = 0
        self.unlistened = asyncio.Event()
        for name in names:
            monkeypatch.setattr(store, name, self._counted(getattr(store, name)))
        listen = store.listen

        def counted_listen(*args):
            self.listeners += 1
            stop = listen(*args)

            def stopped():
                self.listeners -= 1
                self.unlistened.set()
                stop()

            return stopped

        monkeypatch.setattr(store, "listen", counted_listen)

    def _counted(self, call):
        async def counted(*args, **options):
            self.count += 1
            return await call(*args, **options)

        return counted


@asynccontextmanager
async def client(base, **options):
    async with httpx.AsyncClient(base_url=base, verify=NO_TLS, trust_env=False, timeout=30, **options) as found:
        yield found


@asynccontextmanager
async def stream(browser, page, path="/live", **query):
    """The notices of a page, as they come."""
    async with browser.stream("GET", path, params={"page": page, **query}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield notices(answer)


async def notices(answer):
    kind = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            yield kind, json.loads(line[6:])


async def test_a_change_is_noticed_and_the_fragment_shows_it(opened):
    await opened.queue().enqueue({"n": 1}, queue="mail", id="first")
    async with served(opened) as base, client(base) as browser, stream(browser, "/queues", tenant="acme") as found:
        kind, tags = await anext(found)
        assert (kind, list(tags)) == ("changed", ["table"])
        shown = await browser.get("/queues", params={"tenant": "acme", "fragment": "table"})
        assert shown.headers["x-fragment-tag"] == tags["table"]
        await opened.queue().enqueue({"n": 1}, queue="press", id="second")
        _, later = await anext(found)
        assert later["table"] != tags["table"]
        shown = await browser.get("/queues", params={"tenant": "acme", "fragment": "table"})
        assert "press" in shown.text
        assert shown.headers["x-fragment-tag"] == later["table"]


async def test_after_an_action_a_viewer_never_gets_what_was_before(opened, monkeypatch):
    monkeypatch.setattr(live, "PACE_S", 3600.0)
    await opened.queue().enqueue({"n": 1}, queue="mail", id="first")
    async with served(opened) as base, client(base) as browser, stream(browser, "/queues", tenant="acme") as found:
        await anext(found)
        look = {"tenant": "acme", "fragment": "table"}
        assert "paused" not in (await browser.get("/queues", params=look)).text
        await opened.queue().pause("mail")
        opened.dashboard.live.changed("acme")
        assert "paused" in (await browser.get("/queues", params=look)).text


async def test_the_work_is_done_once_for_all_viewers_and_not_at_all_without_one(opened, monkeypatch):
    await opened.queue().enqueue({"n": 1}, queue="mail")
    reads = Reads(opened.store, monkeypatch, "queue_page")
    async with served(opened) as base, client(base) as browser:
        async with asyncio.TaskGroup() as group, _gathered(browser, 8) as streams:
            first = [await anext(one) for one in streams]
            assert len({tags["table"] for _, tags in first}) == 1
            assert (reads.count, reads.listeners) == (1, 1)
            await opened.queue().enqueue({"n": 1}, queue="press")
            for one in streams:
                await anext(one)
            for _ in streams:
                group.create_task(browser.get("/queues", params={"tenant": "acme", "fragment": "table"}))
        assert reads.count == 2
        # The last viewer is gone when the server has noticed that.
        await reads.unlistened.wait()
        await opened.queue().enqueue({"n": 1}, queue="third")
        assert reads.count == 2


@asynccontextmanager
async def _gathered(browser, count):
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(stream(browser, "/queues", tenant="acme")) for _ in range(count)]


async def test_a_hint_about_something_else_costs_nothing(opened, monkeypatch):
    """A page of one tenant, queue or job is not read again for changes elsewhere."""
    page = opened.dashboard.pages["/job"]
    view = _view(opened, {"queue": "mail", "id": "a"})
    concerns = page.fragments["job"].concerns
    assert concerns(view, Signal(Hint.DONE, "acme", "mail", "a"))
    assert concerns(view, Signal(Hint.EVENTS))
    assert concerns(view, Signal(Hint.READY, "acme", "mail"))
    assert not concerns(view, Signal(Hint.DONE, "acme", "mail", "b"))
    assert not concerns(view, Signal(Hint.READY, "acme", "press"))
    assert not concerns(view, Signal(Hint.EVENTS, "rival"))


def _view(found, query):
    viewer = Viewer("local", None, EVERYTHING)
    return View(found.dashboard._source, viewer, "/job", query, base="", tenant="acme")


async def test_a_fragment_whose_looks_did_not_change_makes_no_notice(opened, monkeypatch):
    """Only how long ago things were has changed."""
    await opened.queue().enqueue({"n": 1}, queue="mail")
    page, view = opened.dashboard.pages["/queues"], _view(opened, {})
    one = await opened.dashboard._fragment(page, "table", view)
    monkeypatch.setattr("holdfast.dashboard.showing._SECOND", 0.0)
    monkeypatch.setattr("holdfast.dashboard.showing.coarse", lambda seconds: "1 century")
    two = await opened.dashboard._fragment(page, "table", view)
    assert one.html != two.html
    assert one.tag == two.tag


async def test_the_rounds_of_all_tenants_together_take_their_share_and_no_more(opened):
    """However many tenants look. Costly rounds take up to `MAX_SHARE` rather than show changes after `SLOWEST_S`."""
    pages = opened.dashboard.live
    pages._rounds = dict.fromkeys(("", "acme", "beta", "rival"))

    def rests_and_share(*costs):
        rests = [pages.rest_s(cost) for cost in costs]
        return rests, sum(cost / (cost + rest) for cost, rest in zip(costs, rests, strict=True))

    rests, share = rests_and_share(0.001, 0.01, 0.02, 0.05)
    assert (rests[0], max(rests)) == (live.PACE_S, live.SLOWEST_S)
    assert share <= live.SHARE
    rests, share = rests_and_share(0.05, 0.1, 0.5, 30.0)
    assert rests[:2] == [live.SLOWEST_S, live.SLOWEST_S]
    assert live.SHARE < share <= live.MAX_SHARE


async def test_what_changes_during_the_first_look_is_shown_by_the_next_round(opened, monkeypatch):
    monkeypatch.setattr(live, "RENEW_S", 3600.0)
    pages = opened.dashboard.live
    render, has_read, go_on = pages.render, asyncio.Event(), asyncio.Event()

    async def slow(page, name, view):
        rendered = await render(page, name, view)
        has_read.set()
        await go_on.wait()
        return rendered

    monkeypatch.setattr(pages, "render", slow)
    async with served(opened) as base, client(base) as browser, stream(browser, "/queues", tenant="acme") as found:
        await has_read.wait()
        await opened.queue().enqueue({"n": 1}, queue="press")
        # The hint has come, and the round that it began has left this fragment out.
        await eventually(lambda: not pages.clean and not pages._rounds["acme"].wakeup.is_set())
        go_on.set()
        look = {"tenant": "acme", "fragment": "table"}
        await anext(found)
        while "press" not in (await browser.get("/queues", params=look)).text:
            await anext(found)


async def test_a_round_reads_once_what_several_pages_show(opened, monkeypatch):
    """50 open pages of five kinds: one read of the counts and one of the log for all of them."""
    paths = ("/", "/queues", "/jobs", "/dead", "/events")
    await opened.queue().enqueue({"n": 1}, queue="mail")
    monkeypatch.setattr(live, "PACE_S", 3600.0)
    async with served(opened) as base, client(base) as browser, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(stream(browser, path, tenant="acme")) for path in paths * 10]
        for found in streams:
            await anext(found)
        await asyncio.gather(*(watch._first for watch in opened.dashboard.live.watches_of("acme")))
        counts = Reads(opened.store, monkeypatch, "queue_page")
        log = Reads(opened.store, monkeypatch, "events")
        await opened.queue().enqueue({"n": 1}, queue="press")
        await anext(streams[-1])  # The last page of the round.
        assert (counts.count, log.count) == (1, 1)


async def test_a_tenants_stream_says_nothing_about_others(guarded):
    await guarded.queue("acme").enqueue({"n": 1}, queue="mail")
    bearer = (await guarded.logged_in(token("acme"))).cookies
    async with served(guarded) as base, client(base) as browser:
        ((name, value),) = bearer.items()
        browser.cookies.set(name, value)
        assert (await browser.get("/live", params={"page": "/queues", "tenant": "rival"})).status_code == 404
        async with stream(browser, "/queues") as found:
            await anext(found)
            await guarded.queue("rival").enqueue({"n": 1}, queue="secret")
            await guarded.queue("acme").enqueue({"n": 1}, queue="press")
            _, later = await anext(found)
            shown = await browser.get("/queues", params={"fragment": "table"})
            assert shown.headers["x-fragment-tag"] == later["table"]
            assert "press" in shown.text
            assert "secret" not in shown.text


async def test_a_stream_ends_when_its_viewer_may_look_no_longer(monkeypatch):
    monkeypatch.setattr(live, "BEAT_S", 0.2)
    async with site(f"memory:{uuid.uuid4().hex}", by_token) as found:
        cookies = (await found.logged_in(token("acme"))).cookies
        async with served(found) as base, client(base) as browser:
            ((name, value),) = cookies.items()
            browser.cookies.set(name, value)
            revoked = asyncio.Event()

            async def holds(viewer):
                return not revoked.is_set()

            monkeypatch.setattr(found.dashboard.access, "holds", holds)
            async with stream(browser, "/queues") as said:
                await anext(said)
                revoked.set()
                assert (await anext(said))[0] == "ended"


async def test_a_busy_stream_ends_with_its_session_too(monkeypatch):
    monkeypatch.setattr(live, "BEAT_S", 0.2)
    monkeypatch.setattr(live, "PACE_S", 0.01)
    async with site(f"memory:{uuid.uuid4().hex}", by_token) as found:
        ((name, value),) = (await found.logged_in(token("acme"))).cookies.items()
        viewer = found.dashboard.access.sessions.viewer(value)
        queue, number = found.queue("acme"), 0
        async with served(found) as base, client(base) as browser:
            browser.cookies.set(name, value)
            async with stream(browser, "/queues") as said:
                await anext(said)
                await found.dashboard.access.end(viewer)
                kinds = {"changed"}
                while "ended" not in kinds and number < 1000:
                    number += 1
                    await queue.enqueue({"n": 1}, queue="mail")
                    kinds.add((await anext(said))[0])
                assert "ended" in kinds


async def test_the_streams_of_a_tenants_tokens_are_bounded():
    streams = Shares("event streams", process=2, tenant=1)
    async with site(f"memory:{uuid.uuid4().hex}", by_token, streams=streams) as found, served(found) as base:

        async def browsing(bearer):
            browser = await stack.enter_async_context(client(base))
            ((name, value),) = (await found.logged_in(bearer)).cookies.items()
            browser.cookies.set(name, value)
            return browser

        async def refused(browser):
            async with browser.stream("GET", "/live", params={"page": "/queues", "tenant": "acme"}) as answer:
                return answer.status_code

        async with AsyncExitStack() as stack:
            acme, operator = await browsing(token("acme")), await browsing(operator_token())
            async with stream(acme, "/queues") as first:
                await anext(first)
                assert await refused(acme) == 429
                async with stream(operator, "/queues", tenant="acme") as other:
                    await anext(other)
                    assert (streams.used, streams.used_by("acme")) == (2, 1)
                    assert await refused(operator) == 503


async def test_a_stopping_server_does_not_wait_for_streams(opened):
    async with served(opened) as base, client(base) as browser, stream(browser, "/queues", tenant="acme") as found:
        await anext(found)
        opened.dashboard.stop()
        assert [one async for one in found] == []
