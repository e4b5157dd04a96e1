"""How many pages are read at once, and how much a look at dead letters holds."""

import asyncio

import pytest

from holdfast.core.job import AttemptError, ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.dashboard import turns
from holdfast.dashboard.pages import grouping
from tests.dashboard.making import chrome
from tests.dashboard.support import operator_token, served, token

pytestmark = pytest.mark.asyncio

PATHS = ("/queues", "/jobs", "/jobs?fragment=list", "/dead", "/dead/run?do=replay", "/")


class Gate:
    """Holds the reads of a tenant's queues back, and counts those that have begun."""

    def __init__(self, store, tenant):
        self.open, self.begun = asyncio.Event(), 0
        self._page, self._tenant = store.queue_page, tenant
        self.changed = asyncio.Event()

    async def __call__(self, tenant, *args):
        if tenant == self._tenant:
            self.begun += 1
            self.changed.set()
            await self.open.wait()
        return await self._page(tenant, *args)


async def test_a_tenants_pages_are_read_two_at_a_time_and_delay_no_others(guarded, monkeypatch):
    monkeypatch.setattr(turns, "WAIT_S", 60.0)
    mine, theirs = await guarded.logged_in(token("acme")), await guarded.logged_in(token("rival"))
    gate = Gate(guarded.store, "acme")
    monkeypatch.setattr(guarded.store, "queue_page", gate)
    pages = [asyncio.create_task(mine.get(path)) for path in PATHS * 5]
    while gate.begun < turns.AT_ONCE_OF_TENANT:
        gate.changed.clear()
        await gate.changed.wait()
    for path in PATHS:
        assert (await theirs.get(path)).status_code == 200
    assert (await (await guarded.logged_in(operator_token())).get("/queues?tenant=rival")).status_code == 200
    assert gate.begun == turns.AT_ONCE_OF_TENANT
    gate.open.set()
    assert {(await page).status_code for page in pages} == {200}
    assert not guarded.dashboard._turns._own


async def test_a_page_that_gets_no_turn_is_refused(guarded, monkeypatch):
    browser = await guarded.logged_in(token("acme"))
    gate = Gate(guarded.store, "acme")
    monkeypatch.setattr(guarded.store, "queue_page", gate)
    first = [asyncio.create_task(browser.get("/jobs")) for _ in range(turns.AT_ONCE_OF_TENANT)]
    while gate.begun < turns.AT_ONCE_OF_TENANT:
        gate.changed.clear()
        await gate.changed.wait()
    monkeypatch.setattr(turns, "WAIT_S", 0.01)
    assert (await browser.get("/jobs?fragment=list")).status_code == 503
    gate.open.set()
    assert {(await page).status_code for page in first} == {200}
    assert (await browser.get("/jobs")).status_code == 200


async def test_a_look_reads_few_large_dead_letters_at_a_time_and_keeps_no_payloads(opened, monkeypatch):
    payload, keys = b'"%s"' % (b"x" * 250_000), [JobKey("acme", "mail", f"job-{n}") for n in range(40)]
    await opened.store.enqueue([NewJob(key, Envelope("send", payload, max_attempts=1)) for key in keys])
    jobs = (await opened.store.claim(ClaimRequest("acme", ("mail",), 40, 60_000, "w1", 0.5))).jobs
    error = AttemptError("Boom", "no luck", "")
    await opened.store.finish([Finish(job.key, job.token, "fail", None, error, random=0.5) for job in jobs])
    sizes, listed, looks = [], opened.store.list, []

    async def counted(query):
        page = await listed(query)
        sizes.append(sum(len(job.envelope.payload) for job in page.jobs))
        looks.extend(page.jobs)
        return page

    monkeypatch.setattr(opened.store, "list", counted)
    for path in ("/dead", "/dead/run"):
        assert (await opened.browser().get(path, params={"tenant": "acme", "do": "purge"})).status_code == 200
        assert sum(sizes) == len(keys) * len(payload)
        assert max(sizes) <= grouping.READ_BYTES
        assert not any(job.envelope.payload for job in looks)
        sizes.clear()


async def test_a_page_asks_again_for_a_part_that_got_no_turn(opened):
    queue, asked = opened.queue(), []
    await queue.enqueue({"n": 1}, queue="first")

    async def handle(route):
        asked.append(route.request.url)
        await (route.fulfill(status=503, body="busy") if len(asked) == 1 else route.continue_())

    async with served(opened) as base, chrome(base, expected="503") as page:
        await page.route("**/*fragment=*", handle)
        await page.goto("/queues?tenant=acme")
        await page.wait_for_selector("#status.on")
        await queue.enqueue({"n": 1}, queue="second")
        await page.wait_for_selector("text=second")
    assert len(asked) == 2
