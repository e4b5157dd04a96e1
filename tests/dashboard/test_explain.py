"""Planted situations have the same causes from `Queue.explain`, the command, HTTP and a job's page."""

import asyncio

import pytest

from holdfast import Flow, Queue
from holdfast.cli import main
from holdfast.core.explain import AHEAD_LIMIT
from holdfast.core.job import AttemptError, Cancel, ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.core.policy import TypeInfo
from holdfast.opening import open_store
from holdfast.store import TenantSettings, WorkerInfo
from tests.dashboard.support import parsed, site
from tests.service.support import serving

HOUR, DAY = 3_600_000, 86_400_000
BOOM = AttemptError("Boom", "it broke")
SERVED = ("paused", "many", "crowded", "served", "strict", "full", "given", "later", "again")

SITUATIONS = {
    ("paused", "j"): ["paused"],
    ("many", "third"): ["jobs_ahead"],
    ("many", "last"): ["jobs_ahead"],
    ("crowded", "j"): ["next", "other_tenants"],
    ("served", "j"): ["next"],
    ("lonely", "j"): ["no_worker"],
    ("strict", "j"): ["unknown_type"],
    ("full", "j"): ["next", "quota"],
    ("later", "j"): ["scheduled"],
    ("again", "j"): ["retry"],
    ("given", "j"): ["scheduled", "released"],
    ("held", "j"): ["leased"],
    ("held", "late"): ["lease_expired"],
    ("ended", "done"): ["completed"],
    ("ended", "dead"): ["failed"],
    ("ended", "stopped"): ["canceled"],
    ("steps", "flow/load"): ["steps"],
    ("served", "none"): ["not_found"],
}


def new(queue, id, tenant="acme", **options):
    return NewJob(JobKey(tenant, queue, id), Envelope("send", b"{}", result_ttl_ms=HOUR), **options)


async def claim(store, queue, lease_ms=HOUR):
    (job,) = (await store.claim(ClaimRequest("acme", (queue,), 1, lease_ms, "worker-1"))).jobs
    return job


async def end(store, queue, outcome, **options):
    job = await claim(store, queue)
    await store.finish([Finish(job.key, job.token, outcome, **options)])


async def plant(url):
    store = await open_store(url)
    try:
        for queue, id in SITUATIONS:
            if queue not in ("many", "ended", "steps") and id == "j":
                await store.enqueue([new(queue, "j", delay_ms=DAY if queue == "later" else 0)])
        many = [new("many", f"{n:04}") for n in range(AHEAD_LIMIT)]
        await store.enqueue([*many[:2], new("many", "third"), *many[2:], new("many", "last")])
        await store.pause("acme", "paused", paused=True)
        await store.enqueue([new("crowded", "theirs", tenant="rival")])
        await store.set_tenant("acme", TenantSettings("full", max_waiting=1))
        await end(store, "again", "retry", error=BOOM, delay_ms=DAY)
        await end(store, "given", "release", reason="unknown_type", delay_ms=DAY)
        await claim(store, "held")
        for id, outcome in (("done", "complete"), ("dead", "fail")):
            await store.enqueue([new("ended", id)])
            await end(store, "ended", outcome, error=BOOM if outcome == "fail" else None)
        await store.enqueue([new("ended", "stopped")])
        await store.cancel([Cancel(JobKey("acme", "ended", "stopped"))])
        await store.enqueue([new("held", "late")])
        await claim(store, "held", lease_ms=1)  # The last claim: another one would end this lease.
        types = [TypeInfo("send" if queue != "strict" else "other", queue) for queue in SERVED]
        for info in types:
            worker = WorkerInfo(f"serves-{info.queue}", "acme", "host", 1, (info.queue,), 1, 0, types=(info,))
            await store.beat(worker, DAY)
        async with Queue(store=store, tenant="acme") as queue:
            flow = Flow("report", id="flow")
            first = flow.add({}, name="extract", queue="steps")
            flow.add({}, name="load", queue="steps", after=[first])
            await queue.start(flow)
            return {key: await queue.explain(key[1], queue=key[0]) for key in SITUATIONS}
    finally:
        await store.close()


async def over_http(url):
    """The answers to all situations."""
    async with serving(url) as service:
        client = await service.client("acme")
        return {
            (queue, id): await client.get(f"/v1/queues/{queue}/jobs/{id.replace('/', '%2F')}/explain")
            for queue, id in SITUATIONS
        }


async def on_pages(url):
    async with site(url) as found, found.browser() as browser:
        return {
            (queue, id): await browser.get("/job", params={"tenant": "acme", "queue": queue, "id": id})
            for queue, id in SITUATIONS
        }


@pytest.fixture
def url(tmp_path):
    return f"file:{tmp_path}/data"


def test_every_way_to_ask_gives_the_same_causes(url, capsys):
    known = asyncio.run(plant(url))
    assert {key: [cause.code for cause in found.causes] for key, found in known.items()} == SITUATIONS
    assert known["many", "third"].has("jobs_ahead").text == "2 jobs of this tenant are ahead in this queue."
    assert (
        known["many", "last"].has("jobs_ahead").text == "More than 1,000 jobs of this tenant are ahead in this queue."
    )

    pages = asyncio.run(on_pages(url))
    answers = asyncio.run(over_http(url))
    for key, found in known.items():
        queue, id = key
        with pytest.raises(SystemExit) as ended:
            main(["explain", id, "-q", queue, "--store", url, "--tenant", "acme"])
        printed = capsys.readouterr()
        causes = [cause.text for cause in found.causes]

        answer = answers[key].json()
        if found.state is None:
            assert (ended.value.code, answers[key].status_code, pages[key].status_code) == (1, 404, 404)
            assert causes[0] in page_text(pages[key])
            continue
        assert printed.out.splitlines() == str(found).splitlines()
        assert answer["state"] == found.state
        own = [cause["text"] for cause in answer["causes"] if cause["code"] != "other_tenants"]
        assert own == [cause.text for cause in found.causes if cause.code != "other_tenants"]
        assert [cause["code"] for cause in answer["causes"]] == SITUATIONS[key]
        shown = page_text(pages[key])
        if queue == "ended":
            assert str(found.state) in shown
        else:
            assert all(text in shown for text in causes), (key, shown)


def page_text(answer):
    """All of a page's text on one line."""
    return " ".join(parsed(answer).texts)
