"""RETRY: what counts as an attempt, and when the next one comes."""

from __future__ import annotations

from holdfast.core.errors import LeaseLost, Unsupported
from holdfast.core.job import HOUR, SECOND, AttemptError, Backoff, Jitter, Job, JobState
from holdfast.core.retry import delay_ms, spread
from holdfast.testing.conformance.expect import Skipped, expect, expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import BOOM, DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule


@rule("RETRY-1")
async def attempts_count_lease_grants_up_to_max_attempts(h: Harness) -> None:
    """A job runs `max_attempts` times in total. Its last failure ends it, with the reason."""
    await h.queued("job", max_attempts=3)
    key = h.key("job")
    for attempt in (1, 2, 3):
        job = await h.claim_one("job")
        expect_equal(job.attempts, attempt, "attempt number of a claim")
        state = JobState.RETRYING if attempt < 3 else JobState.FAILED
        h.accepted(await h.retry(job), state)
        expect_equal((await h.get(key)).attempts, attempt, "attempts in the record")
        await h.advance(DELAY)
    await h.claim_none()
    job = await h.get(key)
    expect_equal((job.state, job.reason, job.attempts), (JobState.FAILED, "max_attempts", 3), "end of the job")
    kinds = ["enqueued", "claimed", "retried", "claimed", "retried", "claimed", "failed"]
    history = await h.history(key)
    expect_equal([event.kind for event in history], kinds, "events")
    expect_equal([event.attempt for event in history], [0, 1, 1, 2, 2, 3, 3], "attempt numbers in the events")


@rule("RETRY-1")
async def a_single_attempt_is_never_retried_and_four_are_the_default(h: Harness) -> None:
    """With max_attempts 1 the first failure ends the job; without the option, the fourth."""
    once = await h.leased(max_attempts=1)
    h.accepted(await h.retry(once), JobState.FAILED)
    queue = h.name("q")
    await h.queued("job", queue=queue)
    runs = 0
    while jobs := await h.claim(1, queue=queue):
        runs += 1
        await h.retry(jobs[0], delay_ms=0)
        expect(runs <= 4, "a job of the default max_attempts ran a fifth time")
    expect_equal(runs, 4, "runs by default")
    await h.expect_state(h.key("job", queue=queue), JobState.FAILED, "after four runs")


@rule("RETRY-1")
async def a_job_whose_last_attempt_timed_out_says_so(h: Harness) -> None:
    """The job failed for `timeout` if its last attempt timed out."""
    job = await h.leased(max_attempts=1)
    h.accepted(await h.retry(job, timed_out=True), JobState.FAILED)
    expect_equal((await h.get(job.key)).reason, "timeout", "reason")
    expect_equal((await h.history(job.key))[-1].data["reason"], "timeout", "reason in the event")
    again = await h.leased(max_attempts=2)
    h.accepted(await h.retry(again, timed_out=True), JobState.RETRYING)


@rule("RETRY-2")
async def a_job_that_kills_its_worker_becomes_a_dead_letter(h: Harness) -> None:
    """Every expired lease counts. After the last one the job has failed. Other jobs are not delayed."""
    await h.queued("killer", max_attempts=3, priority=9)
    for attempt in (1, 2, 3):
        killer = await h.claim_one("killer")
        expect_equal(killer.attempts, attempt, "attempt number")
        bystander = f"bystander-{attempt}"
        await h.queued(bystander)
        h.accepted(await h.complete(await h.claim_one(bystander)), JobState.COMPLETED)
        await h.advance(LEASE)
        await h.store.reap(1000, 0.0)
        state = JobState.RETRYING if attempt < 3 else JobState.FAILED
        await h.expect_state(killer.key, state, f"after lease {attempt} expired")
        await h.advance(DELAY)
    await h.claim_none()
    job = await h.get(h.key("killer"))
    expect_equal((job.reason, job.attempts), ("lease_expired", 3), "reason and attempts")
    expect_equal([error.attempt for error in job.errors], [1, 2, 3], "attempts in the error history")
    expect(all(error.type == "LeaseExpired" for error in job.errors), "an expired lease is not in the error history")
    kinds = ["enqueued", "claimed", "expired", "claimed", "expired", "claimed", "failed"]
    history = await h.history(job.key)
    expect_equal([event.kind for event in history], kinds, "events")
    expect_equal(history[-1].data["reason"], "lease_expired", "reason in the event")
    expect_equal(await h.list_ids(JobState.FAILED), ["killer"], "dead letters")


@rule("RETRY-2")
async def expired_and_failed_attempts_count_the_same(h: Harness) -> None:
    """An expired attempt and a failed one use two attempts, in either order."""
    for order in (("expire", "retry"), ("retry", "expire")):
        queue = h.name("q")
        await h.queued("job", queue=queue, max_attempts=2)
        for how in order:
            job = await h.claim_one("job", queue=queue)
            if how == "retry":
                await h.retry(job)
            else:
                await h.advance(LEASE)
                await h.store.reap(1000, 0.0)
            await h.advance(DELAY)
        job = await h.get(h.key("job", queue=queue))
        expect_equal((job.state, job.attempts, len(job.errors)), (JobState.FAILED, 2, 2), f"end by {order}")
        reason = "max_attempts" if order[-1] == "retry" else "lease_expired"
        expect_equal(job.reason, reason, f"reason of an end by {order}")


POLICIES: tuple[tuple[Backoff, float, list[int]], ...] = (
    (Backoff(1000, 2.0, 60_000, "none"), 0.9, [1000, 2000, 4000, 8000]),
    (Backoff(1000, 3.0, 5_000, "none"), 0.0, [1000, 3000, 5000, 5000]),
    (Backoff(1500, 1.0, 60_000, "none"), 0.5, [1500, 1500, 1500, 1500]),
    (Backoff(1000, 2.0, 60_000, "full"), 0.25, [250, 500, 1000, 2000]),
    (Backoff(1000, 2.0, 3_000, "full"), 0.5, [500, 1000, 1500, 1500]),
    (Backoff(1000, 2.0, 60_000, "equal"), 0.5, [750, 1500, 3000, 6000]),
    (Backoff(1001, 1.5, 60_000, "equal"), 0.3, [650, 975, 1463, 2195]),
    (Backoff(0, 2.0, 60_000, "full"), 0.9, [0, 0, 0, 0]),
)


@rule("RETRY-3")
async def the_delay_follows_the_policy_of_the_message(h: Harness) -> None:
    """The delay is min(cap, base * factor^(n-1)), with jitter none, equal or full from the caller's random number."""
    async with h.frozen() as f:
        for backoff, random, delays in POLICIES:
            queue = f.name("q")
            await f.queued("job", queue=queue, max_attempts=10, backoff=backoff)
            for delay in delays:
                job = await f.claim_one("job", queue=queue)
                await f.advance(7)
                now = await f.now()
                h.accepted(await f.retry(job, random=random), JobState.RETRYING)
                again = await f.get(job.key)
                expect_equal(again.visible_at - now, delay, f"delay after attempt {job.attempts} of {backoff}")
                event = (await f.history(job.key))[-1]
                expect_equal((event.kind, event.data["visible_at"]), ("retried", again.visible_at), "event")
                await f.advance(delay)


@rule("RETRY-3")
async def an_explicit_delay_wins(h: Harness) -> None:
    """It overrides the policy, longer or shorter. 0 means at once."""
    async with h.frozen() as f:
        for delay in (0, 1, 90, 10 * HOUR):
            job = await f.leased(backoff=Backoff(5 * SECOND, 2.0, 60 * SECOND, "none"))
            h.accepted(await f.retry(job, delay_ms=delay, random=0.5), JobState.RETRYING)
            expect_equal((await f.get(job.key)).visible_at - await f.now(), delay, f"explicit delay of {delay}")
            if delay:
                await f.advance(delay - 1)
                await f.claim_none(queue=job.queue)
                await f.advance(1)
            expect_equal((await f.claim_one(queue=job.queue)).attempts, 2, "attempt number")


@rule("RETRY-3")
async def the_reaper_and_a_claim_use_the_stored_policy(h: Harness) -> None:
    """After an expired lease the job waits by its own policy, with the reaper's random number."""
    jitters: tuple[Jitter, ...] = ("none", "equal", "full")
    async with h.frozen() as f:
        for jitter in jitters:
            for by_claim in (False, True):
                backoff = Backoff(4000, 3.0, 10_000, jitter)
                job = await f.leased(backoff=backoff, lease_ms=LEASE)
                for attempt in (1, 2):
                    await f.advance(LEASE)
                    now = await f.now()
                    if by_claim:
                        await f.claim_none(queue=f.name("q"), random=0.7)
                    else:
                        await f.store.reap(1000, 0.7)
                    delay = delay_ms(backoff, attempt, spread(0.7, 0))
                    waits = await f.get(job.key)
                    shown = JobState.RETRYING if delay else JobState.READY
                    expect_equal(waits.state, shown, "state after an expired lease")
                    what = f"delay after expired attempt {attempt} with jitter {jitter}, by claim: {by_claim}"
                    expect_equal(waits.visible_at - now, delay, what)
                    await f.advance(delay)
                    job = await f.claim_one(queue=job.queue, lease_ms=LEASE)
                f.accepted(await f.complete(job))


@rule("RETRY-3")
async def one_random_number_is_spread_over_a_batch(h: Harness) -> None:
    """Jobs whose leases end together do not retry together: each one's delay depends on its place in the batch."""
    backoff = Backoff(100_000, 1.0, 100_000, "full")
    async with h.frozen() as f:
        await f.queued("a", "b", "c", backoff=backoff)
        await f.claim(3, lease_ms=LEASE)
        await f.advance(LEASE)
        now = await f.now()
        await f.store.reap(1000, 0.7)
        waits = [(await f.get(f.key(id))).visible_at - now for id in ("a", "b", "c")]
        expect_equal(waits, [delay_ms(backoff, 1, spread(0.7, place)) for place in range(3)], "delays of a batch")


@rule("RETRY-4")
async def a_permanent_error_fails_at_once(h: Harness) -> None:
    """It ends the job whatever attempts are left. The record and the event have the reason."""
    job = await h.leased(max_attempts=50)
    before = await h.now()
    h.accepted(await h.fail(job, AttemptError("ValueError", "bad input", "Traceback ...")), JobState.FAILED)
    ended = await h.get(job.key)
    expect_equal((ended.state, ended.reason, ended.attempts), (JobState.FAILED, "permanent", 1), "end")
    expect_equal([(e.type, e.message) for e in ended.errors], [("ValueError", "bad input")], "errors in the record")
    expect_between(ended.finished_at or 0, before, await h.now(), "time of the end")
    event = (await h.history(job.key))[-1]
    expect_equal((event.kind, event.data["reason"]), ("failed", "permanent"), "event")
    expect_equal(event.data["error"]["type"], "ValueError", "type of the error in the event")
    expect_equal(event.data["error"]["message"], "bad input", "message of the error in the event")
    timed_out = await h.leased(max_attempts=50)
    h.accepted(await h.finish(timed_out, "fail", error=BOOM, timed_out=True), JobState.FAILED)
    expect_equal((await h.get(timed_out.key)).reason, "timeout", "reason of a failure by timeout")


@rule("RETRY-4")
async def errors_keep_type_message_and_traceback_of_each_attempt(h: Harness) -> None:
    """They also have the attempt's number and its time by the store's clock. The last 10 are kept, oldest first."""
    await h.queued("job", max_attempts=14)
    key = h.key("job")
    before_that: list[AttemptError] = []
    for attempt in range(1, 14):
        job = await h.claim_one("job")
        before = await h.now()
        await h.retry(job, AttemptError(f"Type{attempt}", f"message {attempt}", f"traceback {attempt}"), delay_ms=0)
        last = (await h.get(key)).errors[-1]
        wanted = (f"Type{attempt}", f"message {attempt}", f"traceback {attempt}", attempt)
        expect_equal((last.type, last.message, last.traceback, last.attempt), wanted, "the newest error")
        expect_between(last.at, before, await h.now(), "time of the error")
        expect_equal(len((await h.get(key)).errors), min(attempt, 10), "errors kept")
        expect_equal(job.errors, before_that, "errors of earlier attempts, as a claim gives them")
        before_that = (await h.get(key)).errors
    expect_equal([error.attempt for error in (await h.get(key)).errors], list(range(4, 14)), "attempts kept")
    h.accepted(await h.complete(await h.claim_one("job")), JobState.COMPLETED)
    expect_equal(len((await h.get(key)).errors), 10, "errors of a job that completed in the end")


@rule("RETRY-5")
async def a_release_returns_the_attempt_and_makes_the_job_visible_at_once(h: Harness) -> None:
    """Any number of releases uses no attempts and leaves no errors."""
    await h.queued("job", max_attempts=2)
    for _ in range(5):
        job = await h.claim_one("job")
        expect_equal(job.attempts, 1, "attempt number after releases")
        before = await h.now()
        h.accepted(await h.release(job), JobState.READY)
        waits = await h.get(job.key)
        expect_equal((waits.state, waits.attempts, len(waits.errors)), (JobState.READY, 0, 0), "record after a release")
        expect_between(waits.visible_at, before, await h.now(), "visible from")
        event = (await h.history(job.key))[-1]
        expect_equal((event.kind, event.data["visible_at"]), ("released", waits.visible_at), "event")
    for state in (JobState.RETRYING, JobState.FAILED):
        h.accepted(await h.retry(await h.claim_one("job"), delay_ms=0), state)


@rule("RETRY-5")
async def a_release_can_return_all_earlier_attempts(h: Harness) -> None:
    """This is for system jobs: leases lost with their workers must not use up their attempts."""
    await h.queued("job", max_attempts=3)
    for _ in range(2):
        h.accepted(await h.retry(await h.claim_one("job"), delay_ms=0), JobState.RETRYING)
    job = await h.claim_one("job")
    expect_equal(job.attempts, 3, "attempt number")
    try:
        h.accepted(await h.release(job, forgive=True), JobState.READY)
    except Unsupported as refused:
        raise Skipped("the store cannot return earlier attempts") from refused
    waits = await h.get(job.key)
    expect_equal((waits.attempts, len(waits.errors)), (0, 2), "attempts and errors after a release that forgives")
    expect_equal((await h.claim_one("job")).attempts, 1, "attempt number after it")


@rule("RETRY-5")
async def a_release_with_a_delay_is_scheduled(h: Harness) -> None:
    """As with `RetryLater`: the attempt does not count, and the job waits for the given time."""
    async with h.frozen() as f:
        job = await f.leased(max_attempts=1)
        now = await f.now()
        h.accepted(await f.release(job, delay_ms=90), JobState.SCHEDULED)
        waits = await f.get(job.key)
        expect_equal((waits.state, waits.attempts), (JobState.SCHEDULED, 0), "record after a release with a delay")
        expect_equal(waits.visible_at, now + 90, "visible from")
        await f.advance(89)
        await f.claim_none(queue=job.queue)
        await f.advance(1)
        again = await f.claim_one(queue=job.queue)
        expect_equal(again.attempts, 1, "attempt number after a release")
        expect(again.token > job.token, "the token of a released lease was granted again")


@rule("RETRY-6")
async def a_released_job_shows_its_reason_and_since_when(h: Harness) -> None:
    """The event, the record and the next claim have both. The same reason keeps the time, another one resets it."""
    async with h.frozen() as f:
        job = await f.leased(max_attempts=1)
        expect_equal((job.released_for, job.first_released_at), ("", 0), "reason of a job that was never released")
        first = await f.now()
        for reason, since in (("unknown_type", 0), ("unknown_type", 0), ("busy/now", 200), ("unknown_type", 300)):
            h.accepted(await f.release(job, reason=reason, delay_ms=100), JobState.SCHEDULED)
            waits = await f.get(job.key)
            wanted = (reason, first + since)
            expect_equal((waits.released_for, waits.first_released_at), wanted, "reason in the record")
            expect_equal((waits.attempts, len(waits.errors)), (0, 0), "attempts and errors after a release")
            event = (await f.history(job.key))[-1]
            data = {"visible_at": waits.visible_at, "reason": reason}
            expect_equal((event.kind, event.attempt, event.data), ("released", 1, data), "event")
            await f.advance(100)
            job = await f.claim_one(queue=job.queue)
            expect_equal((job.released_for, job.first_released_at), wanted, "reason as a claim gives it")


@rule("RETRY-6")
async def the_reason_of_a_release_lasts_until_another_worker_runs_the_job(h: Harness) -> None:
    """A retry, an expired lease, a replay, or a release without a reason ends it: that worker knew the job."""
    async with h.frozen() as f:
        for outcome in ("release", "retry", "expire", "replay"):
            job = await f.leased(max_attempts=3)
            h.accepted(await f.release(job, reason="unknown_type"), JobState.READY)
            job = await f.claim_one(queue=job.queue)
            if outcome == "release":
                await f.release(job)
            elif outcome == "retry":
                await f.retry(job, delay_ms=0)
            elif outcome == "replay":
                await f.fail(job)
                await f.replay(job.key)
            else:
                await f.advance(LEASE)
                await f.reap_all()
            waits = await f.get(job.key)
            expect_equal(
                (waits.released_for, waits.first_released_at), ("", 0), f"reason in the record after {outcome}"
            )
            expect("reason" not in (await f.history(job.key))[-1].data, f"{outcome} has the earlier reason")


@rule("RETRY-5")
async def a_released_lease_cannot_be_used_again(h: Harness) -> None:
    """A worker that released a job can no longer acknowledge it."""
    job = await h.leased()
    h.accepted(await h.release(job), JobState.READY)
    for answer in (await h.complete(job), await h.fail(job), await h.retry(job), await h.extend(job)):
        expect_a(answer, LeaseLost, "an acknowledgement after the release")
    await _ends(h, job)


async def _ends(h: Harness, job: Job) -> None:
    await h.expect_state(job.key, JobState.READY, "after late acknowledgements")
    h.accepted(await h.complete(await h.claim_one(queue=job.queue)), JobState.COMPLETED)
