"""The pages of schedules, on the raw requests."""

import itertools
import re
from datetime import datetime, timedelta
from html import unescape

import pytest

from holdfast.core.job import ClaimRequest
from holdfast.core.names import SCHEDULES
from holdfast.core.schedule import Timing
from holdfast.schedules.schedules import run_now, schedule_page, scheduling
from holdfast.schedules.ticks import local, next_tick, next_ticks
from tests.dashboard.inline import fail, inline
from tests.dashboard.support import by_token, operator_token, parsed, texts, token

pytestmark = pytest.mark.asyncio

AT = "?tenant=acme"
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "a b&c=d#e", "\u202egnp.exe")


async def test_the_list_shows_what_runs_next_and_how_the_last_run_ended():
    async with inline() as (found, queue):
        await queue.schedule("late", {"n": 1}, every=timedelta(hours=2), queue="mail")
        await queue.schedule("soon", {"n": 2}, every=timedelta(hours=1), queue="mail")
        shown = texts(await found.browser().get(f"/schedules{AT}"))
        assert shown.index("soon") < shown.index("late")
        assert "every 1 h" in shown
        await queue.advance(hours=1)
        await fail(queue, "mail")
        answer = await found.browser().get(f"/schedules{AT}")
        assert "failed" in texts(answer)
        (link,) = re.findall(r'<a href="(/job\?[^"]*)"', answer.text)
        assert "soon%40" in unescape(link)


async def test_a_schedule_shows_its_next_five_ticks_in_its_time_zone():
    async with inline() as (found, queue):
        made = await queue.schedule("nightly", 1, cron="30 2 * * *", timezone="Asia/Kolkata", queue="mail")
        answer = await found.browser().get(f"/schedule{AT}&name=nightly")
        shown = texts(answer)
        assert {"30 2 * * *", "Asia/Kolkata"} <= set(shown)
        ticks = [text for text in shown if re.fullmatch(r"\w{3} \d\d \w{3} \d{4} 02:30:00", text)]
        assert len(ticks) == 5
        assert shown.count("+05:30") == 5
        days = [datetime.strptime(text, "%a %d %b %Y %H:%M:%S") for text in ticks]  # noqa: DTZ007
        assert [after - before for before, after in itertools.pairwise(days)] == [timedelta(days=1)] * 4
        assert made.next_at.isoformat(timespec="milliseconds").replace("+00:00", "Z") in answer.text


async def test_the_hours_of_a_time_zone_change_with_its_clocks():
    timing = Timing("30 12 * * *", None, "Europe/Berlin")
    start = round(datetime(2026, 10, 23, tzinfo=local(timing, 0).tzinfo).timestamp() * 1000)
    ticks = next_ticks(timing, 0, start, 4)
    assert [f"{local(timing, tick):%d %H:%M %z}" for tick in ticks] == [
        "23 12:30 +0200", "24 12:30 +0200", "25 12:30 +0100", "26 12:30 +0100",
    ]  # fmt: skip
    every = Timing(None, 60_000)
    assert next_ticks(every, 5_000, 70_000, 3) == [125_000, 185_000, 245_000]
    assert next_tick(every, 5_000, 70_000) == 125_000


async def test_run_now_enqueues_the_job_and_leaves_the_ticks_as_they_are():
    async with inline() as (found, queue):
        made = await queue.schedule("it", {"n": 7}, every=3600, queue="mail", priority=8)
        await queue.advance(minutes=10)
        browser = found.browser()
        answer = await browser.act(f"/schedules/run{AT}", {"name": "it"}, f"/schedules{AT}")
        (job,) = await queue.list(queue="mail")
        assert (job.payload, job.priority, job.state) == ({"n": 7}, 8, "ready")
        assert job.id.startswith("it@")
        assert answer.headers["location"].startswith("/job?tenant=acme&queue=mail&id=it%40")
        (after,) = await queue.schedules()
        assert after.next_at == made.next_at
        await browser.act(f"/schedules/run{AT}", {"name": "it"}, f"/schedules{AT}")
        assert len(await queue.list(queue="mail")) == 1  # The clock is frozen: it is the same run.
        await queue.advance(seconds=1)
        await browser.act(f"/schedules/run{AT}", {"name": "it"}, f"/schedules{AT}")
        assert len(await queue.list(queue="mail")) == 2


async def test_a_schedule_is_removed_after_a_question_that_needs_no_script():
    async with inline() as (found, queue):
        await queue.schedule("it", 1, every=3600)
        browser = found.browser()
        page = await browser.get(f"/schedule{AT}&name=it")
        assert "<details" in page.text
        assert "Remove this schedule? The jobs that it has enqueued stay." in texts(page)
        assert len(await queue.schedules()) == 1
        answer = await browser.act(f"/schedules/remove{AT}", {"name": "it"}, f"/schedules{AT}")
        assert await queue.schedules() == []
        assert answer.headers["location"] == "/schedules?tenant=acme"
        shown = texts(await browser.get(answer.headers["location"]))
        assert "Removed it. Its jobs stay." in shown
        assert "No schedules yet" in shown
        assert any("holdfast schedule add" in text for text in shown)
        assert (await browser.get(f"/schedule{AT}&name=it")).status_code == 404


async def test_a_stopped_schedule_says_why_and_starts_again():
    async with inline() as (found, queue):
        await queue.schedule("it", 1, every=60)
        await queue.store.shift_clock(60_000)
        await fail(queue, SCHEDULES)
        browser = found.browser()
        for path in (f"/schedules{AT}", f"/schedules{AT}&state=failed", f"/schedule{AT}&name=it"):
            shown = " ".join(texts(await browser.get(path)))
            assert "Gone: the <b>disk</b> is full" in shown, path
            assert "Start again" in shown
        answer = await browser.act(f"/schedules/restart{AT}", {"name": "it"}, f"/schedules{AT}")
        assert answer.status_code == 303
        (one,) = await queue.schedules()
        assert one.state == "ready"
        assert "Stopped" not in texts(await browser.get(f"/schedules{AT}"))


async def test_a_paused_queue_and_a_late_tick_are_named():
    async with inline() as (found, queue):
        await queue.schedule("it", 1, every=60, queue="mail")
        await queue.pause("mail")
        browser = found.browser()
        assert "queue paused" in texts(await browser.get(f"/schedules{AT}"))
        assert "Its queue is paused." in texts(await browser.get(f"/schedule{AT}&name=it"))
        await queue.store.shift_clock(120_000)
        assert "late" in texts(await browser.get(f"/schedules{AT}"))
        shown = texts(await browser.get(f"/schedule{AT}&name=it"))
        assert "No process that does maintenance has fired it." in shown
        await queue.enqueue(1, queue="other")
        await queue.set_tenant(max_waiting=1)
        shown = " ".join(texts(await browser.get(f"/schedule{AT}&name=it")))
        assert "No process" not in shown
        await queue.pause(SCHEDULES)
        assert "Paused." in texts(await browser.get(f"/schedules{AT}"))


async def test_the_list_is_bounded_and_pages():
    async with inline() as (found, queue):
        for n in range(60):
            await queue.schedule(f"s{n:02}", n, every=3600 + n)
        browser = found.browser()
        first = await browser.get(f"/schedules{AT}")
        names = [text for text in texts(first) if re.fullmatch(r"s\d\d", text)]
        assert len(names) == 50
        (following,) = re.findall(r'href="([^"]*)" rel="next"', first.text)
        names += [text for text in texts(await browser.get(unescape(following))) if re.fullmatch(r"s\d\d", text)]
        assert names == [f"s{n:02}" for n in range(60)]


async def test_hostile_names_stay_text():
    async with inline() as (found, queue):
        for name in HOSTILE:
            await queue.schedule(name, {"text": name}, every=3600, queue="mail")
        browser = found.browser()
        pages = [await browser.get(f"/schedules{AT}")]
        for name in HOSTILE:
            pages.append(await browser.get("/schedule", params={"tenant": "acme", "name": name}))
            await browser.act(f"/schedules/run{AT}", {"name": name}, f"/schedules{AT}")
            assert any(name in text for text in texts(pages[-1]))
        for page in pages:
            found_tags = parsed(page)
            assert "img" not in found_tags.tags
            assert found_tags.tags.count("script") == 1
            for name, value in found_tags.attributes:
                assert not name.startswith("on")
                if name in ("href", "formaction", "action"):
                    assert value.startswith(("/", "#"))
        assert len(await queue.list(queue="mail")) == len(HOSTILE)


@pytest.mark.parametrize(
    "scopes, run, remove",
    [(("read", "admin"), 403, 303), (("produce", "admin"), 303, 303), (("read", "produce"), 0, 0)],
)
async def test_each_action_needs_its_scope(scopes, run, remove):
    async with inline(by_token) as (found, queue):
        await queue.schedule("it", 1, every=3600, queue="mail")
        browser = await found.logged_in(token(scopes=scopes))
        if not run:
            for path in ("/schedules", "/schedules?fragment=table", "/schedule?name=it", "/live?page=/schedules"):
                assert (await browser.get(path)).status_code == 403
            assert "Schedules" not in texts(await browser.get("/queues"))
            form = {"form_token": await browser.form_token(), "name": "it"}
            assert (await browser.send_form("/schedules/run", form)).status_code == 403
            return
        assert ("Run now" in texts(await browser.get("/schedules"))) == (run == 303)
        assert (await browser.act("/schedules/run", {"name": "it"}, "/schedules")).status_code == run
        assert (await browser.act("/schedules/remove", {"name": "it"}, "/schedules")).status_code == remove


async def test_another_tenants_schedule_and_one_of_another_queue_do_not_exist():
    async with inline(by_token) as (found, queue):
        rival = found.queue("rival")
        await rival.schedule("secret-one", {"text": "secret"}, every=3600, queue="mail")
        await queue.schedule("secret-two", {"text": "secret"}, every=60, queue="press")
        await queue.schedule("own", 1, every=3600, queue="mail")
        await queue.store.shift_clock(60_000)
        await fail(queue, SCHEDULES)
        browser = await found.logged_in(token(queues=["mail"]))
        for path in (
            "/schedules", "/schedules?state=failed", "/schedules?fragment=table", "/schedule?name=own",
            "/schedule?name=own&fragment=schedule",
        ):  # fmt: skip
            answer = await browser.get(path)
            assert (answer.status_code, "secret" in answer.text) == (200, False)
        for name in ("secret-one", "secret-two"):
            for part in ("", "&fragment=schedule"):
                answer = await browser.get(f"/schedule?name={name}{part}")
                assert "text" not in texts(answer) if answer.status_code == 200 else answer.status_code == 404
            for action in ("run", "restart", "remove"):
                answer = await browser.act(f"/schedules/{action}", {"name": name}, "/schedules")
                assert answer.status_code == 404
                answer = await browser.act(f"/schedules/{action}?tenant=rival", {"name": name}, "/schedules")
                assert answer.status_code == 404
        assert len(await rival.schedules()) == 1
        assert len(await queue.schedules()) == 2
        assert await rival.list(queue="mail") == []


async def test_an_operator_sees_the_schedules_of_every_tenant():
    async with inline(by_token) as (found, queue):
        await queue.schedule("it", 1, every=3600)
        browser = await found.logged_in(operator_token(("operator",)))
        page = await browser.get(f"/schedules{AT}")
        assert "it" in texts(page)
        assert "Run now" not in texts(page)
        answer = await browser.act(f"/schedules/run{AT}", {"name": "it"}, f"/schedules{AT}")
        assert answer.status_code == 403


async def test_actions_are_recorded_with_who_did_them(caplog):
    async with inline(by_token) as (found, queue):
        await queue.schedule("it", 1, every=3600, queue="mail")
        browser = await found.logged_in(token(subject="ann"))
        caplog.set_level("INFO", "holdfast.audit")
        await browser.act("/schedules/run", {"name": "it"}, "/schedules")
        await browser.act("/schedules/remove", {"name": "it"}, "/schedules")
        lines = [
            record.getMessage() + str(record.__dict__) for record in caplog.records if record.name == "holdfast.audit"
        ]
        assert len(lines) == 2
        for fact in ("schedule.run", "ann", "acme", "name=it", "it@", "mail", "dashboard"):
            assert fact in lines[0], fact
        assert "schedule.remove" in lines[1]


async def test_a_page_of_schedules_and_run_now_keep_to_the_store():
    async with inline() as (found, queue):
        await queue.schedule("it", {"n": 1}, every=60, queue="mail")
        page = await schedule_page(found.store, "acme", limit=10)
        assert ([one.name for one in page.schedules], page.cursor) == (["it"], None)
        assert (await schedule_page(found.store, "rival")).schedules == []
        one = await scheduling(found.store).get_schedule("acme", "it")
        key = await run_now(found.store, "acme", one)
        (held,) = (await found.store.claim(ClaimRequest("acme", ("mail",), 1, 30_000, "w"))).jobs
        assert held.key == key
