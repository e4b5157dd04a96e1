"""The dashboard on every store: what it shows, what it does, and that it follows changes of other processes."""

import re
import uuid
from contextlib import asynccontextmanager

import pytest

from holdfast import Permanent, Queue, Worker, job
from tests.dashboard.support import field, served, site, texts
from tests.dashboard.test_live import client, stream
from tests.service.support import serving, token

pytestmark = pytest.mark.asyncio


@job(queue="mail", max_attempts=1)
async def fails(text: str) -> str:
    raise Permanent(text)


@asynccontextmanager
async def _memory(request, tmp_path):
    yield f"memory:{uuid.uuid4().hex}"


@asynccontextmanager
async def _file(request, tmp_path):
    yield f"file:{tmp_path}/data"


@asynccontextmanager
async def _valkey(request, tmp_path):
    yield request.getfixturevalue("valkey").url(prefix=f"t{uuid.uuid4().hex[:12]}")


@asynccontextmanager
async def _postgres(request, tmp_path):
    server, name = request.getfixturevalue("postgres"), f"t{uuid.uuid4().hex[:12]}"
    server.sql(f"CREATE DATABASE {name}")
    yield server.url(name)
    server.sql(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def _http(request, tmp_path):
    request.getfixturevalue("monkeypatch").setenv("HOLDFAST_TOKEN", token("acme"))
    async with serving(f"file:{tmp_path}/data") as service:
        yield f"http://127.0.0.1:{service.port}"


PLACES = {"memory": _memory, "file": _file, "valkey": _valkey, "postgres": _postgres, "http": _http}


@pytest.fixture(params=PLACES)
async def url(request, tmp_path):
    async with PLACES[request.param](request, tmp_path) as found:
        yield found


async def test_the_pages_show_and_do_the_same_on_every_store(url):
    async with site(url) as found, Queue(url, tenant="acme") as queue:
        browser = found.browser()
        await queue.enqueue(fails.message("no luck"), id="bad")
        await queue.enqueue({"n": 1}, queue="press", id="waits")
        worker = Worker(queue, jobs=[fails])

        async def stop(_):
            await worker.stop()

        worker.on("failed", stop)
        await worker.run()
        assert {"mail", "press"} <= set(texts(await browser.get("/queues")))
        assert {"bad", "waits"} <= set(texts(await browser.get("/jobs")))
        assert "bad" in texts(await browser.get("/jobs?state=failed&error=luck"))
        assert "Overview" in texts(await browser.get("/"))
        shown = texts(await browser.get("/job?queue=mail&id=bad"))
        assert {"failed", "Replay", "no luck", "enqueued", "claimed"} <= set(shown)
        assert (await browser.act("/job/replay?queue=mail&id=bad")).status_code == 303
        assert (await queue.get("bad", queue="mail")).state == "ready"
        assert (await browser.act("/job/cancel?queue=press&id=waits")).status_code == 303
        assert (await queue.get("waits", queue="press")).state == "canceled"
        assert (await browser.act("/queues/pause", {"queue": "mail"})).status_code == 303
        assert (await queue.stats("mail")).paused


async def test_dead_letters_are_found_and_replayed_in_steps_on_every_store(url, monkeypatch):
    """Places in the list of finished jobs, and the steps of a run, go on behind jobs that have just been replayed."""
    monkeypatch.setattr("holdfast.dashboard.pages.grouping.READ", 2)
    monkeypatch.setattr("holdfast.dashboard.pages.dead_run.STEP_S", -1)
    async with site(url) as found, Queue(url, tenant="acme") as queue:
        browser, ids = found.browser(), [f"bad-{n}" for n in range(5)]
        for id in ids:
            await queue.enqueue(fails.message("no luck"), id=id)
        await queue.enqueue(fails.message("other"), id="other")
        worker, ended = Worker(queue, jobs=[fails], worker_id="w-of-this-test"), []

        async def stop(job):
            ended.append(job)
            if len(ended) == len(ids) + 1:
                await worker.stop()

        worker.on("failed", stop)
        await worker.run()
        shown = " ".join(texts(await browser.get("/dead")))
        assert "2 errors in 6 dead letters" in shown
        error = re.findall(r"/dead/group\?[^\"]*error=(\w+)", (await browser.get("/dead")).text)[0]
        assert set(ids) <= set(texts(await browser.get("/dead/group", params={"error": error})))
        for do in ("replay", "purge"):
            page, steps = await browser.get("/dead/run", params={"do": do, "error": error if do == "replay" else ""}), 0
            while "data-steps" in page.text:
                names = [name for name in ("until", "total", "done", "at", "error") if f'name="{name}"' in page.text]
                form = {name: field(page, name) for name in (*names, "form_token")}
                answer = await browser.send_form(f"/dead/{do}", form)
                page, steps = await browser.get(answer.headers["location"]), steps + 1
            assert steps == (3 if do == "replay" else 1)
        assert [(await queue.get(id, queue="mail")).state for id in ids] == ["ready"] * 5
        assert await queue.get("other", queue="mail") is None
        shown = texts(await browser.get("/events"))
        assert {"replayed", "purged", "Permanent: no luck"} <= set(shown)
        for path in ("/workers", "/worker?id=w-of-this-test", "/proof"):
            assert (await browser.get(path)).status_code == 200, path


async def test_a_page_follows_what_another_handle_on_the_store_does(url, monkeypatch):
    """By the store's hints: without them, the fragment would be read again after this long."""
    monkeypatch.setattr("holdfast.dashboard.live.RENEW_S", 1000)
    async with (
        site(url) as found,
        Queue(url, tenant="acme") as queue,
        served(found) as base,
        client(base) as browser,
        stream(browser, "/queues", tenant="acme") as notices,
    ):

        async def shown():
            return (await browser.get("/queues", params={"tenant": "acme", "fragment": "table"})).text

        await anext(notices)
        await queue.enqueue({"n": 1}, queue="press", id="waits")
        while "press" not in (before := await shown()):
            await anext(notices)
        await queue.cancel("waits", queue="press")
        while await shown() == before:
            await anext(notices)
