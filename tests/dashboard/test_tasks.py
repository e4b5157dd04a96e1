"""An operator's tasks in Chromium, from start to end, on every store."""

import pytest

from tests.dashboard.making import chrome
from tests.dashboard.support import ALL, by_token, operator_token, served, site, token
from tests.dashboard.tasks import TASKS, Desk, do_all
from tests.dashboard.test_stores import PLACES

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


@pytest.fixture(params=["memory", "file", "valkey", "postgres"])
async def url(request, tmp_path):
    async with PLACES[request.param](request, tmp_path) as found:
        yield found


async def test_an_operator_does_every_task_on_every_store(url):
    assert len(TASKS) >= 20, sorted(TASKS)
    async with site(url) as found, served(found) as base, chrome(base) as page:
        await do_all(page, found.store)


async def test_a_person_logs_in_acts_and_logs_out_on_every_store(url):
    """With a tenant's token they see their own jobs alone, with an operator's all."""
    async with site(url, by_token) as found, served(found) as base, chrome(base) as page:
        await found.queue("rival").enqueue({"n": 1}, queue="secret", id="theirs")
        await found.queue("acme").enqueue({"n": 1}, queue="mail", id="mine")
        desk = Desk(page, found.store, "acme")
        for bearer, seen in ((token(scopes=ALL), {"mine"}), (operator_token(), {"mine"})):
            await page.goto("/jobs?tenant=acme")
            await page.get_by_label("Token").fill(bearer)
            await desk.press("Log in")
            await page.get_by_role("link", name="mine", exact=True).wait_for()
            assert set(await desk.rows()) == seen
            assert bearer not in page.url
            assert bearer not in await page.content()
            await desk.press("Log out")
            await page.get_by_label("Token").wait_for()
        assert await desk.state("mine") == "ready"
