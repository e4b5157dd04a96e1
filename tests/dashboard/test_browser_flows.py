"""Flows, schedules and the login at an issuer, as a person uses them in Chromium."""

import asyncio
from datetime import timedelta
from urllib.parse import urlsplit

from holdfast import Flow, Worker, job
from holdfast.dashboard import ByToken
from holdfast.dashboard.oidc import Issuer
from tests.dashboard.issuer import issuing
from tests.dashboard.test_browser import browser, running  # noqa: F401 - a fixture
from tests.dashboard.test_oidc import settings

PHONE = {"width": 390, "height": 844}
AT = "?tenant=acme"


@job(queue="mail")
async def works(text: str = "") -> str:
    return text


def wide(id, count=12):
    flow = Flow("report", id)
    first = flow.add(works.message("a"), name="first")
    parts = [flow.add(works.message(str(n)), name=f"part-{n}", after=[first]) for n in range(count)]
    middle = flow.add(works.message("m"), name="merge", after=parts)
    flow.add(works.message("z"), name="last", after=[middle], delay=3600)
    return flow


async def run_until(queue, count):
    """Run a worker until this many jobs have completed."""
    worker, ended, done = Worker(queue, jobs=[works]), 0, asyncio.Event()

    async def end(_):
        nonlocal ended
        ended += 1
        if ended == count:
            done.set()

    worker.on("completed", end)
    task = asyncio.create_task(worker.run(signals=False))
    await done.wait()
    await worker.stop()
    await task


def test_a_flow_is_followed_live_and_canceled(browser):  # noqa: F811
    with running() as opened:
        opened.do(opened.queue.start(wide("wide")))

        def use(page):
            page.goto(f"{opened.address}/flows{AT}")
            page.locator("a.row", has_text="wide").click()
            assert page.locator("a.box.s-blocked").count() == 14
            page.locator("#status", has_text="live").wait_for()
            opened.do(run_until(opened.queue, 14))
            page.locator(".progress", has_text="14 of 15 steps completed").wait_for()
            page.locator("a.box.s-scheduled").wait_for()
            assert page.locator("a.box.s-completed").count() == 14
            # By keyboard: into the graph, and to a step's job.
            page.locator("a.box").first.focus()
            page.keyboard.press("Enter")
            page.wait_for_url("**/job?**")
            assert "wide/first" in page.inner_text("h1")
            page.go_back()
            page.locator("summary", has_text="Cancel").click()
            page.get_by_role("button", name="Cancel the flow").click()
            page.locator(".flash", has_text="Canceled wide and its open steps.").wait_for()
            page.locator("a.box.s-canceled").wait_for()

        browser(use)


def test_on_a_phone_a_graph_scrolls_in_its_own_box(browser):  # noqa: F811
    with running() as opened:
        opened.do(opened.queue.start(wide("wide", 60)))

        def use(page):
            page.goto(f"{opened.address}/flow{AT}&id=wide")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            box = page.locator(".graph")
            assert box.evaluate("at => at.scrollWidth > at.clientWidth")
            assert page.locator("a.box").count() == 4
            cut = page.locator("svg.flow text").evaluate_all(
                "all => all.filter(at => at.getBBox().x + at.getBBox().width > 172).map(at => at.textContent)"
            )
            assert cut == []

        browser(use, viewport=PHONE)


def test_schedules_are_looked_after_without_a_script(browser):  # noqa: F811
    with running() as opened:
        opened.do(opened.queue.schedule("nightly", {"n": 1}, cron="30 2 * * *", timezone="Europe/Berlin", queue="mail"))
        opened.do(opened.queue.schedule("often", {"n": 2}, every=timedelta(hours=1), queue="mail"))

        def use(page):
            page.goto(f"{opened.address}/schedules{AT}")
            page.get_by_role("button", name="Run now").first.click()
            page.locator(".flash", has_text="Enqueued often@").wait_for()
            assert page.inner_text("h1").startswith("often@")
            page.goto(f"{opened.address}/schedules{AT}")
            page.get_by_role("link", name="nightly").click()
            assert page.inner_text("h1") == "nightly"
            assert page.locator("text=02:30:00").count() == 5
            assert opened.do(opened.queue.get_schedule("nightly")) is not None
            page.locator("summary", has_text="Remove").click()
            page.get_by_role("button", name="Remove it").click()
            page.locator(".flash", has_text="Removed nightly. Its jobs stay.").wait_for()
            assert page.get_by_role("link", name="nightly").count() == 0
            assert opened.do(opened.queue.get_schedule("nightly")) is None

        browser(use, java_script_enabled=False, viewport=PHONE)


def test_a_person_logs_in_at_an_issuer_on_another_site(browser):  # noqa: F811
    with running(lambda store: ByToken.of(None, store)) as opened:
        public = f"http://localhost:{urlsplit(opened.address).port}"
        context = issuing()
        issuer = opened.do(context.__aenter__())
        try:
            issuer.redirects.add(f"{public}/login/oidc/return")
            opened.found.dashboard.access.issuer = Issuer(settings(issuer, public_url=public))
            opened.do(opened.queue.enqueue({"n": 1}, queue="mail"))

            def use(page):
                page.goto(f"{public}/queues?state=ready")
                assert page.inner_text("h1") == "Log in to Holdfast"
                page.get_by_role("link", name="Log in with 127.0.0.1").click()
                page.wait_for_url(f"{public}/queues?state=ready")
                page.get_by_role("link", name="mail").wait_for()
                names = {one["name"]: one for one in page.context.cookies()}
                assert names["holdfast-session"]["sameSite"] == "Strict"
                assert names["holdfast-session"]["httpOnly"]
                assert "holdfast-login" not in names

            browser(use)
            browser(use, java_script_enabled=False)
        finally:
            opened.do(context.__aexit__(None, None, None))
