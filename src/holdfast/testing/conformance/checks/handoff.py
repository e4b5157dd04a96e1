"""CLAIM-1 and related rules, for stores with direct hand-off: an enqueue leases the job to a waiting worker."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from holdfast.core.errors import JobCanceled, LeaseLost
from holdfast.core.events import Event
from holdfast.core.job import (
    HOUR,
    SECOND,
    Extended,
    Job,
    JobKey,
    JobState,
    Queued,
    Reported,
)
from holdfast.store import Hint
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule
from holdfast.testing.conformance.waiting_worker import waiting_worker

READY, LEASED, SCHEDULED = JobState.READY, JobState.LEASED, JobState.SCHEDULED


async def states(h: Harness, *ids: str, **where: str) -> list[JobState]:
    """The states of some jobs, in order."""
    return [(await h.get(h.key(id, **where))).state for id in ids]


async def leased_of(h: Harness, keys: list[JobKey]) -> int:
    """How many of these jobs are leased."""
    return sum(job is not None and job.state is LEASED for job in await h.store.get(keys))


def alike(job: Job) -> Job:
    """A record without the fields that differ between any two jobs."""
    return replace(job, tenant="", queue="", seq=0, token=0, worker_id="")


def alike_events(events: list[Event]) -> list[Event]:
    """Events without the fields that differ between any two jobs."""
    return [replace(event, queue="", tenant="", token=0, offset="", worker_id="") for event in events]


# CLAIM-1, RETRY-1, EVENT-1 ------------------------------------------------------------------------------------


@rule("CLAIM-1")
async def a_handed_off_job_is_leased_as_by_a_claim(h: Harness) -> None:
    """Token, deadline, attempt, worker and all other fields agree, for every option of an enqueue."""
    async with h.frozen() as f, waiting_worker(f, "worker-with-a-name-of-its-own") as worker:
        for n, whose in enumerate((f.tenant, None)):
            for options in (
                {},
                {"priority": 9, "max_attempts": 1, "type": "a/b"},
                {"priority": 0, "max_attempts": 7, "request_id": "job", "payload": b"\x00\xff" * 100},
                {"request_id": "another", "result_ttl_ms": 0, "headers": {"a": "b"}, "timeout_ms": 5 * SECOND},
                {"run_at": 1, "type": ""},
            ):
                own, twin = f.name("own"), f.name("twin")
                await f.queued("job", queue=twin, **options)
                claimed = await f.claim_one("job", queue=twin, worker="worker-2")
                worker.jobs.clear()
                await worker.register(1, queue=own, tenant=whose)
                answer = expect_a(await f.enqueue("job", queue=own, **options), Queued, "enqueue while a worker waits")
                expect_equal(answer.id, "job", "id of a handed-off job")
                (job,) = await worker.received(1)
                now = await f.now()
                expect_equal(job, await f.get(f.key(queue=own)), "the job as it came, and its record")
                expect_equal(alike(job), alike(claimed), f"a handed-off job ({n}, {options}), and one that was claimed")
                expect_equal(job.worker_id, "worker-with-a-name-of-its-own", "worker of a handed-off job")
                expect_equal((job.state, job.attempts), (LEASED, 1), "state and attempts of a handed-off job")
                expect_equal((job.deadline, job.claimed_at), (now + LEASE, now), "deadline and start of its lease")
                expect_equal(worker.times[-1], now, "the store's time that came with it")
                expect(job.token > claimed.token, "the token of a handed-off job is not greater than those before")
                later = await f.leased()
                expect(later.token > job.token, "a token after a delivery is not greater")
                made, twins = await f.history(job.key), await f.history(claimed.key)
                expect_equal([event.kind for event in made], ["enqueued", "claimed"], "events of a handed-off job")
                expect_equal(alike_events(made), alike_events(twins), "events of a handed-off and of a claimed job")
                expect_equal(made[1].token, job.token, "token in the event")
                expect_equal([event.worker_id for event in made], ["", job.worker_id], "workers in the events")


@rule("EVENT-1")
async def a_handoff_makes_two_events_in_order_for_every_reader(h: Harness) -> None:
    """Read one by one, by tenant or for all, each is returned once. The log continues behind them."""
    async with waiting_worker(h) as worker:
        await worker.register(3)
        before = await h.store.last_offset()
        for id in ("a", "b", "c"):
            await h.queued(id)
        end = await h.store.last_offset()
        want = [(kind, id) for id in ("a", "b", "c") for kind in ("enqueued", "claimed")]
        for tenant in (h.tenant, None):
            for page in (1, 500):
                found = await h.events(tenant, after=before, page=page)
                mine = [(event.kind, event.job_id) for event in found if event.tenant == h.tenant]
                expect_equal(mine, want, f"events of three deliveries, {page} at a time")
        expect_equal(await h.events(after=end), [], "events behind the end of the log")
        await h.queued("d", delay_ms=HOUR)
        after = [(event.kind, event.job_id) for event in await h.events(after=end)]
        expect_equal(after, [("enqueued", "d")], "what came after the end of the log")


@rule("EVENT-2")
async def events_of_handoffs_are_counted_in_the_log(h: Harness) -> None:
    """Trimming keeps the right number of events, whether they were appended two at a time or one by one."""
    async with h.frozen(keep_events="12") as f, waiting_worker(f) as worker:
        for round_ in range(2):
            # The newest events are first completions, then deliveries.
            await worker.register(8)
            for n in range(8):
                await f.queued(f"{round_}-{n}")
            jobs = (await worker.received(8 * round_ + 8))[8 * round_ :]
            want = [(kind, f"{round_}-{n}") for n in range(8) for kind in ("enqueued", "claimed")]
            if round_ == 0:
                want += [("completed", f"0-{n}") for n in range(8)]
                for job in jobs:
                    f.accepted(await f.complete(job), JobState.COMPLETED)
            while (await f.store.prune(1000)).more:
                pass
            everything = (await f.store.events(None, None, 500)).events
            kept = [(event.kind, event.job_id) for event in everything if event.tenant == f.tenant]
            expect_equal(len(everything), 12, "events that trimming kept")
            # The warm-up of the worker used jobs of another tenant.
            expect_equal(kept, want[-len(kept) :], "the tenant's part of them")


@rule("EVENT-2")
async def a_hint_is_sent_when_a_handoff_makes_the_log_grow(h: Harness) -> None:
    """A reader that follows the log gets a hint."""
    async with waiting_worker(h) as worker:
        await worker.register(1)
        with h.listening() as hints:
            await h.queued("first", queue=h.name("q"))
            await hints.expect(Hint.EVENTS, h.key("first"), "at first")
            await hints.forget()
            await asyncio.sleep(0.1)
            hints.signals.clear()
            await h.queued("job")
            await hints.expect(Hint.EVENTS, h.key("job"), "after a delivery")


@rule("STATE-1")
async def a_handed_off_job_is_counted_and_listed_as_leased(h: Harness) -> None:
    """It is never counted, listed or claimed as a waiting job. Its tenant and queue are known."""
    async with waiting_worker(h) as worker:
        tenant = h.name("t")
        await worker.register(1, tenant=tenant)
        await h.queued("job", tenant=tenant)
        (job,) = await worker.received(1)
        (stats,) = await h.store.stats(tenant)
        expect_equal(stats.queue, h.queue, "queue of a handed-off job")
        counts = {state: count for state, count in stats.counts.items() if count}
        expect_equal(counts, {LEASED: 1}, "counts after a delivery")
        expect_equal(stats.oldest_ready_at, None, "oldest ready job after a delivery")
        expect(tenant in await h.store.tenants(), "the tenant of a handed-off job is not listed")
        for whose in (tenant, None):
            await h.claim_none(tenant=whose)
        h.accepted(await h.complete(job), JobState.COMPLETED)
        (stats,) = await h.store.stats(tenant)
        counts = {state: count for state, count in stats.counts.items() if count}
        expect_equal(counts, {JobState.COMPLETED: 1}, "counts after its end")


# LEASE, CANCEL ------------------------------------------------------------------------------------------------


@rule("LEASE-1")
async def a_handed_off_job_accepts_only_its_token(h: Harness) -> None:
    """With its token, the worker can extend, report, and acknowledge in every way. No other token is accepted."""
    async with waiting_worker(h) as worker:
        for outcome, state in (
            ("complete", JobState.COMPLETED), ("fail", JobState.FAILED), ("retry", JobState.RETRYING),
            ("release", READY),
        ):  # fmt: skip
            queue = h.name("q")
            worker.jobs.clear()
            await worker.register(1, queue=queue)
            await h.queued("job", queue=queue)
            (job,) = await worker.received(1)
            expect_a(await h.finish(job, "complete", token=job.token + 1), LeaseLost, "another token")
            expect_a(await h.extend(job, 2 * LEASE), Extended, "extending a handed-off job")
            expect_a(await h.report(job), Reported, "progress of a handed-off job")
            for _ in range(2):
                h.accepted(await h.finish(job, outcome), state)  # pyright: ignore[reportArgumentType]
            kinds = [kind for kind in await h.kinds(job.key) if kind not in ("extended", "progressed")]
            expect_equal(len(kinds), 3, "events of a handed-off job that was acknowledged twice")
            if state is READY:
                again = await h.claim_one("job", queue=queue)
                expect_equal(again.attempts, 1, "attempts after a release gave the first back")
                expect(again.token > job.token, "the token did not grow")


@rule("LEASE-3")
async def a_handed_off_job_is_claimable_again_after_its_lease(h: Harness) -> None:
    """The reaper and any claim find its lease expired, to the millisecond. The lease counts as an attempt."""
    async with h.frozen() as f, waiting_worker(f) as worker:
        for by_reaper in (True, False):
            for whose in (f.tenant, None):
                queue = f.name("q")
                worker.jobs.clear()
                await worker.register(1, queue=queue, tenant=whose)
                await f.queued("job", queue=queue, max_attempts=2)
                (job,) = await worker.received(1)
                await f.claim_none(queue=f.name("q"))
                page = await f.claim_page(1, queue=queue)
                expect_equal(page.next_at, job.deadline, "when to claim again")
                await f.advance(LEASE - 1)
                expect_equal((await f.store.reap(100, 0.0)).jobs, [], "leases that ended before their time")
                await f.advance(1)
                if by_reaper:
                    expect_equal((await f.store.reap(100, 0.0)).jobs, [job.key], "leases that ended at their time")
                else:
                    await f.claim_none(queue=f.name("q"))
                await f.expect_state(job.key, JobState.RETRYING, "after its lease ran out")
                await f.advance(DELAY)
                again = await f.claim_one("job", queue=queue, tenant=whose)
                expect_equal(again.attempts, 2, "attempts after a delivery and a claim")
                expect_equal((await f.store.reap(100, 0.0)).jobs, [], "leases that ended")
                f.accepted(await f.complete(again), JobState.COMPLETED)


@rule("LEASE-3")
async def the_lease_of_a_handoff_hides_no_shorter_lease(h: Harness) -> None:
    """With a claimed and a handed-off job in one queue, each lease is found at its own time."""
    for own in (True, False):
        async with h.frozen() as f, waiting_worker(f) as worker:
            whose = f.tenant if own else None
            queue = f.name("q")
            await f.queued("short", queue=queue)
            short = await f.claim_one("short", queue=queue, tenant=whose, lease_ms=5 * SECOND)
            await worker.register(1, queue=queue, tenant=whose)
            await f.queued("long", queue=queue)
            (long,) = await worker.received(1)
            await f.advance(5 * SECOND)
            expect_equal((await f.store.reap(100, 0.0)).jobs, [short.key], "leases that ended first")
            await f.advance(LEASE - 5 * SECOND)
            expect_equal((await f.store.reap(100, 0.0)).jobs, [long.key], "leases that ended then")


@rule("CANCEL-1")
async def a_handed_off_job_can_be_canceled(h: Harness) -> None:
    """The lease ends with it, its worker gets a hint, and the id is free."""
    async with waiting_worker(h) as worker:
        await worker.register(2)
        await h.queued("job")
        (job,) = await worker.received(1)
        expect_equal(await h.cancel(job.key, only_waiting=True), "processing", "cancel of waiting jobs alone")
        with h.listening() as hints:
            expect_equal(await h.cancel(job.key), "canceled", "cancel of a handed-off job")
            await hints.expect(Hint.CANCELED, job.key, "when a handed-off job was canceled")
        expect_a(await h.complete(job), JobCanceled, "completing a canceled job")
        expect_equal(
            await h.store.reap(100, 0.0) and await h.kinds(job.key), ["enqueued", "claimed", "canceled"], "events"
        )
        await h.queued("job")
        again = (await worker.claim(1) or await worker.received(2))[-1]
        expect(again.token > job.token, "the token did not grow with the next life of the id")
        expect_equal(again.attempts, 1, "attempts of the next life")
