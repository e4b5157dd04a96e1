"""LEASE: which worker may acknowledge a job, and until when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import cast

from holdfast.core.errors import HoldfastError, JobCanceled, JobNotFound, LeaseExpired, LeaseLost, Unsupported
from holdfast.core.job import HOUR, SECOND, Extended, Finish, Job, JobState, Lease, Outcome, Queued, Replayed, Reported
from holdfast.testing.conformance.expect import Skipped, expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import BOOM, DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule

OUTCOMES: tuple[Outcome, ...] = ("complete", "fail", "retry", "release")
LED_TO: dict[Outcome, JobState] = {
    "complete": JobState.COMPLETED,
    "fail": JobState.FAILED,
    "retry": JobState.RETRYING,
    "release": JobState.READY,
}


async def acknowledge(h: Harness, job: Job, verb: str, token: int | None = None) -> object:
    """Make one of the six calls that need a token."""
    if verb == "extend":
        return await h.extend(job, token=token)
    if verb == "progress":
        return await h.report(job, token=token)
    return await h.finish(job, cast("Outcome", verb), token=token, error=BOOM)


async def all_refused(
    h: Harness, job: Job, why: type[HoldfastError], what: str, *, token: int | None = None, but: str = ""
) -> None:
    """Fail unless every acknowledgement is refused with this error, which names the job, and changes nothing."""
    before = await h.find(job.key)
    async with h.no_event(f"by refused acknowledgements, {what}", tenant=job.tenant):
        for verb in (*OUTCOMES, "extend", "progress"):
            if verb == but:
                continue
            refusal = expect_a(await acknowledge(h, job, verb, token), why, f"{verb}, {what}")
            address = (getattr(refusal, "queue", None), getattr(refusal, "job_id", None))
            expect_equal(address, (job.queue, job.id), f"address in the refusal of {verb}, {what}")
        expect_equal(await h.find(job.key), before, f"record after refused acknowledgements, {what}")


# LEASE-1 ------------------------------------------------------------------------------------------------------


@rule("LEASE-1")
async def a_missing_job_answers_job_not_found(h: Harness) -> None:
    """A job that was never enqueued, was purged, or is forgotten."""
    job = await h.leased(result_ttl_ms=10 * SECOND)
    never = await h.leased()
    never.id = "never-enqueued"
    await all_refused(h, never, JobNotFound, "the job never having been there")
    h.accepted(await h.complete(job), JobState.COMPLETED)
    await h.advance(10 * SECOND)
    await all_refused(h, job, JobNotFound, "the job being forgotten")
    purged = await h.job_in(JobState.FAILED)
    expect_equal(await h.purge(purged.key), "purged", "purge")
    await all_refused(h, purged, JobNotFound, "the job being purged")


@rule("LEASE-1")
async def only_the_last_token_granted_is_valid(h: Harness) -> None:
    """An older token, one never granted, or none at all, in every state of the job."""
    job = await h.leased()
    for token in (0, -1, job.token - 1, job.token + 1, job.token + 1000):
        await all_refused(h, job, LeaseLost, f"with token {token - job.token:+} beside the granted one", token=token)
    h.accepted(await h.retry(job, delay_ms=0), JobState.RETRYING)
    second = await h.claim_one(queue=job.queue)
    await all_refused(h, job, LeaseLost, "another lease having been granted since")
    h.accepted(await h.complete(second), JobState.COMPLETED)
    await all_refused(h, job, LeaseLost, "another lease having completed the job")
    for state in (JobState.SCHEDULED, JobState.READY):
        waiting = await h.job_in(state)
        for token in (0, 1, job.token):
            await all_refused(h, waiting, LeaseLost, f"with token {token} on a job never leased", token=token)
    for state in (JobState.FAILED, JobState.CANCELED, JobState.RETRYING):
        other = await h.job_in(state)
        await all_refused(h, other, LeaseLost, f"with an older token on a {state} job", token=other.token - 1)


@rule("LEASE-1")
async def the_same_outcome_again_gets_the_first_answer_again(h: Harness) -> None:
    """This holds past the deadline and in later states of the job, without a second event or a change."""
    for outcome in OUTCOMES:
        job = await h.leased(lease_ms=LEASE, result_ttl_ms=HOUR)
        first = await h.finish(job, outcome, error=BOOM, delay_ms=0)
        h.accepted(first, LED_TO[outcome])
        before = await h.get(job.key)
        async with h.no_event(f"by a repeated {outcome}"):
            expect_equal(await h.finish(job, outcome, error=BOOM, delay_ms=0), first, f"{outcome} again")
            await h.advance(2 * LEASE)
            expect_equal(await h.finish(job, outcome, error=BOOM, delay_ms=0), first, f"{outcome} past the deadline")
            expect_equal(await h.get(job.key), before, f"record after {outcome} again")


@rule("LEASE-1")
async def the_first_answer_is_kept_even_after_the_last_attempt(h: Harness) -> None:
    """A retry that ended the job answers failed both times. A delayed release answers scheduled both times."""
    job = await h.leased(max_attempts=1)
    for _ in range(2):
        h.accepted(await h.retry(job), JobState.FAILED)
    expect_a(await h.fail(job), LeaseLost, "another outcome that led to the same state")
    expect_equal(len((await h.get(job.key)).errors), 1, "errors")
    job = await h.leased()
    for _ in range(2):
        h.accepted(await h.release(job, delay_ms=DELAY), JobState.SCHEDULED)
    await h.advance(DELAY)
    h.accepted(await h.release(job, delay_ms=DELAY), JobState.SCHEDULED)
    await h.expect_state(job.key, JobState.READY, "after its delay")


@rule("LEASE-1")
async def an_acknowledgement_that_a_batch_repeats_counts_once(h: Harness) -> None:
    """A client that repeats an outcome without an answer gets both answers, and there is one event."""
    job = await h.leased()
    answers = await h.store.finish([Finish(job.key, job.token, "retry", error=BOOM)] * 3)
    for answer in answers:
        h.accepted(answer, JobState.RETRYING)
    expect_equal(await h.kinds(job.key), ["enqueued", "claimed", "retried"], "events")
    expect_equal(len((await h.get(job.key)).errors), 1, "errors")


@rule("LEASE-1")
async def a_canceled_job_answers_job_canceled(h: Harness) -> None:
    """The holder of the lease that ended with it gets this answer, even past its deadline. Older tokens do not."""
    job = await h.job_in(JobState.CANCELED)
    await all_refused(h, job, JobCanceled, "the job being canceled")
    await h.advance(2 * LEASE)
    await all_refused(h, job, JobCanceled, "the job being canceled, past the deadline")
    released = await h.leased()
    h.accepted(await h.release(released), JobState.READY)
    await h.cancel(released.key)
    await all_refused(h, released, JobCanceled, "the job having been released, then canceled", but="release")
    h.accepted(
        await h.release(released), JobState.READY
    )  # A repeated outcome gets its first answer rather than canceled.


@rule("LEASE-1")
async def a_token_used_for_another_outcome_is_lost(h: Harness) -> None:
    """A job that was acknowledged with one outcome refuses another one."""
    for outcome in OUTCOMES:
        job = await h.leased()
        h.accepted(await h.finish(job, outcome, error=BOOM), LED_TO[outcome])
        await all_refused(h, job, LeaseLost, f"the token being spent on {outcome}", but=outcome)


@rule("LEASE-1")
async def an_acknowledgement_at_the_deadline_is_too_late(h: Harness) -> None:
    """One millisecond before, it is accepted. At the deadline, past it, and after reaping it gets LeaseExpired."""
    verbs: tuple[str, ...] = (*OUTCOMES, "extend", "progress")
    async with h.frozen() as f:
        for verb in verbs:
            job = await f.leased(lease_ms=LEASE)
            await f.advance(LEASE - 1)
            answer = await acknowledge(f, job, verb)
            expect(not isinstance(answer, Exception), f"{verb} a millisecond before the deadline: {answer!r}")
        job = await f.leased(lease_ms=LEASE)
        await f.advance(LEASE)
        await all_refused(f, job, LeaseExpired, "at the deadline")
        await f.advance(1)
        await all_refused(f, job, LeaseExpired, "past the deadline")
        await f.store.reap(1000, 0.0)
        await f.expect_state(job.key, JobState.RETRYING, "once reaped")
        await all_refused(f, job, LeaseExpired, "the lease being reaped")
        last = await f.leased(lease_ms=LEASE, max_attempts=1)
        await f.advance(LEASE)
        await f.store.reap(1000, 0.0)
        await f.expect_state(last.key, JobState.FAILED, "after its last lease")
        await all_refused(f, last, LeaseExpired, "the last lease being reaped")


@rule("LEASE-1")
async def progress_is_recorded_only_for_the_current_lease(h: Harness) -> None:
    """It needs the current token. The next attempt starts without progress."""
    job = await h.leased()
    expect_a(await h.report(job, 0.25), Reported, "report")
    expect_a(await h.report(job, 0.75), Reported, "report")
    progress = (await h.get(job.key)).progress
    expect(progress is not None, "no progress was recorded")
    if progress is not None:
        expect_equal((progress.fraction, progress.message), (0.75, "on the way"), "progress")
    h.accepted(await h.retry(job, delay_ms=0), JobState.RETRYING)
    expect_equal((await h.claim_one(queue=job.queue)).progress, None, "progress of the next attempt")


@rule("LEASE-1")
async def a_lease_taken_over_through_another_handle_is_lost(h: Harness) -> None:
    """A process's cache of its leases does not count: the store decides."""
    job = await h.leased(lease_ms=LEASE)
    other = (await h.handles(2))[1]
    await h.advance(LEASE)
    await other.reap(1000, 0.0)
    await h.advance(DELAY)
    second = await h.claim_one(queue=job.queue, store=other)
    expect_a(await h.complete(job), LeaseLost, "completion of a lease that another handle's took the place of")
    beside = await h.leased(lease_ms=LEASE)
    answers = await h.store.finish([Finish(each.key, each.token, "complete") for each in (job, beside)])
    expect_a(answers[0], LeaseLost, "the same among others")
    h.accepted(answers[1], JobState.COMPLETED)
    record = await h.get(job.key)
    expect_equal((record.state, record.token), (JobState.LEASED, second.token), "record after the refused completion")
    h.accepted(await h.complete(second), JobState.COMPLETED)


@rule("LEASE-1")
async def a_call_under_an_ended_lease_enqueues_nothing(h: Harness) -> None:
    """Enqueues and replays under a job's lease are refused like its acknowledgements, however late they are."""
    for end, why in _ENDS.items():
        leader = await h.leased()
        under, dead = Lease(leader.key, leader.token), await h.job_in(JobState.FAILED)
        new = [h.new(id, queue=leader.queue, request_id=f"request {id}") for id in ("one", "two")]
        try:
            answers = [await h.store.enqueue(new, under=under) for _ in range(2)]
        except Unsupported as refused:
            raise Skipped("the store lets no call be made under a lease") from refused
        for answer in answers:
            expect_equal(answer, [Queued(item.key.id, JobState.READY) for item in new], "enqueue under a live lease")
        expect_a((await h.store.replay([dead.key], under=under))[0], Replayed, "replay under a live lease")
        again = await h.job_in(JobState.FAILED)
        await end(h, leader)
        late = [h.new(id, queue=leader.queue) for id in ("three", "four")]
        for batch in (late, late[:1]):
            refusal = await _refused(lambda batch=batch, under=under: h.store.enqueue(batch, under=under))
            expect_a(refusal, why, f"enqueue under a lease that ended by {end.__name__}")
        refusal = await _refused(lambda again=again, under=under: h.store.replay([again.key], under=under))
        expect_a(refusal, why, f"replay under a lease that ended by {end.__name__}")
        expect_equal(await h.store.get([item.key for item in late]), [None, None], "jobs of a refused enqueue")
        await h.expect_state(again.key, JobState.FAILED, "after a refused replay")


async def _refused(call: Callable[[], Awaitable[object]]) -> object:
    try:
        return await call()
    except HoldfastError as refusal:
        return refusal


async def _canceled(h: Harness, job: Job) -> None:
    await h.cancel(job.key)


async def _completed(h: Harness, job: Job) -> None:
    h.accepted(await h.complete(job), JobState.COMPLETED)


async def _gone(h: Harness, job: Job) -> None:
    await _canceled(h, job)
    expect_equal(await h.purge(job.key), "purged", "purge of the leader")


async def _expired(h: Harness, _: Job) -> None:
    await h.advance(LEASE)


async def _taken_over(h: Harness, job: Job) -> None:
    await h.advance(LEASE)
    await h.store.reap(1000, 0.0)
    await h.advance(HOUR)
    expect(job.id in [taken.id for taken in await h.claim(10, queue=job.queue)], "the leader was not claimed again")


_ENDS: dict[Callable[[Harness, Job], Awaitable[None]], type[HoldfastError]] = {
    _canceled: JobCanceled,
    _completed: LeaseLost,
    _gone: JobNotFound,
    _expired: LeaseExpired,
    _taken_over: LeaseLost,
}


# LEASE-2 ------------------------------------------------------------------------------------------------------


@rule("LEASE-2")
async def extending_sets_the_later_of_both_deadlines(h: Harness) -> None:
    """The deadline is max(current, now + duration). The token stays. The answer has the deadline and now."""
    async with h.frozen() as f:
        job = await f.leased(lease_ms=LEASE)
        start = await f.now()
        deadline = start + LEASE
        for wait, lease_ms in ((0, LEASE), (1000, 5000), (1000, LEASE), (1000, 1000), (500, HOUR), (500, LEASE)):
            await f.advance(wait)
            now = await f.now()
            deadline = max(deadline, now + lease_ms)
            answer = await f.extend(job, lease_ms)
            expect_equal(answer, Extended(deadline, now), f"extend by {lease_ms} at {now - start}")
            record = await f.get(job.key)
            expect_equal((record.deadline, record.token, record.attempts), (deadline, job.token, 1), "record")


@rule("LEASE-2")
async def an_extended_lease_lives_until_its_new_deadline(h: Harness) -> None:
    """Neither the reaper nor a claim ends it at the old deadline. Both do at the new one."""
    async with h.frozen() as f:
        job = await f.leased(lease_ms=LEASE)
        await f.advance(LEASE - 1)
        expect_a(await f.extend(job, LEASE), Extended, "extend")
        await f.advance(LEASE - 1)
        expect_equal((await f.store.reap(1000, 0.0)).jobs, [], "leases reaped before the new deadline")
        await f.claim_none(queue=job.queue)
        await f.expect_state(job.key, JobState.LEASED, "a millisecond before the new deadline")
        await f.advance(1)
        expect_equal((await f.store.reap(1000, 0.0)).jobs, [job.key], "leases reaped at the new deadline")


@rule("LEASE-2")
async def an_expired_lease_is_never_renewed(h: Harness) -> None:
    """Neither at its deadline nor past it, even if no worker has claimed the job since."""
    job = await h.leased(lease_ms=LEASE)
    await h.advance(LEASE)
    for _ in range(2):
        expect_a(await h.extend(job, HOUR), LeaseExpired, "extend past the deadline")
        await h.advance(SECOND)
    expect_equal((await h.get(job.key)).deadline, job.deadline, "deadline of an expired lease")
    await h.store.reap(1000, 0.0)
    expect_a(await h.extend(job, HOUR), LeaseExpired, "extend of a lease that was reaped")
    await h.advance(DELAY)
    second = await h.claim_one(queue=job.queue)
    expect_a(await h.extend(job, HOUR), LeaseLost, "extend of a lease after another was granted")
    expect_a(await h.extend(second, HOUR), Extended, "extend of the lease that was granted")


# LEASE-5 ------------------------------------------------------------------------------------------------------


@rule("LEASE-5")
async def the_token_grows_with_every_lease_of_a_job(h: Harness) -> None:
    """Over retry, release, expiry and replay, in a new life of the id after cancel, purge or forgetting.

    Several handles claim it, one after another.
    """
    queue = h.name("q")
    key = h.key("job", queue=queue)
    tokens: list[int] = []
    stores = cycle(await h.handles(2))

    async def lease() -> Job:
        job = await h.claim_one("job", queue=queue, store=next(stores))
        expect_equal((await h.get(key)).token, job.token, "token in the record")
        event = (await h.history(key))[-1]
        expect_equal((event.kind, event.token), ("claimed", job.token), "token in the event")
        tokens.append(job.token)
        return job

    await h.queued("job", queue=queue, max_attempts=9, result_ttl_ms=SECOND)
    await h.retry(await lease(), delay_ms=0)
    await h.release(await lease())
    await lease()
    await h.advance(LEASE)
    await h.store.reap(1000, 0.0)
    await h.advance(DELAY)
    await h.fail(await lease())
    expect_a(await h.replay(key), Replayed, "replay")
    await lease()
    await h.cancel(key)
    await h.queued("job", queue=queue, result_ttl_ms=SECOND)
    await h.complete(await lease())
    await h.advance(SECOND)
    await h.queued("job", queue=queue)
    await h.complete(await lease())
    expect_equal(await h.purge(key), "purged", "purge")
    await h.queued("job", queue=queue)
    await lease()
    expect_equal(tokens, sorted(set(tokens)), "tokens in the order granted")
    expect(all(0 < token < 2**53 for token in tokens), f"a token is not from 1 to 2^53 - 1: {tokens}")
    expect_equal(len(tokens), 8, "leases granted")


@rule("LEASE-5")
async def no_two_leases_share_a_token(h: Harness) -> None:
    """One counter serves all jobs, queues, tenants and handles, in the order of the claims."""
    tokens: list[int] = []
    for store in await h.handles(3):
        for tenant in (h.tenant, h.other):
            queue = h.name("q")
            await h.queued("a", "b", queue=queue, tenant=tenant)
            tokens += [job.token for job in await h.claim(2, queue=queue, tenant=tenant, store=store)]
    expect_equal(len(set(tokens)), 12, "different tokens of twelve leases")
    if h.capabilities.exact_turns:
        expect_equal(tokens, sorted(tokens), "tokens in the order granted")
