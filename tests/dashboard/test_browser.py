"""The pages as a person uses them: in Chromium, with a script and without one, by mouse and by keyboard."""

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from playwright.sync_api import sync_playwright

from holdfast import Permanent, Worker, job
from tests.dashboard.support import by_token, served, site, token
from tests.machine import chromium, skip_for

pytestmark = pytest.mark.timeout(300)

FLAGS = ("--no-sandbox", "--disable-background-networking")
PATIENCE_MS = 30_000


@job(queue="mail", max_attempts=1)
async def fails(text: str) -> str:
    raise Permanent(text)


@job(queue="mail")
async def works(text: str) -> str:
    return text


class Running:
    """A dashboard in a thread of its own: Playwright runs an event loop in the thread of the test."""

    def __init__(self, loop, found, address):
        self._loop, self.found, self.address = loop, found, address

    def do(self, call):
        """Run a coroutine where the dashboard runs."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(60)

    @property
    def queue(self):
        return self.found.queue("acme")


@contextmanager
def running(access=None):
    up, done = threading.Event(), None
    made = []

    async def run():
        nonlocal done
        done = asyncio.Event()
        async with site(f"memory:{uuid.uuid4().hex}", access) as found, served(found) as address:
            made.append(Running(asyncio.get_running_loop(), found, address))
            up.set()
            await done.wait()

    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(asyncio.run, run())
        assert up.wait(60), ended.exception()
        try:
            yield made[0]
        finally:
            made[0]._loop.call_soon_threadsafe(done.set)
            ended.result(60)


@pytest.fixture(scope="module")
def browser():
    if lack := skip_for("" if chromium() else "there is no Chromium; install it, on Debian with: apt install chromium"):
        pytest.skip(lack)
    with ThreadPoolExecutor(1) as thread:
        playwright = thread.submit(lambda: sync_playwright().start()).result()
        started = thread.submit(playwright.chromium.launch, executable_path=chromium(), args=list(FLAGS)).result()

        def run(use, **options):
            """Call `use` with a page, and check that nothing was said and nothing was asked elsewhere."""

            def with_page():
                context = started.new_context(**options)
                context.set_default_timeout(PATIENCE_MS)
                page = context.new_page()
                said = []
                page.on("console", lambda message: said.append(message.text))
                page.on("pageerror", lambda error: said.append(str(error)))
                page.on("dialog", lambda dialog: said.append(dialog.message))
                try:
                    answer = use(page)
                    assert not said, said
                    return answer
                finally:
                    context.close()

            return thread.submit(with_page).result()

        yield run
        thread.submit(started.close).result()
        thread.submit(playwright.stop).result()


async def fill(running_site):
    """A job that failed, one that completed, one that waits."""
    queue = running_site.queue
    await queue.enqueue(fails.message("no luck"), id="bad")
    await queue.enqueue(works.message("fine"), id="good")
    worker, ended = Worker(queue, jobs=[fails, works]), 0

    async def end(_):
        nonlocal ended
        ended += 1
        if ended == 2:
            await worker.stop()

    worker.on("completed", end)
    worker.on("failed", end)
    await worker.run()
    await queue.enqueue({"n": 1}, queue="press", id="waits")


@pytest.fixture(scope="module")
def opened():
    with running() as found:
        found.do(fill(found))
        yield found


def test_a_page_follows_what_happens_without_a_reload(browser):
    with running() as found:

        def use(page):
            page.goto(found.address + "/queues?tenant=acme")
            page.get_by_text("No queue has jobs").wait_for()
            page.locator("#status.on").wait_for()
            page.evaluate("window.same = true")
            found.do(found.queue.enqueue({"n": 1}, queue="mail", id="first"))
            page.get_by_role("link", name="mail", exact=True).wait_for()
            found.do(found.queue.enqueue({"n": 1}, queue="press", id="second"))
            page.get_by_role("link", name="press", exact=True).wait_for()
            assert page.evaluate("window.same")

        browser(use)


@pytest.mark.parametrize("script", [True, False])
def test_pause_resume_and_replay_with_a_script_and_without_one(browser, script):
    with running() as found:
        found.do(fill(found))

        def use(page):
            page.goto(found.address + "/queues?tenant=acme")
            row = page.get_by_role("row").filter(has_text="press")
            row.get_by_role("button", name="Pause").click()
            page.get_by_text("Paused press.").wait_for()
            row.get_by_role("button", name="Resume").click()
            page.get_by_text("Resumed press.").wait_for()
            page.goto(found.address + "/jobs?tenant=acme&state=failed")
            page.get_by_role("link", name="bad", exact=True).click()
            page.get_by_role("button", name="Replay").click()
            page.get_by_text("Replayed bad").wait_for()
            page.goto(found.address + "/job?tenant=acme&queue=press&id=waits")
            page.locator("summary", has_text="Cancel").click()
            page.get_by_role("button", name="Cancel the job").click()
            page.get_by_text("Canceled waits.").wait_for()
            assert page.locator(".head .state").inner_text() == "canceled"

        browser(use, java_script_enabled=script)


def test_a_person_can_do_it_all_by_keyboard(browser, opened):
    def use(page):
        page.goto(opened.address + "/?tenant=acme")
        page.keyboard.press("?")
        page.get_by_text("search for a job").wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("b")
        page.wait_for_url("**/jobs?**")
        page.keyboard.press("j")
        first = page.evaluate("document.activeElement.textContent")
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.textContent") != first
        page.keyboard.press("k")
        assert page.evaluate("document.activeElement.textContent") == first
        page.keyboard.press("/")
        page.keyboard.type("good")
        page.keyboard.press("Enter")
        page.wait_for_url("**id=good**")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/job?**")
        page.get_by_text("Timeline").wait_for()

    browser(use)


def test_a_search_from_another_page_goes_to_the_jobs(browser, opened):
    def use(page):
        page.goto(opened.address + "/queues?tenant=acme")
        page.keyboard.press("/")
        page.wait_for_url("**/jobs?**")
        page.wait_for_function("document.activeElement.name === 'id'")

    browser(use)


def test_an_open_question_and_the_focus_survive_a_renewal(browser):
    with running() as found:
        found.do(found.queue.enqueue({"n": 1}, queue="mail", id="waits"))

        def use(page):
            page.goto(found.address + "/job?tenant=acme&queue=mail&id=waits")
            page.locator("#status.on").wait_for()
            page.locator("summary", has_text="Cancel").click()
            found.do(found.queue.cancel("waits", queue="mail"))
            page.locator(".head .state", has_text="canceled").wait_for()
            page.goto(found.address + "/queues?tenant=acme")
            page.locator("#status.on").wait_for()
            page.get_by_role("link", name="mail", exact=True).focus()
            found.do(found.queue.enqueue({"n": 1}, queue="press", id="b"))
            page.get_by_role("link", name="press", exact=True).wait_for()
            assert page.evaluate("document.activeElement.textContent") == "mail"

        browser(use)


def test_a_user_logs_in_with_a_token_and_out(browser):
    with running(by_token) as found:
        found.do(found.queue.enqueue({"n": 1}, queue="mail", id="first"))

        def use(page):
            page.goto(found.address + "/jobs")
            page.get_by_label("Token").fill(token())
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("link", name="first", exact=True).wait_for()
            assert page.url == found.address + "/jobs"
            assert page.evaluate("document.cookie") == ""
            page.get_by_role("button", name="Log out").click()
            page.get_by_label("Token").wait_for()
            page.goto(found.address + "/jobs")
            page.get_by_label("Token").wait_for()

        browser(use)


def test_the_policy_stops_what_a_page_must_not_do(browser, opened):
    """A script or style that got into a page would not run."""

    def use(page):
        page.goto(opened.address + "/queues?tenant=acme")
        blocked = page.evaluate(
            """() => new Promise(done => {
                const seen = []
                document.addEventListener('securitypolicyviolation', event => {
                    seen.push(event.effectiveDirective)
                    if (seen.length === 3) done(seen.sort())
                })
                const script = document.createElement('script')
                script.textContent = 'window.hacked = true'
                document.body.append(script)
                const style = document.createElement('style')
                style.textContent = 'body { display: none }'
                document.body.append(style)
                const image = document.createElement('img')
                image.src = 'https://evil.example/x.png'
                document.body.append(image)
            })"""
        )
        assert blocked == ["img-src", "script-src-elem", "style-src-elem"]
        assert not page.evaluate("window.hacked")
        return page

    with pytest.raises(AssertionError, match="Content Security Policy"):
        browser(use)
