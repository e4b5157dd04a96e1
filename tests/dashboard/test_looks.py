"""How every page looks with a shop's jobs on it: in light and dark, on a desk and on a phone.

`HOLDFAST_SCREENSHOTS=docs/images` keeps the pictures of the docs, another directory all of them.
"""

import os
import uuid
from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe

from holdfast.dashboard.pages import PAGES
from tests.dashboard.making import SIZES, chrome, fits
from tests.dashboard.shop import Shop, prove
from tests.dashboard.support import by_token, served, site

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

AT = "?tenant=acme"
VIEWS = {
    "overview": f"/{AT}", "queues": f"/queues{AT}", "jobs": f"/jobs{AT}", "dead": f"/dead{AT}", "flows": f"/flows{AT}",
    "failed": f"/jobs{AT}&state=failed", "job": f"/job{AT}&queue=reports&id=monthly-report-2026-10",
    "group": f"/dead/group{AT}&error=MailboxUnavailable", "dry-run": f"/dead/run{AT}&do=replay",
    "flow": f"/flow{AT}&id=close-2026-11-18", "schedules": f"/schedules{AT}", "events": f"/events{AT}",
    "schedule": f"/schedule{AT}&name=nightly-close", "workers": f"/workers{AT}", "tenants": "/tenants",
    "worker": f"/worker{AT}&id=worker-eu-1-7f3a", "tenant": f"/tenant{AT}", "proof": f"/proof{AT}&doctor=1",
    "no-overview": "/?tenant=umbrella", "no-jobs": "/jobs?tenant=umbrella", "no-flows": "/flows?tenant=umbrella",
    "no-dead": "/dead?tenant=umbrella", "no-schedules": "/schedules?tenant=umbrella",
}  # fmt: skip
DOCS = {
    "overview-desk-light",
    "overview-desk-dark",
    "job-desk-light",
    "flow-desk-light",
    "dead-desk-light",
    "queues-phone-dark",
}
"""The pictures of the docs."""
SCHEMES = {"light": "rgb(246, 247, 249)", "dark": "rgb(13, 16, 21)"}
SMALL_TEXT = """() => [...document.querySelectorAll('main *')]
    .filter(one => one.childElementCount === 0 && one.textContent.trim() && one.getClientRects().length)
    .filter(one => parseFloat(getComputedStyle(one).fontSize) < 11).map(one => one.textContent.slice(0, 30))"""
OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll('main tr, main .card, main .tile, main .head')]
        .map(one => [one, one.getBoundingClientRect()]).filter(([, box]) => box.height)
    const spills = []
    for (const [one, box] of boxes) for (const inside of one.querySelectorAll('a, span, time, p, code, td')) {
        const at = inside.getBoundingClientRect()
        if (!at.height || !inside.checkVisibility() || inside.closest('.scroll, .popover, pre')) continue
        if (at.bottom > box.bottom + 2 || at.right > box.right + 2)
            spills.push(inside.textContent.trim().slice(0, 40))
    }
    return spills
}"""
"""Texts that stick out of the row or card that they are in."""


ACTIONS = {
    "Cancel the flow", "Cancel the job", "Pause", "Purge the job", "Remove it", "Replay", "Resume", "Run now", "Set",
}  # fmt: skip
CONTROLS = """() => {
    document.querySelectorAll('details').forEach(one => one.open = true)
    const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary')]
        .filter(one => one.checkVisibility() && one.type !== 'hidden' && !one.disabled)
    all.forEach((one, number) => one.dataset.number = number)
    return all.map(one => `${one.tagName} ${one.name || ''} ${one.textContent.trim().slice(0, 40)}`)
}"""
"""Opens what is folded, numbers all that a person can act on, and names it."""


async def test_every_page_is_looked_at():
    assert {page.path for page in PAGES} <= {path.partition("?")[0] for path in VIEWS.values()}


@pytest.mark.parametrize("scheme, size", [*product(SCHEMES, SIZES)])
async def test_every_page_fits_and_can_be_read_by_everyone(scheme, size, tmp_path):
    """Nothing sticks out, no text is tiny, and axe finds nothing serious."""
    kept, axe, found = os.environ.get("HOLDFAST_SCREENSHOTS"), Axe(), {}
    prove(tmp_path)
    async with (
        site(f"memory:{uuid.uuid4().hex}?test_clock=1", proof=tmp_path) as opened,
        served(opened) as base,
        chrome(base, size=size, scheme=scheme) as page,
    ):
        await Shop(opened.store).fill()
        for name, path in VIEWS.items():
            await page.goto(path)
            picture = f"{name}-{size}-{scheme}"
            if kept and (picture in DOCS or not kept.startswith("docs/")):
                if await page.locator("body[data-live]").count():
                    await page.locator("#status.on").wait_for(state="attached")
                await page.screenshot(path=Path(kept) / f"{picture}.png")
            assert await fits(page), path
            assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == SCHEMES[scheme]
            assert not (small := await page.evaluate(SMALL_TEXT)), (path, small)
            assert not (spills := await page.evaluate(OVERLAPS)), (path, spills)
            found |= await serious(axe, page, path)
        await page.keyboard.press("?")
        found |= await serious(axe, page, "the list of keys")
    assert not found, "\n".join(f"{key} {value}" for key, value in found.items())


async def test_every_action_of_every_page_is_reached_by_the_tab_key(tmp_path):
    """Actions are buttons of forms: a browser presses the one that has the focus."""
    prove(tmp_path)
    async with (
        site(f"memory:{uuid.uuid4().hex}?test_clock=1", proof=tmp_path) as opened,
        served(opened) as base,
        chrome(base, script=False) as page,
    ):
        await Shop(opened.store).fill()
        actions = set()
        for path in VIEWS.values():
            await page.goto(path)
            controls = await page.evaluate(CONTROLS)
            reached = set()
            for _ in range(len(controls) + 5):
                await page.keyboard.press("Tab")
                reached.add(await page.evaluate("document.activeElement.dataset.number"))
            lost = [name for number, name in enumerate(controls) if str(number) not in reached]
            assert not lost, (path, lost)
            actions |= set(await page.locator("main button:visible").all_inner_texts())
        assert actions >= ACTIONS


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_login_can_be_read_by_everyone(scheme):
    async with (
        site(f"memory:{uuid.uuid4().hex}", by_token) as guarded,
        served(guarded) as base,
        chrome(base, scheme=scheme, size="phone") as page,
    ):
        await page.goto("/")
        assert await fits(page)
        assert not await serious(Axe(), page, "/login")


async def serious(axe, page, path):
    """What axe finds on a page that is serious, by rule and page."""
    results = await axe.run(page)
    return {
        (one["id"], path): [f"{node['html'][:120]} {node['failureSummary'][:200]}" for node in one["nodes"][:4]]
        for one in results.response["violations"]
        if one["impact"] in ("serious", "critical")
    }
