"""Moves between real stores: what arrives, what stays, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import schedule as schedules
from holdfast.core.errors import InvalidOption, StoreBusy, StoreMismatch, StoreUnavailable
from holdfast.core.job import (
    AlreadyCompleted,
    AttemptError,
    Cancel,
    ClaimRequest,
    Envelope,
    Finish,
    IdempotencyKey,
    JobKey,
    JobState,
    NewJob,
    Purge,
    Queued,
)
from holdfast.core.names import FLOWS, MOVES, SCHEDULES
from holdfast.core.schedule import Definition, Target, Timing
from holdfast.maintenance.scheduler import tick
from holdfast.maintenance.system_jobs import SystemContext
from holdfast.migrate import MovePlan, move, move_log, steps
from holdfast.store import TenantSettings
from tests.migrate.filling import HOUR, RICH, TENANT, both, fill, names, new, run_all, waiting

WAYS = [("file_url", "valkey_url"), ("valkey_url", "postgres_url"), ("postgres_url", "file_url")]
ALL = ("mail", "video", "odd")
NOTHING = {"mail": [], "video": [], "odd": []}


@pytest.fixture
async def stores(file_url, other_url):
    """A store with jobs in it, and an empty one."""
    async with both(file_url, other_url) as (here, there):
        await fill(here)
        yield here, there


@pytest.fixture
def plan(file_url, other_url):
    return MovePlan(file_url, other_url, TENANT, wait_s=0.2)


def between(here, there, step, act):
    """A walker that does something when a step is done, the first time."""
    reported = []

    async def walker(step_input, queues, tell):
        receipts = [await steps.run_step(step_input, here, there, queue, tell) for queue in queues]
        if step_input.step == step and not reported:
            reported.append(step)
            await act()
        return receipts

    return walker


async def paused(store):
    return {one.queue for one in await store.stats(TENANT) if one.paused}


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: "-to-".join(mapping.partition("_")[0] for mapping in ways))
async def test_waiting_jobs_move_whole_and_in_order(ways, request, monkeypatch):
    """[CLAIM-2, RETRY-1, RETRY-3]"""
    monkeypatch.setattr(steps, "PAGE", 5)
    source, target = (request.getfixturevalue(name) for name in ways)
    async with both(source, target) as (here, there):
        await fill(here)
        await here.set_tenant(TENANT, TenantSettings(None, 2.5, 1000))
        await here.pause(TENANT, "video", paused=True)
        before = await names(here, *ALL)
        visible = {job.id: job.visible_at for job in await waiting(here, "video")}
        done = await move(MovePlan(source, target, TENANT))
        assert (done.jobs, done.left, done.settings) == (16, 0, 1)
        assert {one.queue: one.jobs for one in done.queues if one.jobs} == {"mail": 13, "video": 2, "odd": 1}
        assert all(one.source_sum == one.target_sum for one in done.queues)
        assert await names(there, *ALL) == before
        assert await names(here, *ALL) == NOTHING
        rich, late = await waiting(there, "video")
        assert replace(rich.envelope, request_id=RICH.request_id) == RICH
        assert {job.id: job.visible_at for job in (rich, late)} == visible
        (again,) = await waiting(there, "odd")
        assert (again.envelope.max_attempts, again.envelope.backoff.base_ms) == (3, 10_000)
        assert (await there.tenant_settings(TENANT))[0] == TenantSettings(None, 2.5, 1000)
        assert await paused(there) == await paused(here) == {"video"}
        assert await run_all(there, "mail") == [id for id in before["mail"] if id != "later"]
        await there.shift_clock(2 * HOUR)
        assert await run_all(there, "mail", "odd") == ["later", "again"]
        assert (await here.stats(TENANT, ["odd"]))[0].counts[JobState.COMPLETED] == 1


@pytest.mark.parametrize("later", [0, 25 * HOUR], ids=["at once", "when its record is gone"])
async def test_a_tenant_moves_back_with_keys_that_outlive_their_jobs(file_url, other_url, plan, later):
    """[ENQ-3, ENQ-8]"""
    async with both(file_url, other_url) as (here, there):
        policies = {"until_terminal": 0, "until_started": 0, "ttl": 40 * 24 * HOUR, "forever": 0}
        keys = {policy: IdempotencyKey(policy, policy, ttl) for policy, ttl in policies.items()}
        await here.enqueue([new(policy, idempotency=key) for policy, key in keys.items()])
        await move(plan)
        # What was taken away is forgotten after a day, but for keys that stand.
        await here.shift_clock(later)
        await here.prune(100)
        await move(MovePlan(other_url, file_url, TENANT))
        assert sorted(await run_all(here, "mail")) == sorted(policies)
        assert await run_all(there, "mail") == []
        answers = await here.enqueue([new(f"{policy}-2", idempotency=key) for policy, key in keys.items()])
        assert [type(answer) for answer in answers] == [Queued, Queued, AlreadyCompleted, AlreadyCompleted]


async def test_a_key_that_its_job_no_longer_holds_does_not_move(file_url, other_url, plan):
    """[ENQ-3]"""
    async with both(file_url, other_url) as (here, there):
        begun, short = IdempotencyKey("a", "until_started"), IdempotencyKey("b", "ttl", 1000)
        await here.enqueue([new("a-1", idempotency=begun)])
        (job,) = (await here.claim(ClaimRequest(TENANT, ("mail",), 1, 30_000, "w"))).jobs
        await here.finish([Finish(job.key, job.token, "release", delay_ms=HOUR)])
        await here.enqueue([new("b-1", idempotency=short)])
        await here.shift_clock(1001)
        await here.enqueue([new("a-2", idempotency=begun), new("b-2", idempotency=short)])
        assert (await move(plan)).jobs == 4
        assert sorted(job.id for job in await waiting(there, "mail")) == ["a-1", "a-2", "b-1", "b-2"]


async def test_jobs_enqueued_meanwhile_move_and_canceled_ones_do_not(stores, plan):
    here, there = stores

    async def act():
        await here.enqueue([new("late"), new("late", "new")])
        await here.cancel([Cancel(JobKey(TENANT, "mail", "a-1"))])

    done = await move(plan, between(here, there, "copy", act))
    assert (done.jobs, done.passes, done.left) == (17, 2, 1)
    assert await names(here, *ALL, "new") == NOTHING | {"new": []}
    there_now = await names(there, "mail", "new")
    assert sorted(there_now["mail"]) == sorted({f"a-{n}" for n in range(12)} - {"a-1"} | {"late", "later"})
    assert there_now["new"] == ["late"]


async def test_other_content_under_the_same_id_stops_the_move_before_it_removes_jobs(stores, plan):
    here, there = stores
    before = await names(here, *ALL)
    await there.enqueue([new("a-3", payload=b'{"to":"a person"}'), new("a-4", priority=1, request_id="own")])
    with pytest.raises(StoreMismatch, match="mail/a-3: another job has this id there") as reported:
        await move(plan)
    assert "a-4" not in str(reported.value)
    assert "mail, odd, video are paused in both stores" in reported.value.__notes__[0]
    assert await names(here, *ALL) == before
    assert await paused(here) == await paused(there) == {*ALL, SCHEDULES, FLOWS}
    await there.cancel([Cancel(JobKey(TENANT, "mail", "a-3"))])
    done = await move(plan)
    assert (done.resumed, done.jobs) == (True, 16)
    assert sorted((await names(there, "mail"))["mail"]) == sorted(before["mail"])
    assert await paused(here) == await paused(there) == set()


async def test_jobs_that_the_target_lost_are_not_removed_from_the_source(stores, plan):
    here, there = stores
    before = await names(here, *ALL)

    async def lose():
        key = JobKey(TENANT, "mail", "a-3")
        await there.cancel([Cancel(key)])
        await there.purge([Purge(key)])

    with pytest.raises(StoreMismatch, match="mail/a-3: it is not there"):
        await move(plan, between(here, there, "copy", lose))
    assert await names(here, *ALL) == before


async def test_a_dead_letter_in_the_target_does_not_count_as_a_copy(stores, plan):
    _, there = stores
    await there.enqueue([new("a-0", priority=0, request_id="own")])
    (job,) = (await there.claim(ClaimRequest(TENANT, ("mail",), 1, 30_000, "w"))).jobs
    await there.finish([Finish(job.key, job.token, "fail", error=AttemptError("E", ""))])
    with pytest.raises(StoreMismatch, match="a dead letter has this id there"):
        await move(plan)


async def test_a_move_waits_for_running_jobs_and_changes_nothing_if_they_do_not_end(stores, plan):
    here, there = stores
    await here.pause(TENANT, "video", paused=True)
    (job,) = (await here.claim(ClaimRequest(TENANT, ("mail",), 1, 30_000, "w"))).jobs
    with pytest.raises(StoreBusy, match=r"1 job of 'acme' still ran .* \(1 in mail\)") as reported:
        await move(plan)
    assert reported.value.__notes__ == ["Nothing was moved, and the queues are as they were."]
    assert (await paused(here), await paused(there)) == ({"video"}, set())
    assert await names(there, *ALL, MOVES) == NOTHING | {MOVES: []}
    # A dead worker's lease runs out, and no other process ends it.
    await here.shift_clock(31_000)
    assert (await move(plan)).jobs == 16
    assert next(one for one in await waiting(there, "mail") if one.id == job.id).envelope.max_attempts == 3


async def test_started_flows_refuse_the_move_and_others_move(stores, plan):
    here, there = stores
    await here.enqueue([NewJob(JobKey(TENANT, FLOWS, id), Envelope("holdfast:flow", b"{}")) for id in ("a", "b")])
    (job,) = (await here.claim(ClaimRequest(TENANT, (FLOWS,), 1, 30_000, "w"))).jobs
    await here.finish([Finish(job.key, job.token, "release", delay_ms=HOUR)])
    with pytest.raises(StoreBusy, match="1 flow is under way in SRC"):
        await move(plan)
    await here.cancel([Cancel(job.key)])
    assert (await move(plan)).jobs == 17
    assert await names(there, FLOWS) == {FLOWS: ["b"]}


async def test_one_mover_at_a_time(stores, plan, monkeypatch):
    here, there = stores
    monkeypatch.setattr(move_log, "SLACK_S", 0.0)
    refused = []

    async def another():
        with pytest.raises(StoreBusy, match="another move of tenant 'acme'"):
            await move(replace(plan, lease_ms=1))
        refused.append(True)

    assert (await move(plan, between(here, there, "verify", another))).jobs == 16
    assert refused


async def test_jobs_that_cannot_move_are_named(stores, plan, file_url, other_url, fast, prefix):
    here, there = stores
    with pytest.raises(InvalidOption, match="is SRC itself"):
        MovePlan(file_url, file_url, TENANT)
    with pytest.raises(InvalidOption, match="is SRC itself"):
        await move(MovePlan(file_url, f"file:{fast}/./{prefix}?test_clock=1", TENANT))
    assert await paused(here) == set()
    with pytest.raises(InvalidOption, match="no jobs or settings of 'absent'"):
        await move(MovePlan(file_url, other_url, "absent"))
    with pytest.raises(StoreUnavailable) as reported:
        await move(MovePlan(file_url, "redis://127.0.0.1:1/0", TENANT))
    assert "The store is DST" in reported.value.__notes__[0]
    with pytest.raises(InvalidOption, match="a service does not show all of a job"):
        await move(MovePlan(file_url, "http://localhost:1", TENANT))
    await there.set_tenant(TENANT, TenantSettings("mail", None, 3))
    with pytest.raises(StoreBusy, match="DST has no room"):
        await move(plan)
    assert len((await names(here, "mail"))["mail"]) == 13


# Schedules ----------------------------------------------------------------------------------------------------------


async def put_schedule(store, every=HOUR):
    """A schedule whose first tick is an hour away; that tick."""
    anchor = await store.now()
    definition = Definition(Timing(every_ms=every), anchor, Target("reports", Envelope("report", b"{}")))
    await store.enqueue([schedules.to_job(TENANT, "hourly", definition, anchor + every, "r")])
    return anchor + every


async def fire(store):
    """Do what the upkeep does; the ids of the jobs that came of it and ran."""
    while jobs := (await store.claim(ClaimRequest(TENANT, (SCHEDULES,), 10, 30_000, "upkeep"))).jobs:
        await store.finish([await tick(job, SystemContext(store)) for job in jobs])
    return await run_all(store, "reports")


async def test_a_schedule_moves_and_fires_there_alone(file_url, other_url, plan):
    async with both(file_url, other_url) as (here, there):
        first = await put_schedule(here)
        assert (await move(plan)).jobs == 1
        for store in (here, there):
            await store.shift_clock(HOUR + 10)
        assert await fire(here) == []
        assert await fire(there) == [f"hourly@{schedules.tick_text(first)}"]
        await there.shift_clock(HOUR)
        assert await fire(there) == [f"hourly@{schedules.tick_text(first + HOUR)}"]


@pytest.mark.parametrize("fired", [True, False])
async def test_a_tick_whose_worker_died_is_fired_once(file_url, other_url, plan, fired):
    """It may have been fired or not, and its job may be done: the source knows, the target does not."""
    async with both(file_url, other_url) as (here, there):
        first = await put_schedule(here)
        for store in (here, there):
            await store.shift_clock(HOUR + 10)
        (job,) = (await here.claim(ClaimRequest(TENANT, (SCHEDULES,), 1, 30_000, "upkeep"))).jobs
        ran = []
        if fired:
            await tick(job, SystemContext(here))
            ran += await run_all(here, "reports")
        for store in (here, there):
            await store.shift_clock(31_000)
        await here.reap(10, 0.5)
        await move(plan)
        for store in (here, there):
            await store.shift_clock(1000)
        ran += await fire(there)
        assert ran == [f"hourly@{schedules.tick_text(first)}"]
        await there.shift_clock(HOUR)
        assert await fire(there) == [f"hourly@{schedules.tick_text(first + HOUR)}"]
