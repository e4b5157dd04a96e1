"""EXPLAIN-1: why a job is where it is, by `Queue.explain`. Each situation has the same causes on every store."""

from __future__ import annotations

from datetime import datetime

from holdfast.core.explain import AHEAD_LIMIT, Cause, Explanation
from holdfast.core.flow import VERSION, Plan, Step, flow_job, step_job
from holdfast.core.job import DAY, HOUR, SECOND, Envelope, JobKey, JobState, NewJob, Queued
from holdfast.core.names import FLOWS
from holdfast.core.policy import TypeInfo
from holdfast.core.times import moment
from holdfast.queue.queue import Queue
from holdfast.store import PAGE_LIMIT, TenantSettings, WorkerInfo
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal, expect_some
from holdfast.testing.conformance.harness import BOOM, DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule

READY, LEASED = JobState.READY, JobState.LEASED


async def explain(h: Harness, id: str, queue: str | None = None, tenant: str | None = None) -> Explanation:
    """What `Queue.explain` says of a job."""
    async with Queue(store=h.store, tenant=tenant or h.tenant) as bound:
        return await bound.explain(id, queue=queue or h.queue)


async def expect_causes(
    h: Harness, state: JobState | None, *codes: str, id: str = "job", queue: str | None = None, since: int | None = None
) -> Cause:
    """A job must have this state, since then, and these causes. Returns the first."""
    found = await explain(h, id, queue)
    expect_equal(found.state, state, f"explained state of {id!r}")
    expect_equal([cause.code for cause in found.causes], [*codes], f"causes of {id!r}")
    expect(all(cause.text for cause in found.causes), "a cause without a sentence")
    expect_equal(len(str(found).splitlines()), 1 + len(codes), "lines of an explanation")
    if since is not None:
        expect_equal(found.since, moment(since), f"since when {id!r} is {state}")
    return found.causes[0]


async def serve(h: Harness, *types: str, tenant: str | None = "", queue: str = "", held: int = 0) -> None:
    """Let a worker live that serves the queue. Without types it does not say which it knows."""
    whose, name = h.tenant if tenant == "" else tenant, queue or h.queue
    known = tuple(TypeInfo(type, name) for type in types)
    await h.store.beat(WorkerInfo(h.name("w"), whose, "host", 1, (name,), 1, held, types=known), DAY)


async def ahead_of(h: Harness, id: str) -> tuple[int, bool]:
    """How many jobs are said to be ahead of a job, and whether there are more."""
    cause = (await explain(h, id)).has("jobs_ahead")
    return (0, False) if cause is None else (cause.count or 0, cause.more)


@rule("EXPLAIN-1")
async def a_job_without_anything_before_it_is_next(h: Harness) -> None:
    """Ready since it became visible; a worker serves its queue, and nothing else holds it back."""
    async with h.frozen() as f:
        await serve(f)
        at = await f.now()
        await f.queued("job", "later")
        await f.advance(5 * SECOND)
        await expect_causes(f, READY, "next", since=at)
        await expect_causes(f, READY, "jobs_ahead", id="later", since=at)


@rule("EXPLAIN-1")
async def a_paused_queue_is_the_cause(h: Harness) -> None:
    """Before all others, and no longer once it is resumed; a pause of another queue is none."""
    async with h.frozen() as f:
        await serve(f)
        await f.queued("job", "later")
        await f.store.pause(f.tenant, f.name("q"), paused=True)
        await expect_causes(f, READY, "next")
        await f.store.pause(f.tenant, f.queue, paused=True)
        await expect_causes(f, READY, "paused")
        await expect_causes(f, READY, "paused", "jobs_ahead", id="later")
        await f.queued("delayed", delay_ms=HOUR)
        await expect_causes(f, JobState.SCHEDULED, "paused", "scheduled", id="delayed")
        await f.store.pause(f.tenant, f.queue, paused=False)
        await expect_causes(f, READY, "next")


@rule("EXPLAIN-1")
async def the_jobs_ahead_are_counted(h: Harness) -> None:
    """Exactly, of this tenant and queue alone: what is leased, ended, delayed, or behind is not ahead. [CLAIM-2]"""
    async with h.frozen() as f:
        await f.queued(*(f"a{n}" for n in range(7)))
        await f.queued("delayed", delay_ms=HOUR, priority=9)
        await f.queued("job")
        await f.queued("behind")
        await f.queued("elsewhere", queue=f.name("q"), priority=9)
        await f.queued("theirs", tenant=f.other, priority=9)
        expect_equal(await ahead_of(f, "job"), (7, False), "jobs ahead")
        first, second = await f.claim(2)
        expect_equal(await ahead_of(f, "job"), (5, False), "jobs ahead, with two leased")
        f.accepted(await f.complete(first), JobState.COMPLETED)
        f.accepted(await f.retry(second, delay_ms=DELAY), JobState.RETRYING)
        expect_equal(await f.cancel(f.key("a2")), "canceled", "cancel")
        expect_equal(await ahead_of(f, "job"), (4, False), "jobs ahead, with one canceled")
        expect_equal(await ahead_of(f, "a3"), (0, False), "jobs ahead of the first")
        expect_equal(await ahead_of(f, "behind"), (5, False), "jobs ahead of the last")
        await f.advance(DELAY)
        expect_equal(await ahead_of(f, second.id), (6, False), "jobs ahead of one whose retry is due")


@rule("EXPLAIN-1")
async def a_higher_priority_is_ahead_and_a_lower_one_is_not(h: Harness) -> None:
    """By priority, then by the moment of becoming visible, then by sequence. [CLAIM-2]"""
    async with h.frozen() as f:
        await f.queued("due-late", delay_ms=2 * SECOND)
        await f.queued("low", priority=0)
        await f.queued("job")
        await f.advance(2 * SECOND)
        await f.queued("high-1", "high-2", priority=9)
        await f.queued("six", priority=6)
        counts = {id: (await ahead_of(f, id))[0] for id in ("high-1", "high-2", "six", "job", "due-late", "low")}
        expect_equal(list(counts.values()), [0, 1, 2, 3, 4, 5], f"jobs ahead: {counts}")
        order = [job.id for job in await f.claim(6)]
        expect_equal(order, list(counts), "the order of a claim")


@rule("EXPLAIN-1")
async def a_delayed_job_is_not_ahead_until_it_is_due(h: Harness) -> None:
    """A better priority does not count before its time; then it does."""
    async with h.frozen() as f:
        await f.queued("delayed", delay_ms=10 * SECOND, priority=9)
        await f.queued("job")
        expect_equal(await ahead_of(f, "job"), (0, False), "jobs ahead of a visible job")
        await f.advance(10 * SECOND)
        expect_equal(await ahead_of(f, "job"), (1, False), "jobs ahead when the delayed one is due")


@rule("EXPLAIN-1")
async def over_a_thousand_jobs_ahead_are_not_counted(h: Harness) -> None:
    """1,000 are exact, 1,001 are more than 1,000: also over several priorities."""
    async with h.frozen() as f:
        for priority in (5, 9):
            await f.queued(*(f"{priority}-{n}" for n in range(AHEAD_LIMIT // 2)), priority=priority)
        await f.queued("job")
        expect_equal(await ahead_of(f, "job"), (AHEAD_LIMIT, False), "jobs ahead")
        await f.queued("one-more", priority=7)
        expect_equal(await ahead_of(f, "job"), (AHEAD_LIMIT, True), "jobs ahead, with one more")
        text = expect_some((await explain(f, "job")).has("jobs_ahead"), "the cause").text
        expect("More than 1,000 jobs" in text, f"what is said: {text}")


@rule("EXPLAIN-1")
async def a_scheduled_job_says_when_it_is_due(h: Harness) -> None:
    """Scheduled since it was enqueued, and moved by the clock alone."""
    async with h.frozen() as f:
        await serve(f)
        at = await f.now()
        await f.queued("ready")
        await f.queued("job", delay_ms=HOUR)
        await f.advance(SECOND)
        cause = await expect_causes(f, JobState.SCHEDULED, "scheduled", since=at)
        expect_equal(cause.at, moment(at + HOUR), "when it is due")
        expect_equal((await explain(f, "job")).next_at, moment(at + HOUR), "when it moves")
        await f.advance(HOUR - SECOND)
        await expect_causes(f, READY, "jobs_ahead", since=at + HOUR)


@rule("EXPLAIN-1")
async def a_retry_says_when_it_runs_and_what_went_wrong(h: Harness) -> None:
    """Which attempt of how many failed, its error, and the moment of the next one."""
    async with h.frozen() as f:
        await serve(f)
        job = await f.leased(queue=f.queue, max_attempts=3)
        at = await f.now()
        f.accepted(await f.retry(job, delay_ms=DELAY), JobState.RETRYING)
        cause = await expect_causes(f, JobState.RETRYING, "retry", since=at)
        expect_equal((cause.at, cause.attempt, cause.max_attempts), (moment(at + DELAY), 1, 3), "the retry")
        expect_equal(cause.error, f"{BOOM.type}: {BOOM.message}", "the last error")
        await f.advance(DELAY)
        await expect_causes(f, READY, "next", since=at + DELAY)


@rule("EXPLAIN-1")
async def a_leased_job_names_its_worker_and_its_deadline(h: Harness) -> None:
    """Until the deadline the worker has it; after that, the next claim or the reaper ends the lease."""
    async with h.frozen() as f:
        job = await f.leased(queue=f.queue)
        deadline = moment(job.deadline)
        cause = await expect_causes(f, LEASED, "leased", since=await f.now())
        expect_equal((cause.worker_id, cause.at, cause.attempt), ("worker-1", deadline, 1), "the lease")
        expect_equal((await explain(f, "job")).next_at, deadline, "when it moves")
        await f.advance(LEASE - 1)
        await expect_causes(f, LEASED, "leased")
        await f.advance(1)
        cause = await expect_causes(f, LEASED, "lease_expired")
        expect_equal((cause.worker_id, cause.at), ("worker-1", deadline), "the lease that ran out")
        await f.store.reap(100, 0.0)
        await expect_causes(f, JobState.RETRYING, "retry", "no_worker")


@rule("EXPLAIN-1")
async def without_a_worker_for_its_queue_a_job_says_so(h: Harness) -> None:
    """Workers of other queues or tenants, and those that live no more, are none; one for all tenants is one."""
    async with h.frozen() as f:
        await f.queued("job")
        await serve(f, queue=f.name("q"))
        await serve(f, tenant=f.other)
        await expect_causes(f, READY, "no_worker")
        await serve(f, tenant=None)
        await expect_causes(f, READY, "next")
        await f.advance(DAY)
        await expect_causes(f, READY, "no_worker")


@rule("EXPLAIN-1")
async def a_type_that_no_worker_knows_is_the_cause(h: Harness) -> None:
    """Unless a worker of the queue does not say which types it knows."""
    async with h.frozen() as f:
        await serve(f, "other-type")
        await f.queued("job", type="this-type")
        cause = await expect_causes(f, READY, "unknown_type")
        expect_equal(cause.type, "this-type", "the type")
        await serve(f, "this-type", queue=f.name("q"))
        await expect_causes(f, READY, "unknown_type")
        await serve(f, "this-type")
        await expect_causes(f, READY, "next")
        await f.queued("untyped", type="")
        await expect_causes(f, READY, "unknown_type", "jobs_ahead", id="untyped")
        await serve(f)
        await expect_causes(f, READY, "jobs_ahead", id="untyped")


@rule("EXPLAIN-1")
async def a_released_job_says_why_it_was_given_back(h: Harness) -> None:
    """The reason of the last worker, and since when each has given it. [RETRY-6]"""
    async with h.frozen() as f:
        await serve(f)
        at = await f.now()
        job = await f.leased(queue=f.queue)
        f.accepted(await f.release(job, reason="unknown_type", delay_ms=SECOND), JobState.SCHEDULED)
        await expect_causes(f, JobState.SCHEDULED, "scheduled", "released")
        cause = expect_some((await explain(f, "job")).has("released"), "the cause")
        expect_equal((cause.reason, cause.at), ("unknown_type", moment(at)), "the release")


@rule("EXPLAIN-1")
async def other_tenants_with_visible_work_take_turns(h: Harness) -> None:
    """In a queue of the same name, not paused. How many they are shows at the store alone. [TENANT-4, TENANT-2]"""
    async with h.frozen() as f:
        await serve(f)
        await f.queued("job")
        delayed, paused, gone, busy = (f.name("v") for _ in range(4))
        await f.queued("theirs", tenant=delayed, delay_ms=HOUR)
        await f.queued("theirs", tenant=paused)
        await f.store.pause(paused, f.queue, paused=True)
        await f.queued("theirs", tenant=gone)
        expect_equal(await f.cancel(f.key("theirs", tenant=gone)), "canceled", "cancel")
        await f.queued("theirs", tenant=busy)
        await f.claim_one("theirs", tenant=busy)
        await f.queued("theirs", tenant=f.name("v"), queue=f.name("q"))
        await expect_causes(f, READY, "next")
        await f.queued("theirs", "second", tenant=f.other)
        await f.queued("theirs", tenant=f.name("v"), priority=0)
        await expect_causes(f, READY, "next", "other_tenants")
        standing = expect_some((await explain(f, "job")).has("other_tenants"), "the cause")
        expect(standing.count in (2, None), f"other tenants: {standing.count}")
        await f.advance(HOUR)
        await f.queued("later", delay_ms=HOUR)
        await expect_causes(f, JobState.SCHEDULED, "scheduled", id="later")


@rule("EXPLAIN-1")
async def an_ended_job_says_how_and_until_when_it_is_kept(h: Harness) -> None:
    """Completed, failed with its reason and error, canceled."""
    async with h.frozen() as f:
        await f.queued("a", "b", "c", result_ttl_ms=HOUR)
        a, b, c = await f.claim(3)
        at = await f.now()
        f.accepted(await f.complete(a), JobState.COMPLETED)
        f.accepted(await f.fail(b), JobState.FAILED)
        expect_equal(await f.cancel(c.key), "canceled", "cancel")
        kept: list[datetime | None] = []
        for id, state in (("a", JobState.COMPLETED), ("b", JobState.FAILED), ("c", JobState.CANCELED)):
            cause = await expect_causes(f, state, str(state), id=id, since=at)
            expect_equal((await explain(f, id)).next_at, cause.at, "when it is forgotten")
            kept.append(cause.at)
        expect_equal(kept, [moment(at + HOUR), moment(at + 7 * DAY), moment(at + DAY)], "until when they are kept")
        failed = expect_some((await explain(f, "b")).has("failed"), "the cause")
        expect_equal((failed.reason, failed.error), ("permanent", "Boom: it broke"), "why it failed")
        expect("replay" in failed.text, f"a dead letter does not say how to replay it: {failed.text}")
        await f.advance(HOUR)
        await expect_causes(f, None, "not_found", id="a")


@rule("EXPLAIN-1")
async def a_foreign_job_is_explained_as_one_that_is_not_there(h: Harness) -> None:
    """[TENANT-2]"""
    async with h.frozen() as f:
        await f.queued("job", tenant=f.other)
        foreign = await explain(f, "job")
        await expect_causes(f, None, "not_found")
        await f.queued("mine")
        expect_equal(str(await explain(f, "job")), str(foreign), "what is said of a foreign job")
        expect_equal((await explain(f, "job", tenant=f.other)).state, READY, "what its owner sees")
        expect_equal((await explain(f, "never")).state, None, "state of a job that never was")


@rule("EXPLAIN-1")
async def a_quota_that_is_reached_is_a_note(h: Harness) -> None:
    """Of the queue or of the tenant as a whole: it holds no waiting job back, and comes last. [TENANT-5]"""
    async with h.frozen() as f:
        await serve(f)
        await f.queued("job")
        await f.store.set_tenant(f.tenant, TenantSettings(f.queue, max_waiting=2))
        await expect_causes(f, READY, "next")
        await f.queued("second")
        await expect_causes(f, READY, "next", "quota")
        cause = expect_some((await explain(f, "job")).has("quota"), "the cause")
        expect_equal((cause.reason, cause.limit, cause.count), ("max_waiting", 2, 2), "the quota")
        await f.store.set_tenant(f.tenant, TenantSettings(max_waiting=2))
        await expect_causes(f, READY, "next", "quota", "quota")
        await f.claim_one("job")
        await expect_causes(f, READY, "next", id="second")
        many = f.name("t")
        await f.store.enqueue([NewJob(JobKey(many, f"q{n}", "job"), Envelope("x", b"")) for n in range(PAGE_LIMIT + 2)])
        await f.store.set_tenant(many, TenantSettings(max_waiting=PAGE_LIMIT + 2))
        expect_some((await explain(f, "job", "q1", many)).has("quota"), "a quota over more queues than one page has")


def plan_of_three(h: Harness) -> Plan:
    """Two steps, and a third that waits for both."""
    envelope = Envelope("conformance", b"{}")
    steps = [Step(name, h.queue, envelope) for name in ("a", "b")]
    return Plan(VERSION, "flow", (*steps, Step("c", h.queue, envelope, (0, 1))))


@rule("EXPLAIN-1")
async def a_flow_and_its_step_say_which_steps_they_wait_for(h: Harness) -> None:
    """A step that is no job yet is blocked by the open ones before it. A foreign tenant sees neither."""
    async with h.frozen() as f:
        await serve(f)
        key, plan = JobKey(f.tenant, FLOWS, "flow-1"), plan_of_three(f)
        await start(f, flow_job(key, plan, "request", HOUR, None))
        flow = await f.claim_one("flow-1", queue=FLOWS)
        for place in (0, 1):
            await start(f, step_job(flow, plan, place))
        cause = await expect_causes(f, JobState.BLOCKED, "steps", id="flow-1/c", since=flow.enqueued_at)
        expect_equal((cause.flow, cause.steps), ("flow-1", ["a", "b"]), "what the step waits for")
        await expect_causes(f, READY, "next", "flow", id="flow-1/a")
        f.accepted(await f.complete(await f.claim_one("flow-1/a")), JobState.COMPLETED)
        cause = await expect_causes(f, JobState.BLOCKED, "steps", id="flow-1/c")
        expect_equal(cause.steps, ["b"], "what the step waits for, with one completed")
        await expect_causes(f, LEASED, "leased", "steps", id="flow-1", queue=FLOWS)
        waits = expect_some((await explain(f, "flow-1", FLOWS)).has("steps"), "the cause")
        expect_equal(waits.steps, ["b"], "what the flow waits for")
        expect_equal((await explain(f, "flow-1/c", tenant=f.other)).state, None, "what a foreign tenant sees")
        expect_equal((await explain(f, "flow-1/d")).state, None, "state of a step that the flow does not have")


async def start(h: Harness, new: NewJob) -> None:
    """Enqueue what upkeep would."""
    (answer,) = await h.store.enqueue([new])
    expect_a(answer, Queued, "enqueue")
