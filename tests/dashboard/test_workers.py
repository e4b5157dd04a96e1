"""Workers: who serves, since when, and what each holds."""

import uuid

import pytest

from holdfast.core.job import JobKey
from holdfast.core.policy import TypeInfo
from holdfast.store import WorkerInfo
from tests.dashboard.making import HOSTILE, check_plain, chrome, claimed, fits
from tests.dashboard.support import operator_token, served, site, texts, token

pytestmark = pytest.mark.asyncio

TTL_MS = 30_000


async def _beat(store, id, tenant="acme", *, queues=("mail",), host="host-of-acme", types=()):
    await store.beat(WorkerInfo(id, tenant, host, 4711, queues, 8, 3, types=types), TTL_MS)


async def test_workers_are_shown_with_what_they_do(opened):
    await _beat(opened.store, "w1", types=(TypeInfo("send"), TypeInfo("sing")))
    shown = " ".join(texts(await opened.browser().get("/workers?tenant=acme")))
    assert "w1" in shown
    assert "host-of-acme, process 4711" in shown
    assert "mail 3 of 8 2" in shown


async def test_a_late_worker_is_marked_and_a_gone_one_is_not_shown():
    async with site(f"memory:{uuid.uuid4().hex}?test_clock=1") as found:
        browser = found.browser()
        await _beat(found.store, "w1")
        assert "late" not in texts(await browser.get("/workers?tenant=acme"))
        await found.store.shift_clock(25_000)
        assert "late" in texts(await browser.get("/workers?tenant=acme"))
        assert "late" in texts(await browser.get("/worker?tenant=acme&id=w1"))
        await found.store.shift_clock(10_000)
        shown = texts(await browser.get("/workers?tenant=acme"))
        assert "w1" not in shown
        assert "holdfast worker my_jobs --tenant acme" in shown
        assert "gone" in texts(await browser.get("/worker?tenant=acme&id=w1"))


async def test_a_worker_shows_the_jobs_that_it_holds(opened):
    await _beat(opened.store, "w1")
    await claimed(opened.store, JobKey("acme", "mail", "mine"), worker="w1")
    await claimed(opened.store, JobKey("acme", "press", "mine-too"), worker="w1")
    await claimed(opened.store, JobKey("acme", "mail", "of-another"), worker="w2")
    shown = texts(await opened.browser().get("/worker?tenant=acme&id=w1"))
    assert {"mine", "mine-too"} <= set(shown)
    assert "of-another" not in shown


async def test_a_token_sees_the_workers_of_its_tenant(guarded):
    """Of a fleet for all tenants it learns that it serves, and neither where it runs nor how busy others keep it."""
    await _beat(guarded.store, "own")
    await _beat(guarded.store, "foreign", "rival", host="host-of-rival")
    await _beat(guarded.store, "elsewhere", queues=("secret",))
    await _beat(guarded.store, "fleet", None, host="host-of-fleet")
    await claimed(guarded.store, JobKey("rival", "mail", "z1"), worker="fleet")
    browser = await guarded.logged_in(token(queues=["mail"]))
    for path in ("/workers", "/workers?fragment=list"):
        answer = await browser.get(path)
        shown = texts(answer)
        assert {"own", "fleet", "serves all tenants"} <= set(shown)
        for hidden in ("foreign", "elsewhere", "secret", "host-of-rival", "host-of-fleet"):
            assert hidden not in answer.text
    for id in ("foreign", "elsewhere", "fleet"):
        answer = await browser.get("/worker", params={"id": id})
        for hidden in ("host-of", "z1", "secret"):
            assert hidden not in answer.text
        assert ("gone" in texts(answer)) == (id != "fleet")
    for path in ("/workers?all=1", "/workers?all=1&fragment=list", "/worker?id=foreign&all=1", "/workers?tenant=rival",
                 "/worker?id=foreign&tenant=rival&fragment=worker", "/live?page=/workers&tenant=rival"):  # fmt: skip
        answer = await browser.get(path)
        assert (answer.status_code, "host-of" in answer.text) == (404, False), path


async def test_the_overview_tells_no_more_of_workers_than_their_page(guarded):
    await _beat(guarded.store, "own", queues=("mail", "secret"))
    await _beat(guarded.store, "elsewhere", queues=("secret",))
    await guarded.store.beat(WorkerInfo("fleet", None, "host", 1, ("mail", "secret"), 50, 37), TTL_MS)
    for limits, seen in ({"queues": ["mail"]}, {"mail", "own", "fleet"}), ({}, {"mail, secret", "elsewhere", "fleet"}):
        answer = await (await guarded.logged_in(token(**limits))).get("/")
        assert seen <= set(texts(answer))
        assert ("secret" in answer.text) == (not limits)
        assert "37/50" not in "".join(texts(answer))
        assert ("3 of 8" if limits else "6 of 16") + " slots in use" in answer.text
    answer = await (await guarded.logged_in(operator_token())).get("/?tenant=acme")
    assert "43 of 66 slots in use" in answer.text


async def test_an_operator_sees_all_workers(guarded):
    for id, tenant in (("own", "acme"), ("foreign", "rival"), ("fleet", None)):
        await _beat(guarded.store, id, tenant, host=f"host-of-{id}")
    browser = await guarded.logged_in(operator_token(("operator",)))
    assert "foreign" not in texts(await browser.get("/workers?tenant=acme"))
    page = await browser.get("/workers?tenant=acme&all=1")
    assert {"own", "foreign", "fleet", "rival"} <= set(texts(page))
    assert "host-of-fleet" in page.text
    assert "host-of-foreign" in texts(await browser.get("/worker?tenant=acme&all=1&id=foreign"))


async def test_hostile_names_stay_text(opened):
    for n, text in enumerate(HOSTILE):
        await _beat(opened.store, f"{text[:60]}{n}", host=text, queues=(), types=(TypeInfo(f"type-{n}"),))
        await claimed(opened.store, JobKey("acme", "mail", text[:150]), worker=f"{text[:60]}{n}")
    browser = opened.browser()
    shown = check_plain(await browser.get("/workers?tenant=acme"))
    for n, text in enumerate(HOSTILE):
        assert text in shown
        one = await browser.get("/worker", params={"tenant": "acme", "id": f"{text[:60]}{n}"})
        assert text in check_plain(one)


async def test_a_person_looks_at_what_a_worker_holds(opened):
    await _beat(opened.store, "w1")
    async with served(opened) as base, chrome(base, size="phone") as page:
        await page.goto("/workers?tenant=acme")
        assert await fits(page)
        await page.get_by_role("link", name="w1").click()
        await page.locator("#status.on").wait_for(state="attached")
        await claimed(opened.store, JobKey("acme", "mail", "just-claimed"), worker="w1")
        await page.get_by_text("just-claimed").wait_for()
        assert await fits(page)
