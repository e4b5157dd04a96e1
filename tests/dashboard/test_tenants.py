"""Tenants: who waits, with which share; and an operator who changes that."""

import re

import pytest

from holdfast.core.errors import QuotaExceeded
from holdfast.dashboard.pages import tenants
from tests.dashboard.making import check_plain, chrome, fail, fits
from tests.dashboard.support import ALL, operator_token, served, texts, token

pytestmark = pytest.mark.asyncio


async def _own(found, tenant="acme"):
    settings = await found.store.tenant_settings(tenant)
    return next(((one.weight, one.max_waiting) for one in settings if one.queue is None), (None, None))


async def test_tenants_are_shown_with_what_waits_and_their_share(opened):
    for tenant, count in (("acme", 3), ("rival", 1), ("idle", 0)):
        await opened.queue(tenant).set_tenant(weight=3 if tenant == "acme" else 1, max_waiting=500)
        for n in range(count):
            await opened.queue(tenant).enqueue({"n": n}, queue=f"q{n}")
    await fail(opened.store, ["a1"], tenant="rival")
    shown = texts(await opened.browser().get("/tenants"))
    acme, rival = shown.index("acme"), shown.index("rival")
    assert [shown[acme + 1], *shown[acme + 3 : acme + 8]] == ["3", "0", "0", "3", "75 %", "500"]
    assert [shown[rival + 1], *shown[rival + 3 : rival + 8]] == ["1", "0", "1", "1", "25 %", "500"]


async def test_tenants_come_a_page_at_a_time_and_by_name(opened, monkeypatch):
    monkeypatch.setattr(tenants, "SHOWN", 4)
    names = [f"tenant-{n}" for n in range(10)]
    for name in names:
        await opened.queue(name).enqueue({"n": 1})
    browser, path, found = opened.browser(), "/tenants", []
    while path:
        page = await browser.get(path)
        found += [text for text in texts(page) if re.fullmatch(r"tenant-\d", text)]
        following = re.search(r'href="([^"]+)" rel="next"', page.text)
        path = following and following[1].replace("&amp;", "&")
    assert found == names
    shown = texts(await browser.get("/tenants?name=tenant-7"))
    assert "tenant-7" in shown
    assert "tenant-6" not in shown


async def test_an_operator_sets_weight_and_quota_and_that_is_recorded(guarded, caplog):
    await guarded.queue().enqueue({"n": 1})
    browser = await guarded.logged_in(operator_token(("operator",), subject="olga"))
    page = "/tenant?tenant=acme"
    caplog.set_level("INFO", "holdfast.audit")
    answer = await browser.act("/tenant/set?tenant=acme", {"weight": "2.5", "max_waiting": "2"}, page)
    assert answer.status_code == 303
    assert await _own(guarded) == (2.5, 2)
    (line,) = [record.__dict__ for record in caplog.records if record.name == "holdfast.audit"]
    for fact in ("tenant.set", "olga", "acme", "2.5", "max_waiting=2", "dashboard", "done"):
        assert fact in str(line)
    shown = texts(await browser.get(page))
    assert "1 of 2" in shown
    await browser.act("/tenant/set?tenant=acme", {"max_waiting": "1", "queue": "press"}, page)
    await guarded.queue().enqueue({"n": 1}, queue="press")
    with pytest.raises(QuotaExceeded):
        await guarded.queue().enqueue({"n": 1}, queue="press")


WRONG = (
    {}, {"weight": "much"}, {"weight": "-1"}, {"weight": "nan"}, {"max_waiting": "1.5"}, {"max_waiting": "-1"},
    {"max_waiting": "inf"}, {"weight": "2", "queue": "a b"},
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_setting_that_makes_no_sense_is_refused(opened, wrong):
    await opened.queue().enqueue({"n": 1})
    answer = await opened.browser().act("/tenant/set?tenant=acme", wrong, "/tenant?tenant=acme")
    assert answer.status_code == 400
    assert await _own(opened) == (None, None)


async def test_a_tenants_token_sees_and_sets_nothing_here(guarded):
    await guarded.queue().enqueue({"n": 1})
    for bearer in (token(), token(scopes=(*ALL, "work"))):
        browser = await guarded.logged_in(bearer)
        for path in ("/tenants", "/tenants?fragment=list", "/tenant", "/tenant?fragment=use", "/tenant?tenant=rival",
                     "/live?page=/tenants"):  # fmt: skip
            assert (await browser.get(path)).status_code == 404, path
        answer = await browser.act("/tenant/set", {"weight": "9"})
        assert answer.status_code in (403, 404)
        assert "Settings" not in texts(await browser.get("/queues"))
    assert await _own(guarded) == (None, None)


async def test_the_pages_are_plain(opened):
    await opened.queue().enqueue({"n": 1}, queue="a:b/c")
    browser = opened.browser()
    for path in ("/tenants", "/tenants?fragment=list", "/tenants?name=acme", "/tenant?tenant=acme",
                 "/tenant?tenant=acme&fragment=use"):  # fmt: skip
        assert "acme" in check_plain(await browser.get(path)) or "fragment=use" in path
    assert (await browser.get("/tenants", params={"name": "<script>"})).status_code == 400


async def test_a_person_gives_a_tenant_a_larger_share(opened):
    await opened.queue().enqueue({"n": 1})
    async with served(opened) as base, chrome(base, size="phone") as page:
        await page.goto("/tenants")
        assert await fits(page)
        await page.get_by_role("link", name="Settings").click()
        assert await fits(page)
        await page.get_by_label("Weight").fill("4")
        await page.get_by_label("Weight").press("Enter")
        await page.get_by_text("Set for acme: weight 4.").wait_for()
        assert await _own(opened) == (4, None)
