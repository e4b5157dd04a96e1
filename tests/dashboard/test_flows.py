"""The pages of flows, on the raw requests."""

import re
from html import unescape

import pytest

from holdfast import Flow, Permanent, job
from holdfast.core.names import FLOWS
from holdfast.dashboard.pages.flow import concerns
from holdfast.store import Hint, Signal
from tests.dashboard.inline import inline
from tests.dashboard.support import by_token, parsed, texts, token

pytestmark = pytest.mark.asyncio

AT = "?tenant=acme"


@job(queue="mail")
async def works(text: str = "") -> str:
    return text


@job(queue="mail", max_attempts=1)
async def fails(text: str = "") -> str:
    raise Permanent(f"no luck <b>{text}</b>")


def report(id, last=works, middle=2):
    flow = Flow("report", id)
    first = flow.add(works.message("a"), name="first")
    parts = [flow.add(works.message(str(n)), name=f"part-{n}", after=[first]) for n in range(middle)]
    flow.add(last.message("z"), name="last", after=parts)
    return flow


def held(*names):
    """A flow whose first step waits for an hour."""
    flow = Flow("held", "held")
    first = flow.add(works.message("a"), name="first", delay=3600)
    for name in names:
        flow.add(works.message("b"), name=name, after=[first])
    return flow


async def test_the_list_shows_each_flow_and_how_far_it_is():
    async with inline() as (found, queue):
        await queue.start(report("good"))
        await queue.start(report("bad", last=fails))
        await queue.start(held("second"))
        await queue.drain()
        answer = await found.browser().get(f"/flows{AT}")
        shown = texts(answer)
        for text in ("good", "bad", "held", "4 of 4", "0 of 2", "completed", "failed"):
            assert text in shown, (text, shown)
        shown = texts(await found.browser().get(f"/flows{AT}&state=failed"))
        assert ("bad" in shown, "good" in shown) == (True, False)


async def test_without_a_flow_the_page_says_what_one_is():
    async with inline() as (found, _):
        shown = texts(await found.browser().get(f"/flows{AT}"))
        assert "No flows yet" in shown
        assert "holdfast demo" in shown


async def test_a_flow_shows_its_graph_and_the_same_as_a_table():
    async with inline() as (found, queue):
        await queue.start(report("bad", last=fails))
        await queue.drain()
        answer = await found.browser().get(f"/flow{AT}&id=bad")
        shown = texts(answer)
        for name in ("first", "part-0", "part-1", "last"):
            assert shown.count(name) >= 2, name  # In a box, and in a row.
        assert "part-0, part-1" in shown
        assert any("no luck <b>z</b>" in text for text in shown)
        assert answer.text.count('<a class="box s-completed"') == 3
        assert answer.text.count('<a class="box s-failed"') == 1
        assert 'href="/job?tenant=acme&amp;queue=mail&amp;id=bad%2Flast"' in answer.text
        assert "Replay" in shown
        assert "Cancel" not in shown


async def test_a_step_says_why_it_waits():
    async with inline() as (found, queue):
        await queue.start(held("second", "third"))
        await queue.drain()
        shown = " ".join(texts(await found.browser().get(f"/flow{AT}&id=held")))
        assert "It is scheduled for" in shown
        assert shown.count("Waits for first (scheduled).") == 2
        await queue.cancel("held", queue=FLOWS)
        shown = " ".join(texts(await found.browser().get(f"/flow{AT}&id=held")))
        assert shown.count("It never started: the flow is canceled.") == 2


async def test_cancel_ends_a_flow_and_its_steps_and_replay_goes_on():
    async with inline() as (found, queue):
        await queue.start(held("second"))
        await queue.start(report("bad", last=fails))
        await queue.drain()
        browser = found.browser()
        page = await browser.get(f"/flow{AT}&id=held")
        assert "Cancel the flow" in texts(page)
        assert "<details" in page.text
        answer = await browser.act(f"/flow/cancel{AT}&id=held", page=f"/flow{AT}&id=held")
        assert answer.headers["location"] == "/flow?tenant=acme&id=held"
        assert (await queue.flow("held")).state == "canceled"
        assert (await queue.get("held/first", queue="mail")).state == "canceled"
        await browser.act(f"/flow/replay{AT}&id=bad", page=f"/flow{AT}&id=bad")
        assert (await queue.flow("bad")).state == "ready"
        assert any("Replayed bad" in text for text in texts(await browser.get(f"/flow{AT}&id=bad")))


async def test_a_flow_of_200_steps_is_readable_and_bounded():
    async with inline() as (found, queue):
        flow = Flow("wide", "wide")
        first = flow.add(works.message(), name="first")
        parts = [flow.add(works.message(str(n)), name=f"part-{n}", after=[first]) for n in range(249)]
        flow.add(works.message(), name="last", after=parts)
        await queue.start(flow)
        await queue.drain()
        browser = found.browser()
        answer = await browser.get(f"/flow{AT}&id=wide")
        assert answer.text.count('class="box ') == 3
        assert "249 of 249 completed" in texts(answer)
        assert answer.text.count('<tr id="step-') == 200
        (following,) = re.findall(r'href="([^"]*)" rel="next"', answer.text)
        rest = await browser.get(unescape(following))
        assert rest.text.count('<tr id="step-') == 51
        assert "last" in texts(rest)
        for wrong in ("from=-1", "from=x", "from=99999999999999999999", "from=250"):
            assert (await browser.get(f"/flow{AT}&id=wide&{wrong}")).status_code == 200


async def test_another_tenants_flow_and_one_with_a_step_in_another_queue_do_not_exist():
    async with inline(by_token) as (found, queue):
        rival = found.queue("rival")
        await rival.start(report("secret-one"))
        mixed = Flow("secret", "secret-two")
        mixed.add(works.message("a"), name="seen")
        mixed.add({"n": 1}, name="unseen", queue="press")
        await queue.start(mixed)
        await queue.start(held("second"))
        browser = await found.logged_in(token(queues=["mail"]))
        for path in ("/flows", "/flows?fragment=list", "/flows?state=ready", "/flow?id=held"):
            answer = await browser.get(path)
            assert (answer.status_code, "secret" in answer.text) == (200, False), path
        assert "held" in texts(await browser.get("/flows"))
        for id in ("secret-one", "secret-two", "nothing"):
            assert (await browser.get(f"/flow?id={id}")).status_code == 404
            assert (await browser.get(f"/flow?id={id}&tenant=rival")).status_code == 404
            part = await browser.get(f"/flow?id={id}&fragment=flow")
            assert part.text == (await browser.get("/flow?id=nothing&fragment=flow")).text
            for action in ("cancel", "replay"):
                answer = await browser.act(f"/flow/{action}?id={id}", page="/flows")
                assert answer.status_code == 404
        assert (await queue.flow("secret-two")).state == "ready"
        assert (await rival.flow("secret-one")).state == "ready"


@pytest.mark.parametrize("scopes, cancel, replay", [(("read",), 403, 403), (("read", "produce"), 303, 403)])
async def test_each_action_needs_its_scope(scopes, cancel, replay):
    async with inline(by_token) as (found, queue):
        await queue.start(held("second"))
        await queue.start(report("bad", last=fails))
        await queue.drain()
        browser = await found.logged_in(token(scopes=scopes))
        assert ("Cancel" in texts(await browser.get("/flow?id=held"))) == (cancel == 303)
        assert "Replay" not in texts(await browser.get("/flow?id=bad"))
        assert (await browser.act("/flow/replay?id=bad", page="/flows")).status_code == replay
        assert (await browser.act("/flow/cancel?id=held", page="/flows")).status_code == cancel


async def test_hostile_names_stay_text():
    bad = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "' onload='x"]
    async with inline() as (found, queue):
        flow = Flow("report", "a b&c=d<i>")
        before = []
        for name in bad:
            before = [flow.add(works.message(name), name=name.replace("/", "|"), after=before)]
        await queue.start(flow)
        await queue.drain()
        for path, query in (("/flow", {"id": flow.id}), ("/flows", {})):
            page = await found.browser().get(path, params={"tenant": "acme", **query})
            assert flow.id in " ".join(texts(page))
            seen = parsed(page)
            assert not {"img", "i"} & set(seen.tags)
            assert seen.tags.count("script") == 1
            for name, value in seen.attributes:
                assert not name.startswith("on")
                assert name != "style"
                if name in ("href", "formaction", "action"):
                    assert value.startswith(("/", "#"))


async def test_a_cancel_is_recorded_with_who_did_it(caplog):
    async with inline(by_token) as (found, queue):
        await queue.start(held("second"))
        browser = await found.logged_in(token(subject="ann"))
        caplog.set_level("INFO", "holdfast.audit")
        await browser.act("/flow/cancel?id=held", page="/flows")
        (line,) = [record for record in caplog.records if record.name == "holdfast.audit"]
        for fact in ("flow.cancel", "ann", "acme", "held", "dashboard"):
            assert fact in line.getMessage() + str(line.__dict__)


async def test_hints_of_other_jobs_draw_a_flow_no_new():
    class Looks:
        tenant, query = "acme", {"id": "f1"}

    for id, wanted in [("f1", True), ("f1/a", True), ("", True), ("f1x", False), ("f2/a", False), ("job", False)]:
        assert concerns(Looks(), Signal(Hint.DONE, "acme", "mail", id)) == wanted, id
        assert not concerns(Looks(), Signal(Hint.DONE, "rival", "mail", id))
