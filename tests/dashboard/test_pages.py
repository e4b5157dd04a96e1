"""What the pages show and do, on the raw requests."""

import html
import re
import uuid
from datetime import timedelta
from urllib.parse import urlencode

import pytest

from holdfast import Permanent, Worker, job
from holdfast.core.events import Event
from holdfast.core.job import JobKey
from holdfast.dashboard.histories import spans
from tests.dashboard.inline import inline
from tests.dashboard.making import chrome, fail
from tests.dashboard.support import operator_token, parsed, served, texts, token

pytestmark = pytest.mark.asyncio

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'><svg onload=alert(1)>", "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}", "</textarea></title><b>", "<!--", "]]>", "&lt;b&gt;", "\u202egnp.exe", "%3Cscript%3E",
    "../../etc/passwd", "a/b?c=d&e=f#g", "\ufeff<b>", "<style>*{display:none}</style>", "`${alert(1)}`",
    "<a href=javascript:alert(1)>", "\u2028alert(1)", "' OR 1=1 --", "<base href=//evil>",
)  # fmt: skip
HUNDRED = tuple(before + text for before in ("", '">', "'>", "</script>", "--></style>") for text in HOSTILE)
"""Each as it is, and out of an attribute, a script, a style and a comment."""


@job(queue="mail", max_attempts=1)
async def fails(text: str) -> str:
    raise Permanent(text)


@job(queue="mail")
async def works(text: str) -> dict[str, str]:
    return {"said": text}


async def _run(queue, count):
    """Run a worker until this many jobs have ended."""
    worker = Worker(queue, jobs=[fails, works], concurrency=4)
    ended = 0

    async def end(_):
        nonlocal ended
        ended += 1
        if ended == count:
            await worker.stop()

    worker.on("completed", end)
    worker.on("failed", end)
    await worker.run()


async def test_hostile_names_payloads_errors_and_results_stay_text(opened):
    """A hundred of each: ids, payloads, errors or results, idempotency keys; on every page that shows them."""
    assert len(set(HUNDRED)) == 100
    queue = opened.queue()
    for n, text in enumerate(HUNDRED):
        message = fails.message(text) if n % 2 else works.message(text)
        await queue.enqueue(message, id=text[:200].replace("\u2028", "-"), idempotency_key=f"{text}-key")
    await _run(queue, len(HUNDRED))
    browser = opened.browser()
    paths = ("/", "/jobs", "/queues", "/dead", "/events")
    pages = [await browser.get(path, params={"tenant": "acme"}) for path in paths]
    for text in HUNDRED:
        id = text.replace("\u2028", "-")
        asked = {"tenant": "acme", "queue": "mail", "id": id}
        pages += [
            await browser.get("/job", params=asked),
            await browser.get("/jobs", params={**asked, "id": text, "queue": ""}),
        ]
    pages.append(await browser.get("/jobs", params={"tenant": "acme", "error": HOSTILE[1], "queue": "mail"}))
    pages.append(await browser.get("/jobs", params={"tenant": "acme", "id": HOSTILE[0]}))
    shown = ""
    for page in pages:
        found = parsed(page)
        shown += " ".join(found.texts)
        assert set(found.tags) <= ALLOWED, set(found.tags) - ALLOWED
        for name, value in found.attributes:
            assert not name.startswith("on"), (name, value)
            assert name != "style"
            if name in ("href", "src", "action", "formaction"):
                assert value.startswith(("/", "#")), value
                assert not value.startswith("//"), value
    for text in HUNDRED:
        assert " ".join(text.split()) in shown or "\u2028" in text, text


async def test_hostile_texts_run_nothing_in_a_browser(opened):
    """A hundred dead letters: their pages and all lists say them, and neither ask nor run anything."""
    ids = [text.replace("\u2028", "-") for text in HUNDRED]
    for id, text in zip(ids, HUNDRED, strict=True):
        await fail(opened.store, [id], text, error=text)
    async with served(opened) as base, chrome(base) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        for path in ("/", "/jobs", "/dead", "/events", "/dead/run?do=replay"):
            await page.goto(f"{path}{'&' if '?' in path else '?'}tenant=acme")
            assert await page.evaluate(FOREIGN_ELEMENTS) == []
        for id, text in zip(ids[:: len(ids) // 20], HUNDRED[:: len(ids) // 20], strict=True):
            await page.goto(f"/job?{urlencode({'tenant': 'acme', 'queue': 'mail', 'id': id})}")
            assert (await page.text_content("h1")).strip() == id.strip()
            assert text in await page.text_content("main")
            assert await page.evaluate(FOREIGN_ELEMENTS) == []


FOREIGN_ELEMENTS = """() => [...document.querySelectorAll(
    'script:not([src^="/static/"]), style, img, iframe, object, embed, base, textarea, ' +
    '[style], [onload], [onerror], [href^="javascript"]'
)].map(one => one.outerHTML)"""


ALLOWED = {
    "html", "head", "meta", "title", "link", "script", "body", "a", "header", "svg", "path", "div", "span", "nav",
    "footer", "form", "input", "main", "h1", "h2", "p", "section", "dl", "dt", "dd", "table", "thead", "tbody", "tr",
    "th", "td", "time", "button", "details", "summary", "pre", "code", "ol", "ul", "li", "g", "rect", "text", "line",
    "polyline", "polygon", "circle", "figure", "dialog", "kbd", "label", "strong", "b", "i", "progress", "datalist",
    "option", "select", "output",
}  # fmt: skip


async def test_an_id_is_no_option_of_a_command_to_copy(opened):
    id = "--store=redis://evil.example"
    await opened.queue().enqueue({"n": 1}, queue="mail", id=id)
    shown = texts(await opened.browser().get("/job", params={"tenant": "acme", "queue": "mail", "id": id}))
    assert f"holdfast status --tenant acme --queue mail -- {id}" in shown


async def test_scripts_and_styles_come_from_files_alone(opened):
    await opened.queue().enqueue({"n": 1}, id="a")
    for path in ("/", "/queues", "/jobs", "/job?queue=default&id=a", "/tenants", "/nowhere"):
        page = await opened.browser().get(path)
        assert page.text.count("<script") == page.text.count('<script type="module" src="/static/dashboard.js')
        assert "<style" not in page.text
        assert "style=" not in page.text
        assert "http://" not in page.text
        assert "https://" not in page.text


async def _listed(browser, query=""):
    """The ids that the list of jobs shows, in order."""
    answer = await browser.get(f"/jobs?tenant=acme&fragment=list&{query}")
    assert answer.status_code == 200, answer.text
    return [html.unescape(id) for id in re.findall(r'<a class="row mono"[^>]*>([^<]*)</a>', answer.text)]


async def test_jobs_come_the_latest_first_across_queues_and_by_page():
    async with inline() as (found, queue):
        for n in range(70):
            await queue.enqueue({"n": n}, queue=f"q{n % 3}", id=f"job-{n:03}")
            await queue.advance(seconds=1)
        browser = found.browser()
        first = await browser.get("/jobs?tenant=acme")
        seen = await _listed(browser)
        assert len(seen) == 50
        (cursor,) = re.findall(r'[?&;]cursor=([^"&]*)', _link(first, "Next page"))
        seen += await _listed(browser, f"cursor={cursor}")
        assert seen == [f"job-{n:03}" for n in reversed(range(70))]


async def test_jobs_are_found_by_state_queue_type_id_error_and_time():
    async with inline() as (found, queue):
        for n in range(4):
            await queue.enqueue(works.message("x"), id=f"old-{n}")
        await queue.drain()
        await queue.advance(minutes=40)
        await queue.enqueue(fails.message("no luck"), id="bad")
        await queue.drain()
        await queue.enqueue({"n": 1}, queue="press", id="old", delay=timedelta(hours=1))
        browser = found.browser()
        old = {f"old-{n}" for n in range(4)}
        failed_at = next(iter(await queue.list(state="failed", queue="mail", newest=True))).finished_at
        before = (failed_at - timedelta(minutes=20)).strftime("%Y-%m-%d %H:%M")
        for query, wanted in [
            ("queue=press", {"old"}), ("state=scheduled", {"old"}), ("state=failed", {"bad"}), ("type=fails", {"bad"}),
            ("id=old-2", {"old-2"}), ("id=old-", old), ("id=nothing", set()), ("error=luck", {"bad"}),
            ("error=Permanent", {"bad"}), ("error=Permanent&state=completed", set()), ("since=20m", {"bad", "old"}),
            (f"since={before}", {"bad", "old"}), ("until=20m", old), (f"until={before}&state=completed", old),
            (f"since={before}&state=completed", set()), ("since=1h&until=20m", old), ("since=20m&until=10m", set()),
        ]:  # fmt: skip
            assert set(await _listed(browser, query)) == wanted, query
        # The job with just this id comes first, though others that begin so are later.
        await queue.drain()
        assert await _listed(browser, "id=old") == ["old", *sorted(old, reverse=True)]
        shown = await browser.get("/jobs?tenant=acme&state=failed&since=1h&error=luck")
        assert "holdfast list --newest --tenant acme --state failed --error luck --since 1h" in texts(shown)


def _link(answer, label):
    found = re.search(rf'href="([^"]*)"[^>]*>{label}<', answer.text)
    assert found, answer.text
    return html.unescape(found[1])


@pytest.mark.parametrize(
    "query",
    ["state=nothing", "queue=!!", "id=%00", "cursor=x,y", "type=!", "queue=holdfast:flows", "since=soon", "until=-1"],
)
async def test_a_wrong_filter_is_refused_with_the_reason(opened, query):
    await opened.queue().enqueue({"n": 1}, queue="x")
    answer = await opened.browser().get(f"/jobs?tenant=acme&{query}")
    assert answer.status_code in (400, 404), answer.text


async def test_a_job_shows_what_happened_to_it(opened):
    queue = opened.queue()
    await queue.enqueue(fails.message("no luck"), id="bad")
    await queue.enqueue(works.message("fine"), id="good")
    await _run(queue, 2)
    browser = opened.browser()
    shown = texts(await browser.get("/job?tenant=acme&queue=mail&id=bad"))
    for text in ("failed", "enqueued", "claimed", "Permanent", "no luck", "Replay", "Purge", "1 of 1"):
        assert text in shown, (text, shown)
    assert any(text.startswith("Traceback") for text in shown)
    assert "holdfast enqueue " in " ".join(shown)
    shown = texts(await browser.get("/job?tenant=acme&queue=mail&id=good"))
    assert "Result" in shown
    assert '{ "said": "fine" }' in shown
    assert "Replay" not in shown
    assert (await browser.get("/job?tenant=acme&queue=mail&id=none")).status_code == 404


async def test_a_job_that_waits_says_why(opened):
    queue = opened.queue()
    await queue.enqueue({"n": 1}, queue="mail", id="first")
    await queue.enqueue({"n": 1}, queue="mail", id="waits")
    await queue.pause("mail")
    shown = texts(await opened.browser().get("/job?tenant=acme&queue=mail&id=waits"))
    why = (await queue.explain("waits", queue="mail")).causes
    assert {"paused", "no_worker", "jobs_ahead"} <= {cause.code for cause in why}
    assert all(cause.text in shown for cause in why)


async def test_a_tenant_does_not_learn_how_many_others_wait(guarded):
    for name in ("acme", "one", "two"):
        await guarded.queue(name).enqueue({"n": 1}, queue="mail", id="waits")
    (cause,) = [one for one in (await guarded.queue().explain("waits", queue="mail")).causes if one.count == 2]
    browser = await guarded.logged_in(token("acme"))
    assert cause.text not in texts(await browser.get("/job?queue=mail&id=waits"))
    browser = await guarded.logged_in(operator_token())
    assert cause.text in texts(await browser.get("/job?tenant=acme&queue=mail&id=waits"))


async def test_a_large_payload_is_folded_and_an_unreadable_one_is_named(opened):
    queue = opened.queue()
    await queue.enqueue({"rows": list(range(5000))}, id="large")
    answer = await opened.browser().get("/job?tenant=acme&queue=default&id=large")
    assert "Show all" in texts(answer)
    assert "4999" in answer.text


async def test_cancel_replay_and_purge_do_what_they_say(opened):
    queue = opened.queue()
    await queue.enqueue(fails.message("no luck"), id="bad")
    await _run(queue, 1)
    await queue.enqueue(works.message("x"), id="waits")
    browser, at = opened.browser(), "?tenant=acme&queue=mail&id="
    answer = await browser.act(f"/job/replay{at}bad", page=f"/job{at}bad")
    assert answer.headers["location"] == f"/job{at}bad"
    assert (await queue.get("bad", queue="mail")).state == "ready"
    shown = await browser.get(answer.headers["location"])
    assert "Replayed bad: it is ready again, with attempts from 0." in texts(shown)
    assert "Replayed" not in (await browser.get(answer.headers["location"])).text
    await browser.act(f"/job/cancel{at}waits", page=f"/job{at}waits")
    assert (await queue.get("waits", queue="mail")).state == "canceled"
    answer = await browser.act(f"/job/purge{at}waits", page=f"/job{at}waits")
    assert await queue.get("waits", queue="mail") is None
    assert answer.headers["location"].startswith("/jobs")


async def test_a_job_shows_who_acted(guarded):
    queue = guarded.queue()
    await queue.enqueue(fails.message("no luck"), id="bad")
    await _run(queue, 1)
    browser, at = await guarded.logged_in(token(subject="ann <b>")), "?queue=mail&id=bad"
    await browser.act(f"/job/replay{at}", page=f"/job{at}")
    await browser.act(f"/job/cancel{at}", page=f"/job{at}")
    shown = texts(await browser.get(f"/job{at}"))
    assert shown.count("by ann <b>") == 2
    await browser.act(f"/job/purge{at}", page=f"/job{at}")
    acted = [(event.kind, event.data.get("by")) async for event in queue.events() if "by" in event.data]
    assert acted == [("replayed", "ann <b>"), ("canceled", "ann <b>"), ("purged", "ann <b>")]


async def test_every_page_fragment_and_action_keeps_to_the_tenant_of_its_token(guarded):
    """Of another tenant's jobs nothing is shown, counted or changed, whatever is asked."""
    await guarded.queue("rival").enqueue({"text": "secret-payload"}, queue="secret-queue", id="secret-id")
    await guarded.queue("acme").enqueue({"n": 1}, queue="mail", id="own")
    browser = await guarded.logged_in(token("acme"))
    form = await browser.form_token()
    asked = "queue=secret-queue&id=secret-id"
    for page in guarded.dashboard.pages.values():
        for query in ("", "tenant=rival", asked, f"tenant=rival&{asked}", "state=ready"):
            for part in ("", *(f"&fragment={name}" for name in page.fragments), "&page=/queues"):
                answer = await browser.get(f"{page.path}?{query}{part}")
                assert "secret-payload" not in answer.text
                if asked not in query:
                    assert "secret-" not in answer.text, (page.path, query, part)
                assert answer.status_code in (200, 400, 404), (page.path, query, answer.status_code)
    for page in guarded.dashboard.pages.values():
        for action in page.actions:
            for query in (asked, f"tenant=rival&{asked}"):
                fields = {"form_token": form, "queue": "secret-queue", "id": "secret-id", "name": "secret-id"}
                await browser.send_form(f"{action.path}?{query}", fields)
    (job,) = await guarded.store.get([JobKey("rival", "secret-queue", "secret-id")])
    assert job.state == "ready"
    (stats,) = await guarded.store.stats("rival", ["secret-queue"])
    assert not stats.paused


async def test_every_page_keeps_to_the_queues_of_its_token(guarded):
    await guarded.queue().enqueue({"text": "secret-payload"}, queue="secret-queue", id="secret-id")
    await guarded.queue().enqueue({"n": 1}, queue="mail", id="own")
    browser = await guarded.logged_in(token("acme", queues=["mail"]))
    for page in guarded.dashboard.pages.values():
        for query in ("", "queue=mail&id=own", "id=secret-id", "queue=secret-queue&id=secret-id"):
            for part in ("", *(f"&fragment={name}" for name in page.fragments)):
                answer = await browser.get(f"{page.path}?{query}{part}")
                assert "secret-payload" not in answer.text, (page.path, query)
                if "secret-" not in query:
                    assert "secret-" not in answer.text, (page.path, query)


async def test_every_action_of_every_page_asks_for_its_scope_and_its_form(guarded):
    reader = await guarded.logged_in(token(scopes=("read",)))
    admin = await guarded.logged_in(token())
    form = await reader.form_token()
    for page in guarded.dashboard.pages.values():
        for action in page.actions:
            assert (await reader.send_form(action.path, {"form_token": form})).status_code in (403, 404), action.path
            assert (await admin.send_form(action.path, {"form_token": "no"})).status_code in (403, 404), action.path
            assert (await admin.get(action.path)).status_code == 405


async def test_a_page_reads_a_bounded_amount(opened, monkeypatch):
    """With many queues and jobs, a page asks the store a few times for a page each."""
    queue = opened.queue()
    for n in range(150):
        await queue.enqueue({"n": 1}, queue=f"q{n:03}", id=f"{uuid.uuid4()}")
    calls = []

    def counted(name):
        call = getattr(opened.store, name)

        async def wrapped(*args, **options):
            calls.append(name)
            return await call(*args, **options)

        monkeypatch.setattr(opened.store, name, wrapped)

    for name in ("list", "queue_page", "stats", "get", "events", "tenant_page", "worker_page"):
        counted(name)
    for path in ("/", "/queues", "/jobs", "/jobs?type=none", "/tenants"):
        calls.clear()
        assert (await opened.browser().get(path, params={"tenant": "acme"})).status_code == 200
        assert len(calls) <= 24, (path, calls)


async def test_of_a_long_log_a_jobs_page_reads_little_and_shows_its_record(opened, monkeypatch):
    monkeypatch.setattr("holdfast.dashboard.histories.SCAN_LIMIT", 10)
    queue = opened.queue()
    await queue.enqueue_many(works.message("x").options(id=f"job-{n:03}") for n in range(100))
    browser, reads = opened.browser(), []
    events = opened.store.events

    async def counted(*args):
        reads.append(args)
        return await events(*args)

    monkeypatch.setattr(opened.store, "events", counted)
    early = texts(await browser.get("/job?tenant=acme&queue=mail&id=job-003"))
    assert not any("From the record alone" in text for text in early)
    for _ in range(3):
        late = texts(await browser.get("/job?tenant=acme&queue=mail&id=job-099"))
        assert any("From the record alone" in text for text in late)
        assert "enqueued" in late
    assert len(reads) == 3


async def test_spans_follow_the_events_of_a_job():
    def event(kind, at, **data):
        return Event(kind, "acme", "mail", "a", "x", at, 1, 1, "w", data)

    found = spans(
        [
            event("enqueued", 0, visible_at=100), event("claimed", 150), event("extended", 160),
            event("retried", 200, visible_at=500), event("claimed", 600), event("failed", 700),
            event("replayed", 900, visible_at=900), event("claimed", 950),
        ],
        1000,
    )  # fmt: skip
    assert [(one.state, one.start, one.end) for one in found] == [
        ("scheduled", 0, 100), ("ready", 100, 150), ("leased", 150, 200), ("retrying", 200, 500), ("ready", 500, 600),
        ("leased", 600, 700), ("ready", 900, 950), ("leased", 950, 1000),
    ]  # fmt: skip
