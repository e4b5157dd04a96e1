"""What pages read of the log: of one job, and how fast jobs come and go."""

import asyncio
import uuid

import pytest

from holdfast.core.job import JobKey
from holdfast.dashboard import histories, tail
from holdfast.dashboard.histories import Histories
from tests.dashboard.making import claimed
from tests.dashboard.support import site, texts

pytestmark = pytest.mark.asyncio


async def test_the_overview_begins_anew_behind_events_that_were_trimmed(monkeypatch):
    monkeypatch.setattr(tail, "FORGET_S", -1.0)  # As if the last look was long ago.
    async with site(f"memory:{uuid.uuid4().hex}?keep_events=0") as found:
        browser, queue = found.browser(), found.queue()
        await queue.enqueue({"n": 1}, queue="mail")
        assert (await browser.get("/?tenant=acme")).status_code == 200
        for n in range(3):
            await queue.enqueue({"n": n}, queue="mail")
        assert (await found.store.prune(1000)).events
        for _ in range(2):
            assert "Newest failures" in texts(await browser.get("/?tenant=acme"))


async def test_two_looks_at_a_job_at_once_find_each_event_once(opened, monkeypatch):
    monkeypatch.setattr(histories, "SCAN_LIMIT", 1)
    job = await claimed(opened.store, JobKey("acme", "mail", "x"))
    (job,) = await opened.store.get([job.key])
    now, found, events = await opened.store.now(), Histories(opened.store), opened.store.events

    async def slow(*args):
        await asyncio.sleep(0)
        return await events(*args)

    monkeypatch.setattr(opened.store, "events", slow)
    looks = await asyncio.gather(found.of(job, now), found.of(job, now))
    for one in (*looks, await found.of(job, now)):
        assert one.is_complete
        assert [entry.kind for entry in one.entries] == ["enqueued", "claimed"]
