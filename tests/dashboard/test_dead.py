"""Dead letters: groups, plans, and runs in steps."""

import asyncio
import re

import pytest
from msgspec.structs import replace

from holdfast.core.job import JobKey
from holdfast.dashboard.pages import dead_run, grouping
from tests.dashboard.making import HOSTILE, check_plain, chrome, fail, fits
from tests.dashboard.support import ALL, field, parsed, served, texts, token

pytestmark = pytest.mark.asyncio

FIELDS = ("until", "total", "more", "done", "refused", "at", "error")


async def _groups(browser, **query):
    return await browser.get("/dead", params=query)


def _fingerprint(answer):
    return re.findall(r"/dead/group\?[^\"]*error=(\w+)", answer.text)[0]


async def _states(found, queue, ids, tenant="acme"):
    jobs = await found.store.get([JobKey(tenant, queue, id) for id in ids])
    return [None if job is None else str(job.state) for job in jobs]


async def _run(browser, do, query):
    """Press the buttons of a run until it is over: the answers of the steps, and the last page."""
    page, steps = await browser.get("/dead/run", params={"do": do, **query}), []
    while "data-steps" in page.text:
        form = {name: field(page, name) for name in FIELDS if f'name="{name}"' in page.text}
        form |= {"form_token": field(page, "form_token")}
        form |= {"queue": field(page, "queue")} if 'name="queue" value' in page.text else {}
        steps.append(await browser.send_form(f"/dead/{do}", form))
        assert steps[-1].status_code == 303, steps[-1].text
        page = await browser.get(steps[-1].headers["location"])
    return steps, page


async def test_dead_letters_are_grouped_by_their_error_and_filtered_by_queue(opened):
    await fail(opened.store, ["a1", "a2", "a3"], "no luck 1")
    await fail(opened.store, ["a4"], "no luck 2", queue="press")
    await fail(opened.store, ["b1"], "other", error="Bang", queue="press")
    await fail(opened.store, ["z1"], "of a rival", tenant="rival")
    browser = opened.browser()
    shown = texts(await _groups(browser, tenant="acme"))
    assert shown.index("Boom") < shown.index("Bang")
    assert shown[shown.index("no luck 2") + 1 :][:2] == ["4", "mail, press"]
    assert "of a rival" not in " ".join(shown)
    assert "5 dead letters" in " ".join(shown)
    shown = texts(await _groups(browser, tenant="acme", queue="press"))
    assert shown[shown.index("no luck 2") + 1 :][:2] == ["1", "press"]
    fingerprint = _fingerprint(await _groups(browser, tenant="acme"))
    shown = texts(await browser.get("/dead/group", params={"tenant": "acme", "error": fingerprint}))
    assert {"a1", "a2", "a3", "a4", "Boom"} <= set(shown)
    assert "b1" not in shown


async def test_a_look_is_bounded_and_the_next_one_goes_on_behind_it(opened, monkeypatch):
    monkeypatch.setattr(grouping, "LOOK", 10)
    monkeypatch.setattr(grouping, "READ", 5)
    await fail(opened.store, [f"a{n}" for n in range(12)])
    await fail(opened.store, [f"b{n}" for n in range(12)], queue="press")
    reads = []
    list_jobs = opened.store.list

    async def counted(query):
        reads.append(query.limit)
        return await list_jobs(query)

    monkeypatch.setattr(opened.store, "list", counted)
    browser, at, looked = opened.browser(), "", []
    while at is not None:
        page = await _groups(browser, tenant="acme", cursor=at)
        shown = " ".join(texts(page))
        looked.append(int(re.search(r"in (\d+) dead letters", shown)[1]))
        following = re.search(r'cursor=([^"&]+)[^"]*" rel="next"', page.text)
        at = following and following[1].replace("%2C", ",").replace("%3A", ":").replace("%2F", "/")
        if at is not None:
            assert "about 24" in shown
    assert sum(looked) == 24
    assert max(looked) <= 14
    assert sum(reads) <= 24 + 5 * len(looked)


async def test_others_get_a_turn_between_the_reads_of_a_plan(opened, monkeypatch):
    monkeypatch.setattr(grouping, "READ", 2)
    await fail(opened.store, [f"job-{n}" for n in range(9)])
    listed, turns, seen = opened.store.list, 0, []

    async def counted(query):
        seen.append(turns)
        return await listed(query)

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(opened.store, "list", counted)
    busy = asyncio.create_task(other())
    await opened.browser().get("/dead/run?do=replay&tenant=acme")
    busy.cancel()
    assert len(seen) == len(set(seen)) == 5


async def test_a_rare_error_far_behind_is_found_and_replayed(opened, monkeypatch):
    """A look that ends before the first match does not say that there is none."""
    await fail(opened.store, [f"a{n}" for n in range(20)])
    await fail(opened.store, ["rare"], error="Bang", message="far behind")
    monkeypatch.setattr(grouping, "READ", 5)
    monkeypatch.setattr(grouping, "LOOK_S", -1)
    monkeypatch.setattr(opened.store, "list", _scanning(opened.store.list))
    browser, path = opened.browser(), "/dead/group?tenant=acme&error=Bang"
    for _ in range(10):
        page = await browser.get(path)
        if "rare" in texts(page):
            break
        assert "None found so far" in texts(page)
        path = re.search(r'href="([^"]+)" rel="next"', page.text)[1].replace("&amp;", "&")
    assert "rare" in texts(page)
    monkeypatch.setattr(dead_run, "PLAN_S", -1)
    plan = await browser.get("/dead/run?tenant=acme&do=replay&error=Bang")
    assert "more than 0 jobs" in texts(plan)
    monkeypatch.setattr(dead_run, "STEP_S", -1)
    _, page = await _run(browser, "replay", {"tenant": "acme", "error": "Bang"})
    assert "All replayed" in texts(page)
    assert await _states(opened, "mail", ["rare", "a0"]) == ["ready", "failed"]


def _scanning(list_jobs):
    """A store that filters while paging: a page may be empty and still have a cursor."""

    async def scan(query):
        page = await list_jobs(replace(query, error=None))
        jobs = [job for job in page.jobs if query.matches(job, page.now)]
        return replace(page, jobs=jobs)

    return scan


async def test_a_plan_says_what_would_be_replayed_and_changes_nothing(opened):
    await fail(opened.store, [f"a{n}" for n in range(30)], "no luck")
    await fail(opened.store, ["other"], error="Bang")
    browser = opened.browser()
    error = _fingerprint(await _groups(browser, tenant="acme"))
    for do in ("replay", "purge"):
        page = await browser.get("/dead/run", params={"tenant": "acme", "do": do, "error": error})
        shown = texts(page)
        assert "30 jobs" in shown
        assert {"a0", "a19"} <= set(shown)
        assert not {"a20", "other"} & set(shown)
        assert f"holdfast dlq {do} --tenant acme --error {error}" in shown
    assert await _states(opened, "mail", [f"a{n}" for n in range(30)]) == ["failed"] * 30


@pytest.mark.parametrize("do, did, after", [("replay", "replayed", "ready"), ("purge", "purged", None)])
async def test_a_run_goes_in_steps_and_each_is_recorded(opened, monkeypatch, caplog, do, did, after):
    monkeypatch.setattr(grouping, "READ", 5)
    monkeypatch.setattr(dead_run, "STEP_S", -1)
    mail, press = [f"a{n}" for n in range(12)], [f"b{n}" for n in range(3)]
    await fail(opened.store, mail)
    await fail(opened.store, press, queue="press")
    await fail(opened.store, ["other"], error="Bang")
    browser = opened.browser()
    query = {"tenant": "acme", "error": _fingerprint(await _groups(browser, tenant="acme"))}
    caplog.set_level("INFO", "holdfast.audit")
    steps, page = await _run(browser, do, query)
    assert len(steps) == 4
    said = [re.search(r"done=(\d+)", step.headers["location"])[1] for step in steps]
    assert said == ["5", "10", "12", "15"]
    assert f"All {did}" in texts(page)
    assert await _states(opened, "mail", mail) == [after] * 12
    assert await _states(opened, "press", press) == [after] * 3
    assert await _states(opened, "mail", ["other"]) == ["failed"]
    lines = [record.__dict__ for record in caplog.records if record.name == "holdfast.audit"]
    assert len(lines) == 4
    text = str(lines[0])
    for fact in (f"dead_letters.{do}", "acme", query["error"], "count=5", "done", "dashboard"):
        assert fact in text


async def test_a_run_leaves_alone_what_fails_after_its_plan(opened, monkeypatch):
    monkeypatch.setattr(grouping, "READ", 2)
    monkeypatch.setattr(dead_run, "STEP_S", -1)
    await fail(opened.store, ["a1", "a2", "a3"])
    browser = opened.browser()
    plan = await browser.get("/dead/run", params={"tenant": "acme", "do": "purge", "queue": "mail"})
    until = int(field(plan, "until"))
    while await opened.store.now() <= until:
        pass
    await fail(opened.store, ["late"])
    form = {name: field(plan, name) for name in ("until", "total", "queue", "form_token")}
    location = (await browser.send_form("/dead/purge", form)).headers["location"]
    at = parsed(await browser.get(location))
    assert "Continue" in at.texts
    form["at"] = field(await browser.get(location), "at")
    await browser.send_form("/dead/purge", form)
    assert await _states(opened, "mail", ["a1", "a2", "a3", "late"]) == [None, None, None, "failed"]


async def test_a_replay_stops_at_the_quota_and_says_so(opened):
    await fail(opened.store, [f"a{n}" for n in range(8)])
    await opened.queue().set_tenant(max_waiting=3)
    browser = opened.browser()
    _, page = await _run(browser, "replay", {"tenant": "acme"})
    shown = " ".join(texts(page))
    assert "Stopped at the tenant's quota" in shown
    assert "5 jobs could not be replayed" in shown
    assert (await _states(opened, "mail", [f"a{n}" for n in range(8)])).count("ready") == 3


async def test_one_dead_letter_is_replayed_or_purged(opened):
    await fail(opened.store, ["a1", "a2", "a3"])
    browser = opened.browser()
    asked = "tenant=acme&queue=mail&id="
    page = f"/dead/group?tenant=acme&error={_fingerprint(await _groups(browser, tenant='acme'))}"
    assert (await browser.act(f"/dead/replay-one?{asked}a1", {}, page)).status_code == 303
    assert (await browser.act(f"/dead/purge-one?{asked}a2", {}, page)).status_code == 303
    assert await _states(opened, "mail", ["a1", "a2", "a3"]) == ["ready", None, "failed"]
    assert (await browser.act(f"/dead/replay-one?{asked}a1", {}, page)).status_code == 409


@pytest.mark.parametrize("scopes, may", [(("read",), False), (("read", "produce"), False), (ALL, True)])
async def test_acting_needs_the_scope(guarded, scopes, may):
    await fail(guarded.store, ["a1"])
    browser = await guarded.logged_in(token(scopes=scopes))
    page = await _groups(browser)
    group = await browser.get("/dead/group", params={"error": _fingerprint(page)})
    assert ("Replay all…" in texts(page)) == may
    assert ("Replay" in texts(group)) == may
    assert (await browser.get("/dead/run?do=purge")).status_code == (200 if may else 403)
    if may:
        return
    for path in (
        "/dead/replay",
        "/dead/purge",
        "/dead/replay-one?queue=mail&id=a1",
        "/dead/purge-one?queue=mail&id=a1",
    ):
        answer = await browser.act(path, {"until": "9" * 13, "total": "1"}, "/dead")
        assert answer.status_code == 403, path
    assert await _states(guarded, "mail", ["a1"]) == ["failed"]


async def test_a_token_neither_sees_nor_touches_what_is_foreign(guarded):
    await fail(guarded.store, ["a1"])
    await fail(guarded.store, ["s1"], "a secret", queue="secret")
    await fail(guarded.store, ["z1"], "a secret", tenant="rival")
    browser = await guarded.logged_in(token(queues=["mail"]))
    for path in ("/dead", "/dead?fragment=groups", "/dead/group?error=secret", "/dead/group?error=&fragment=group",
                 "/dead/run?do=replay"):  # fmt: skip
        answer = await browser.get(path)
        assert (answer.status_code, "a secret" in answer.text, "s1" in parsed(answer).texts) == (200, False, False)
    for path in ("/dead?queue=secret", "/dead/group?queue=secret", "/dead/run?do=purge&queue=secret",
                 "/dead?tenant=rival", "/dead/group?tenant=rival&fragment=group", "/live?page=/dead&tenant=rival",
                 "/dead/run?do=purge&tenant=rival"):  # fmt: skip
        assert (await browser.get(path)).status_code == 404, path
    form = {"until": "9" * 13, "total": "9"}
    assert (await browser.act("/dead/purge", form, "/dead")).status_code == 303
    assert (await browser.act("/dead/purge", {**form, "queue": "secret"}, "/dead")).status_code == 404
    assert (await browser.act("/dead/purge?tenant=rival", form, "/dead")).status_code == 404
    assert (await browser.act("/dead/purge-one?queue=secret&id=s1", {}, "/dead")).status_code == 404
    # A place that was made up begins behind what the token may see, and shows nothing else.
    await fail(guarded.store, ["a2"])
    assert (await browser.act("/dead/purge", {**form, "at": ",secret,"}, "/dead")).status_code == 303
    assert await _states(guarded, "secret", ["s1"]) == ["failed"]
    assert await _states(guarded, "mail", ["a1", "a2"]) == [None, "failed"]
    assert await _states(guarded, "mail", ["z1"], "rival") == ["failed"]


@pytest.mark.parametrize(
    "wrong", [{"until": ""}, {"until": "soon"}, {"total": "-1"}, {"done": "9" * 5000}, {"more": "٣"}]
)
async def test_a_form_that_was_changed_is_refused(opened, wrong):
    await fail(opened.store, ["a1"])
    form = {"until": "9" * 13, "total": "1", **wrong}
    assert (await opened.browser().act("/dead/purge?tenant=acme", form, "/dead?tenant=acme")).status_code == 400
    assert await _states(opened, "mail", ["a1"]) == ["failed"]


async def test_hostile_errors_stay_text(opened):
    for n, text in enumerate(HOSTILE):
        await fail(opened.store, [text[:150]], text, error=f"{text[:40]}{chr(97 + n)}")
    browser = opened.browser()
    page = await _groups(browser, tenant="acme")
    shown = check_plain(page)
    check_plain(await _groups(browser, tenant="acme", fragment="groups"))
    for error in re.findall(r"/dead/group\?[^\"]*error=(\w+)", page.text):
        query = {"tenant": "acme", "error": error}
        shown += check_plain(await browser.get("/dead/group", params=query))
        check_plain(await browser.get("/dead/group", params={**query, "fragment": "group"}))
        shown += check_plain(await browser.get("/dead/run", params={**query, "do": "replay"}))
    for text in HOSTILE:
        assert text in shown
        check_plain(await browser.get("/dead/group", params={"tenant": "acme", "error": text}))
        check_plain(await browser.get("/dead/run", params={"tenant": "acme", "do": "purge", "error": text}))


async def test_a_person_replays_a_group(opened, tmp_path, monkeypatch):
    """With a script and without one: what would be done, then the steps, then the end."""
    monkeypatch.setattr(grouping, "READ", 4)
    monkeypatch.setattr(dead_run, "STEP_S", -1)
    await opened.queue().enqueue({"n": 1}, queue="mail", id="waits")
    async with served(opened) as base:
        for script in (True, False):
            ids, queue = [f"{script}-{n}" for n in range(10)], f"press-{script}"
            await fail(opened.store, ids, f"no luck with {script}", queue=queue)
            async with chrome(base, script=script, size="desk" if script else "phone") as page:
                await page.goto("/dead?tenant=acme")
                await page.get_by_role("link", name="Boom").first.click()
                assert await fits(page)
                await page.get_by_role("link", name="Replay…").click()
                assert await page.get_by_text("Dry run: nothing has been replayed yet").is_visible()
                assert await _states(opened, queue, ids) == ["failed"] * 10
                address = page.url
                await page.get_by_role("button", name="Replay", exact=True).click()
                while not script and await page.get_by_role("button", name="Continue").is_visible():
                    await page.get_by_role("button", name="Continue").click()
                await page.get_by_text("All replayed").wait_for()
                assert await _states(opened, queue, ids) == ["ready"] * 10
                if script:
                    # An address alone starts nothing, whatever it says.
                    await fail(opened.store, ["again"], queue="late")
                    await page.goto(f"{address}&until=9999999999999&total=1&at=,late,")
                    assert await page.get_by_role("button", name="Continue").is_visible()
                    assert await _states(opened, "late", ["again"]) == ["failed"]


async def test_a_new_failure_appears_by_itself(opened):
    async with served(opened) as base, chrome(base) as page:
        await page.goto("/dead?tenant=acme")
        assert await page.get_by_text("No dead letters").is_visible()
        await page.locator("#status.on").wait_for()
        await fail(opened.store, ["a1"], "it just happened")
        await page.get_by_text("it just happened").wait_for()
