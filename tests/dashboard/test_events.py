"""Events: the newest of the log, as they happen."""

import pytest

from holdfast.core.job import JobKey
from holdfast.dashboard import tail
from tests.dashboard.making import HOSTILE, check_plain, chrome, claimed, fail, fits
from tests.dashboard.support import parsed, served, texts, token

pytestmark = pytest.mark.asyncio


async def _kinds(browser, **query):
    """The kinds and jobs of the page, in order."""
    shown = texts(await browser.get("/events", params={"fragment": "list", **query}))
    return [(shown[n], shown[n + 1]) for n in range(len(shown) - 1) if shown[n] in ("enqueued", "claimed", "failed")]


async def test_the_newest_event_comes_first_with_its_job_and_its_error(opened):
    await fail(opened.store, ["a1"], "no luck")
    await opened.queue().enqueue({"n": 1}, queue="press", id="b1")
    browser = opened.browser()
    assert await _kinds(browser, tenant="acme") == [
        ("enqueued", "b1"), ("failed", "a1"), ("claimed", "a1"), ("enqueued", "a1"),
    ]  # fmt: skip
    page = await browser.get("/events?tenant=acme")
    shown = texts(page)
    assert {"Boom: no luck", "w1"} <= set(shown)
    assert "/job?tenant=acme&amp;queue=press&amp;id=b1" in page.text


async def test_events_are_filtered_by_queue_kind_and_id(opened):
    await fail(opened.store, ["a1", "a2"])
    await opened.queue().enqueue({"n": 1}, queue="press", id="a1")
    browser = opened.browser()
    assert await _kinds(browser, tenant="acme", queue="press") == [("enqueued", "a1")]
    assert await _kinds(browser, tenant="acme", kind="failed") == [("failed", "a2"), ("failed", "a1")]
    assert len(await _kinds(browser, tenant="acme", id="a1")) == 4
    assert await _kinds(browser, tenant="acme", id="a1", kind="claimed", queue="press") == []
    assert (await browser.get("/events?tenant=acme&kind=exploded")).status_code == 400


async def test_at_most_200_are_shown(opened):
    for n in range(210):
        await opened.queue().enqueue({"n": n}, queue="mail", id=f"a{n}")
    browser = opened.browser()
    found = await _kinds(browser, tenant="acme")
    assert (len(found), found[0][1], found[-1][1]) == (200, "a209", "a10")


async def test_of_a_long_log_only_what_comes_is_read(opened, monkeypatch):
    """A log is read forward: the page says from where on it is complete."""
    monkeypatch.setattr(tail, "READ", 5)
    for n in range(40):
        await opened.queue().enqueue({"n": n}, queue="mail", id=f"a{n}")
    reads, events = [], opened.store.events

    async def counted(tenant, after, limit):
        reads.append(limit)
        return await events(tenant, after, limit)

    monkeypatch.setattr(opened.store, "events", counted)
    browser = opened.browser()
    shown = texts(await browser.get("/events?tenant=acme"))
    assert "holdfast events --tenant acme" in shown
    assert len(reads) == tail.FIRST_READS
    await fail(opened.store, ["new"])
    assert [job for _, job in await _kinds(browser, tenant="acme")] == ["new"] * 3
    # More than a look reads: the rest is left out, and what comes then is shown.
    for n in range(40):
        await opened.queue().enqueue({"n": n}, queue="press", id=f"b{n}")
    await _kinds(browser, tenant="acme")
    await fail(opened.store, ["newer"])
    assert [job for _, job in await _kinds(browser, tenant="acme")] == ["newer"] * 3


async def test_a_token_sees_its_own_events_alone(guarded):
    await fail(guarded.store, ["a1"])
    await fail(guarded.store, ["s1"], "a secret", queue="secret")
    await fail(guarded.store, ["z1"], "a secret", tenant="rival")
    browser = await guarded.logged_in(token(queues=["mail"]))
    for path in ("/events", "/events?fragment=list", "/events?kind=failed", "/events?id=s1&fragment=list"):
        answer = await browser.get(path)
        assert answer.status_code == 200
        assert "secret" not in answer.text
        assert not {"z1", "s1"} & set(parsed(answer).texts)
    for path in ("/events?queue=secret", "/events?tenant=rival", "/events?tenant=rival&fragment=list",
                 "/live?page=/events&tenant=rival"):  # fmt: skip
        assert (await browser.get(path)).status_code == 404, path
    whole = await guarded.logged_in(token())
    assert {"a1", "s1"} <= set(texts(await whole.get("/events")))
    assert (await (await guarded.logged_in(token(scopes=("produce",)))).get("/events")).status_code == 403


async def test_hostile_ids_and_errors_stay_text(opened):
    for text in HOSTILE:
        await fail(opened.store, [text[:150]], text)
    await claimed(opened.store, JobKey("acme", "mail", "held"), worker=HOSTILE[0])
    browser = opened.browser()
    shown = check_plain(await browser.get("/events?tenant=acme"))
    check_plain(await browser.get("/events?tenant=acme&fragment=list"))
    for text in HOSTILE:
        assert f"Boom: {text}" in shown
        check_plain(await browser.get("/events", params={"tenant": "acme", "id": text}))


async def test_a_person_follows_the_log(opened):
    await opened.queue().enqueue({"n": 1}, queue="mail", id="first")
    async with served(opened) as base, chrome(base, size="phone") as page:
        await page.goto("/events?tenant=acme")
        await page.locator("#status.on").wait_for(state="attached")
        await fail(opened.store, ["just-now"], "it just happened")
        await page.get_by_text("it just happened").wait_for()
        assert await page.locator("a.row").first.inner_text() == "just-now"
        assert await fits(page)
        await page.get_by_label("Kind").select_option("failed")
        await page.get_by_role("button", name="Show").click()
        assert await page.locator("a.row").all_inner_texts() == ["just-now"]


async def test_a_token_for_some_queues_does_not_learn_how_much_happens_in_others(guarded):
    for n in range(3):
        await guarded.queue().enqueue({"n": n}, queue="secret")
    await guarded.queue().enqueue({"n": 1}, queue="mail")
    shown = " ".join(texts(await (await guarded.logged_in(token(queues=["mail"]))).get("/events?kind=failed")))
    assert "None among the newest 1 event." in shown
