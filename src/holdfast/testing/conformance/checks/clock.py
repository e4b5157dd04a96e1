"""TIME-1: only the store's clock decides."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

from msgspec.structs import replace

from holdfast.core.errors import LeaseExpired, Unsupported
from holdfast.core.job import HOUR, SECOND, Backoff, Extended, JobState
from holdfast.core.policy import TypeInfo
from holdfast.ids import Ids
from holdfast.opening import make_store
from holdfast.queue.queue import Queue
from holdfast.store import WorkerInfo
from holdfast.testing.conformance.expect import Broken, expect, expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule


@rule("TIME-1")
async def every_instant_comes_from_the_store_clock(h: Harness) -> None:
    """The instants of enqueue, claim, error, end, expiry and event are between two reads of the clock."""
    await h.advance(5 * HOUR)
    before = await h.now()
    job = await h.leased(max_attempts=2)
    await h.retry(job, delay_ms=0)
    second = await h.claim_one(queue=job.queue)
    await h.extend(second, HOUR)
    running = await h.get(job.key)
    await h.fail(second)
    ended = await h.get(job.key)
    after = await h.now()
    events = await h.history(job.key)
    instants = {
        "enqueued_at": ended.enqueued_at,
        "visible_at": job.visible_at,
        "claimed_at": second.claimed_at or 0,
        "finished_at": ended.finished_at or 0,
        "first lease": job.deadline - LEASE,
        "second lease": second.deadline - LEASE,
        "extension": running.deadline - HOUR,
        **{f"error {number}": error.at for number, error in enumerate(ended.errors)},
        **{f"event {number}": event.at for number, event in enumerate(events)},
    }
    for name, instant in instants.items():
        expect_between(instant, before, after, name)


@contextmanager
def _wrong_clock(off_s: int) -> Generator[None]:
    """Set every wall clock of this process wrong."""
    seconds, nanoseconds = time.time, time.time_ns
    with (
        patch("time.time", lambda: seconds() + off_s),
        patch("time.time_ns", lambda: nanoseconds() + off_s * 1_000_000_000),
        # Generated ids never go back: this process's generator must not see an hour in the future.
        patch("holdfast.queue.enqueue.new_id", Ids().next),
    ):
        yield


@rule("TIME-1")
async def a_callers_clock_an_hour_off_changes_nothing(h: Harness) -> None:
    """Neither a producer that enqueues nor a worker that claims, extends and acknowledges is affected.

    The store's clock is frozen: only the caller's is wrong, even for a store that uses the clock of this process.
    """
    for off_s in (-3600, 3600):
        async with h.frozen() as f, Queue(store=f.store, tenant=f.tenant, name=f.queue) as queue:
            now = await f.now()
            with _wrong_clock(off_s):
                await f.queued("now")
                await f.queued("later", delay_ms=HOUR // 2)
                await queue.enqueue({}, id="by-queue", delay=timedelta(minutes=30))
                job = await f.claim_one("now")
                await f.claim_none()
                extended = await f.extend(job, HOUR)
                h.accepted(await f.complete(job), JobState.COMPLETED)
            expect_equal(job.deadline, now + LEASE, f"deadline with a clock {off_s:+} s off")
            expect_equal(extended, Extended(now + HOUR, now), f"extension with a clock {off_s:+} s off")
            expect_equal((await f.get(job.key)).finished_at, now, f"time of the end with a clock {off_s:+} s off")
            for id in ("later", "by-queue"):
                due_at = (await f.get(f.key(id))).visible_at
                expect_equal(due_at, now + HOUR // 2, f"when {id!r} is due, enqueued with a clock {off_s:+} s off")


@rule("TIME-1")
async def a_clock_that_jumps_ahead_loses_nothing(h: Harness) -> None:
    """Leases end early and are not accepted late. No job is lost, and each runs again."""
    await h.queued(*(f"job-{number}" for number in range(10)), max_attempts=3)
    await h.queued("later", delay_ms=2 * HOUR)
    held = await h.claim(5)
    await h.advance(3 * HOUR)
    for job in held:
        expect_a(await h.complete(job), LeaseExpired, "an acknowledgement after the clock jumped past the deadline")
    await h.store.reap(1000, 0.0)
    await h.advance(DELAY)
    jobs = await h.claim(20)
    expect_equal(len(jobs), 11, "jobs to run after the clock jumped")
    attempts = sorted(job.attempts for job in jobs)
    expect_equal(attempts, [1] * 6 + [2] * 5, "attempt numbers after the clock jumped")
    for job in jobs:
        h.accepted(await h.complete(job), JobState.COMPLETED)


@rule("TIME-1")
async def a_clock_that_jumps_back_loses_nothing(h: Harness) -> None:
    """Tokens still grow, events keep their order, leases are bounded, and delays are counted again."""
    async with h.frozen(keep_events="1000") as f:
        await f.queued("a", "b", max_attempts=3)
        held = await f.claim_one("a", lease_ms=LEASE)
        done = await f.leased(lease_ms=LEASE)
        await f.advance(-HOUR)
        now = await f.now()
        h.accepted(await f.complete(done), JobState.COMPLETED)
        queue = f.name("q")
        await f.queued("c", queue=queue)
        second = await f.claim_one("c", queue=queue)
        expect(second.token > held.token, "a token from before the jump was granted again")
        expect_equal(second.deadline, now + LEASE, "deadline of a lease granted after the jump")
        h.accepted(await f.complete(second), JobState.COMPLETED)
        await f.advance(HOUR + LEASE)
        await f.store.reap(1000, 0.0)
        await f.advance(DELAY)
        got = await f.claim(5)
        expect_equal(sorted(job.id for job in got), ["a", "b"], "jobs to run when the clock has caught up")
        kinds = await f.kinds(f.key("a"))
        expect_equal(kinds, ["enqueued", "claimed", "expired", "claimed"], "events of a job over the jump")


@rule("TIME-1")
async def a_running_test_clock_can_be_moved(h: Harness) -> None:
    """It never stops, and a shift moves it by exactly the given time."""
    before = await h.now()
    await h.advance(10 * SECOND)
    after = await h.now()
    expect_between(after - before, 10 * SECOND, 20 * SECOND, "how far a shift of 10 s moved the clock")
    async with h.frozen() as f:
        first = await f.now()
        expect_equal(await f.now(), first, "a frozen clock")
        await f.advance(1)
        for store in (f.store, *await f.handles(2)):
            expect_equal(await store.now(), first + 1, "a frozen clock moved by 1 ms, by every handle")


@rule("TIME-1")
async def only_a_test_clock_can_be_moved(h: Harness) -> None:
    """Without `test_clock`, no call moves it."""
    store = make_store(h.spaces.url(h.name("real")))
    await store.open()
    try:
        await store.shift_clock(1)
    except Unsupported:
        return
    finally:
        await store.close()
    raise Broken("the clock of a store was shifted that was not opened with test_clock")


@rule("TIME-1")
async def a_worker_counts_as_live_until_its_last_beat_expires(h: Harness) -> None:
    """The store's clock decides, to the millisecond. It can sign off earlier. The tenants that it serves see it."""
    async with h.frozen() as f:
        types = (TypeInfo("t", f.queue, 1, Backoff(1000, 3.0, 9000, "none"), 2500, 8, 60_000), TypeInfo(""))
        mine = WorkerInfo("w1", f.tenant, "host", 1, (f.queue,), 4, 0, types=types)
        all_, other = WorkerInfo("w2", None, "host", 2, (), 1, 0), WorkerInfo("w3", f.other, "host", 3, (), 1, 0)
        start = await f.now()
        for worker in (mine, all_, other):
            await f.store.beat(worker, 10 * SECOND)

        async def live(tenant: str | None) -> list[tuple[str, int, int]]:
            return [(w.worker_id, w.started_at - start, w.seen_at - start) for w in await f.store.workers(tenant)]

        expect_equal(await live(f.tenant), [("w1", 0, 0), ("w2", 0, 0)], "workers that serve the tenant")
        await f.advance(6 * SECOND)
        await f.store.beat(replace(mine, held=3), 10 * SECOND)
        expect_equal([w.held for w in await f.store.workers(f.tenant)], [3, 0], "what the workers said last")
        expect_equal([w.types for w in await f.store.workers(f.tenant)], [types, ()], "the types that they run")
        await f.advance(4 * SECOND - 1)
        expect_equal([w for w, _, _ in await live(None)], ["w1", "w2", "w3"], "workers before a beat is over")
        await f.advance(1)
        expect_equal(await live(None), [("w1", 0, 6 * SECOND)], "workers once some beats are over")
        await f.store.beat(mine, 0)
        expect_equal(await live(None), [], "workers once the last signed off")
        await f.store.beat(mine, SECOND)
        expect_equal(await live(None), [("w1", 10 * SECOND, 10 * SECOND)], "a worker that was started again")
