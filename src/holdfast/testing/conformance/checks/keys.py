"""ENQ-3: idempotency keys."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import NotReplayable, QuotaExceeded
from holdfast.core.job import (
    DAY,
    HOUR,
    SECOND,
    AlreadyCompleted,
    Duplicate,
    Finish,
    IdempotencyKey,
    JobKey,
    JobState,
    KeyPolicy,
    Queued,
    Replayed,
    Result,
)
from holdfast.store import TenantSettings
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule

ONCE = IdempotencyKey("once")
STARTED = IdempotencyKey("once", "until_started")
FOREVER = IdempotencyKey("once", "forever")
MINUTE = 60 * SECOND
TTL = IdempotencyKey("once", "ttl", MINUTE)


async def expect_held(h: Harness, by: str, state: JobState | None, key: IdempotencyKey, **fields: object) -> None:
    """Fail unless an enqueue with the key returns the job that holds it."""
    async with h.no_event("by a duplicate of a key"):
        answer = await h.enqueue(h.name("late"), idempotency=key, **fields)
        expect_equal(answer, Duplicate(by, state), f"enqueue with a key that {by!r} holds")


async def expect_free(h: Harness, key: IdempotencyKey, why: str, **fields: object) -> str:
    """Fail unless an enqueue with the key makes a job. Returns the id of the new holder."""
    id = h.name("next")
    expect_equal(await h.enqueue(id, idempotency=key, **fields), Queued(id, JobState.READY), f"enqueue {why}")
    return id


@rule("ENQ-3")
async def a_second_enqueue_with_the_key_returns_the_first_job(h: Harness) -> None:
    """It returns the first job's id and state, and leaves its payload as it is, under every policy."""
    policies: tuple[KeyPolicy, ...] = ("until_terminal", "until_started", "ttl", "forever")
    for policy in policies:
        key = IdempotencyKey(policy, policy, HOUR)
        await h.queued(policy, idempotency=key, payload=b"first")
        await expect_held(h, policy, JobState.READY, key, payload=b"second")
        expect_equal((await h.get(h.key(policy))).envelope.payload, b"first", "payload of the first job")
    expect_equal((await h.stats()).counts[JobState.READY], len(policies), "jobs that are there")


@rule("ENQ-3")
async def a_key_is_scoped_by_tenant_queue_and_job_type(h: Harness) -> None:
    """The same key in another scope is another key."""
    await h.queued("first", idempotency=ONCE)
    scopes = ({"tenant": h.other}, {"queue": h.name("q")}, {"type": "another"})
    for fields in scopes:
        expect_a(await h.enqueue("second", idempotency=ONCE, **fields), Queued, f"the same key with {sorted(fields)}")
    await expect_held(h, "first", JobState.READY, ONCE)
    await expect_free(h, IdempotencyKey("twice"), "with another key")


@rule("ENQ-3")
async def a_key_is_held_until_the_job_ends(h: Harness) -> None:
    """This is the default: it is held over retries, releases and expired leases, until the job ends."""
    queue = h.name("q")
    await h.queued("first", queue=queue, idempotency=ONCE, delay_ms=DELAY, max_attempts=10)
    await expect_held(h, "first", JobState.SCHEDULED, ONCE, queue=queue)
    await h.advance(DELAY)
    await expect_held(h, "first", JobState.READY, ONCE, queue=queue)
    job = await h.claim_one("first", queue=queue)
    await expect_held(h, "first", JobState.LEASED, ONCE, queue=queue)
    await h.retry(job)
    await expect_held(h, "first", JobState.RETRYING, ONCE, queue=queue)
    await h.advance(DELAY)
    await h.release(await h.claim_one("first", queue=queue))
    await expect_held(h, "first", JobState.READY, ONCE, queue=queue)
    await h.claim_one("first", queue=queue)
    await h.advance(LEASE)
    await h.store.reap(1000, 0.0)
    await expect_held(h, "first", JobState.RETRYING, ONCE, queue=queue)
    await h.advance(DELAY)
    h.accepted(await h.complete(await h.claim_one("first", queue=queue)), JobState.COMPLETED)
    await expect_free(h, ONCE, "with the key of a completed job", queue=queue)


@rule("ENQ-3")
async def every_end_of_the_job_frees_its_key(h: Harness) -> None:
    """The ends are: completed, failed, out of attempts, out of leases, canceled while waiting or running."""
    for end in ("complete", "fail", "retry", "expire", "cancel waiting", "cancel running"):
        queue = h.name("q")
        await h.queued("first", queue=queue, idempotency=ONCE, max_attempts=1)
        if end != "cancel waiting":
            job = await h.claim_one("first", queue=queue)
            if end in ("complete", "fail", "retry"):
                h.accepted(await h.finish(job, end))
        if end == "expire":
            await h.advance(LEASE)
            await h.store.reap(1000, 0.0)
        if end.startswith("cancel"):
            await h.cancel(h.key("first", queue=queue))
        second = await expect_free(h, ONCE, f"with the key of a job that ended by {end}", queue=queue)
        await expect_held(h, second, JobState.READY, ONCE, queue=queue)


@rule("ENQ-3")
async def a_key_until_started_is_free_once_the_job_runs(h: Harness) -> None:
    """It is held while the job waits and free from the claim on. The first job does not take it again."""
    await h.queued("first", idempotency=STARTED, delay_ms=DELAY, priority=9)
    await expect_held(h, "first", JobState.SCHEDULED, STARTED)
    await h.advance(DELAY)
    await expect_held(h, "first", JobState.READY, STARTED)
    first = await h.claim_one("first")
    second = await expect_free(h, STARTED, "with the key of a job that runs")
    h.accepted(await h.release(first), JobState.READY)
    await expect_held(h, second, JobState.READY, STARTED)
    first = await h.claim_one("first")
    await expect_held(h, second, JobState.READY, STARTED)
    await h.cancel(first.key)
    await expect_held(h, second, JobState.READY, STARTED)
    await h.cancel(h.key(second))
    await expect_free(h, STARTED, "with the key of a job that was canceled before it ran")


@rule("ENQ-3")
async def a_key_with_a_time_to_live_outlives_the_job(h: Harness) -> None:
    """It answers with the result while that is kept, then without a state. It is free when its time is over."""
    async with h.frozen() as f:
        await f.queued("first", idempotency=TTL, result_ttl_ms=20 * SECOND)
        h.accepted(await f.complete(await f.claim_one("first"), b"1"), JobState.COMPLETED)
        answer = await f.enqueue("second", idempotency=TTL)
        expect_equal(answer, AlreadyCompleted("first", Result(b"1")), "enqueue while the result is kept")
        await f.advance(20 * SECOND)
        await expect_held(f, "first", None, TTL)
        while (await f.store.prune(1000)).more:
            pass
        await expect_held(f, "first", None, TTL)
        await f.advance(MINUTE - 20 * SECOND - 1)
        await f.store.prune(1000)
        await expect_held(f, "first", None, TTL)
        await f.advance(1)
        await expect_free(f, TTL, "with a key whose time is over")


@rule("ENQ-3")
async def a_key_with_a_time_to_live_expires_while_its_job_waits(h: Harness) -> None:
    """Only the time decides, even if the job has not run yet."""
    await h.queued("first", idempotency=TTL, delay_ms=HOUR)
    await h.advance(MINUTE)
    second = await expect_free(h, TTL, "with a key whose time is over")
    await h.cancel(h.key("first"))
    await expect_held(h, second, JobState.READY, TTL)


@rule("ENQ-3")
async def a_key_without_an_end_outlives_the_job(h: Harness) -> None:
    """It answers duplicate, with the state while the job is kept, and without one afterwards."""
    for end in ("fail", "cancel", "purge", "forget"):
        queue = h.name("q")
        job = await h.leased("first", queue=queue, idempotency=FOREVER, result_ttl_ms=MINUTE)
        if end == "fail":
            await h.fail(job)
            await expect_held(h, "first", JobState.FAILED, FOREVER, queue=queue)
        elif end == "cancel":
            await h.cancel(job.key)
            await expect_held(h, "first", JobState.CANCELED, FOREVER, queue=queue)
        else:
            await h.complete(job)
        if end == "purge":
            expect_equal(await h.purge(job.key), "purged", "purge")
        else:
            await h.advance(8 * DAY)
            await expect_held(h, "first", None, FOREVER, queue=queue)
            await h.store.prune(10_000)
        await expect_held(h, "first", None, FOREVER, queue=queue)


@rule("ENQ-3")
async def the_id_is_checked_before_the_key(h: Harness) -> None:
    """An existing id answers, whatever its key. The key of a duplicate enqueue is not taken."""
    await h.queued("one", idempotency=IdempotencyKey("k1"))
    await h.queued("two", idempotency=IdempotencyKey("k2"))
    answer = await h.enqueue("two", idempotency=IdempotencyKey("k1"))
    expect_equal(answer, Duplicate("two", JobState.READY), "id of one job, key of another")
    answer = await h.enqueue("two", idempotency=IdempotencyKey("k3"))
    expect_equal(answer, Duplicate("two", JobState.READY), "id of a job, key of none")
    await expect_free(h, IdempotencyKey("k3"), "with a key that only a duplicate carried")
    answer = await h.enqueue("three", idempotency=IdempotencyKey("k1"))
    expect_equal(answer, Duplicate("one", JobState.READY), "new id, key of a job")
    expect_equal(await h.find(h.key("three")), None, "record of a job whose key was taken")


@rule("ENQ-3")
async def a_refused_enqueue_binds_no_key(h: Harness) -> None:
    """A refusal by the quota takes no key, so the key is free when there is room."""
    await h.store.set_tenant(h.tenant, TenantSettings(h.queue, max_waiting=1))
    await h.queued("full")
    for key in (ONCE, STARTED, TTL, FOREVER):
        named = IdempotencyKey(key.policy, key.policy, key.ttl_ms)
        expect_a(await h.enqueue("refused", idempotency=named), QuotaExceeded, "enqueue over the quota")
    await h.store.set_tenant(h.tenant, TenantSettings(h.queue, max_waiting=100))
    for key in (ONCE, STARTED, TTL, FOREVER):
        named = IdempotencyKey(key.policy, key.policy, key.ttl_ms)
        await expect_free(h, named, f"with a key ({key.policy}) that only a refused enqueue carried")


@rule("ENQ-3")
async def a_replacement_takes_the_key_of_the_job_that_it_replaces(h: Harness) -> None:
    """A canceled or failed id can be enqueued again with its own key. The new job holds the key."""
    for policy in ("until_terminal", "forever"):
        key = IdempotencyKey("once", policy)
        for state in (JobState.CANCELED, JobState.FAILED):
            job = await h.job_in(state, idempotency=key)
            answer = await h.enqueue("job", queue=job.queue, idempotency=key, replace_failed=True)
            expect_equal(answer, Queued("job", JobState.READY), f"fresh enqueue of a {state} id with its {policy} key")
            await expect_held(h, "job", JobState.READY, key, queue=job.queue)


@rule("ENQ-3")
async def the_end_of_a_job_frees_no_key_that_another_job_holds(h: Harness) -> None:
    """Only the holder releases a key. An older job of the same key does not."""
    queue = h.name("q")
    first = await h.leased("first", queue=queue, idempotency=STARTED)
    second = await expect_free(h, ONCE, "with a key that was free from the start of its job on", queue=queue)
    h.accepted(await h.complete(first), JobState.COMPLETED)
    await expect_held(h, second, JobState.READY, ONCE, queue=queue)
    expect_equal(await h.purge(first.key), "purged", "purge of the older job")
    await expect_held(h, second, JobState.READY, ONCE, queue=queue)


@rule("ENQ-3")
async def jobs_that_complete_together_free_only_their_own_keys(h: Harness) -> None:
    """In one call, one job holds its key to the end, one for a time, and one has lost it to another job."""
    own, timed, lost = [
        await h.leased(id_, queue=h.name("q"), idempotency=key)
        for id_, key in (("own", ONCE), ("timed", TTL), ("lost", STARTED))
    ]
    holder = await expect_free(h, ONCE, "with a key that was free from the start of its job on", queue=lost.queue)
    answers = await h.store.finish([Finish(job.key, job.token, "complete") for job in (own, timed, lost)])
    for answer in answers:
        h.accepted(answer, JobState.COMPLETED)
    await expect_free(h, ONCE, "with the key of a job that completed", queue=own.queue)
    again = await h.enqueue("again", queue=timed.queue, idempotency=TTL)
    holding = expect_a(again, AlreadyCompleted, "enqueue with a key that is held for a time")
    expect_equal(holding.id, "timed", "who holds it")
    await expect_held(h, holder, JobState.READY, ONCE, queue=lost.queue)


@rule("ENQ-3")
async def a_replay_takes_its_key_again(h: Harness) -> None:
    """A replayed job holds its `until_terminal` key again, and releases it when it ends."""
    failed = await h.job_in(JobState.FAILED, idempotency=ONCE)
    expect_a(await h.replay(failed.key), Replayed, "replay")
    await expect_held(h, "job", JobState.READY, ONCE, queue=failed.queue)
    h.accepted(await h.complete(await h.claim_one(queue=failed.queue)), JobState.COMPLETED)
    await expect_free(h, ONCE, "with the key of a replayed job that completed", queue=failed.queue)


@rule("ENQ-3")
async def a_replay_is_refused_while_another_job_holds_its_key(h: Harness) -> None:
    """The refusal names the reason and changes nothing. The replay succeeds when the other job has ended."""
    failed = await h.job_in(JobState.FAILED, idempotency=ONCE)
    holder = await expect_free(h, ONCE, "with the key of a failed job", queue=failed.queue)
    async with h.no_event("by a refused replay"):
        refusal = expect_a(await h.replay(failed.key), NotReplayable, "replay of a job whose key is taken")
        expect(holder in refusal.reason, f"the reason does not name the holder: {refusal.reason!r}")
        expect_equal(await h.get(failed.key), failed, "record after a refused replay")
    await expect_held(h, holder, JobState.READY, ONCE, queue=failed.queue)
    h.accepted(await h.complete(await h.claim_one(holder, queue=failed.queue)), JobState.COMPLETED)
    expect_a(await h.replay(failed.key), Replayed, "replay once the key is free")


@rule("ENQ-3")
async def of_concurrent_enqueues_with_one_key_exactly_one_is_queued(h: Harness) -> None:
    """Different ids, one key, several handles: there is one job, and every answer names it."""
    stores = await h.handles(4)
    calls = [stores[n % 4].enqueue([h.new(f"job-{n}", idempotency=ONCE)]) for n in range(16)]
    answers = [answer for batch in await asyncio.gather(*calls) for answer in batch]
    winners = [answer.id for answer in answers if isinstance(answer, Queued)]
    expect_equal(len(winners), 1, "enqueues with one key that were queued")
    rest = {repr(answer) for answer in answers if not isinstance(answer, Queued)}
    expect_equal(rest, {repr(Duplicate(winners[0], JobState.READY))}, "answers to the others")
    expect_equal([job.id for job in await h.claim(20)], winners, "jobs that are there")


@rule("ENQ-3")
async def of_concurrent_replays_with_one_key_exactly_one_succeeds(h: Harness) -> None:
    """Dead letters that had the same key in turn are replayed from several handles at once. One holds it again."""
    stores = await h.handles(4)
    for _ in range(5):
        queue = h.name("q")
        failed: list[JobKey] = []
        for n in range(len(stores)):
            job = await h.leased(f"job-{n}", queue=queue, idempotency=ONCE)
            h.accepted(await h.finish(job, "fail"), JobState.FAILED)
            failed.append(job.key)
        calls = [store.replay([key]) for store, key in zip(stores, failed, strict=True)]
        answers = [answer for batch in await asyncio.gather(*calls) for answer in batch]
        expect_equal(sum(isinstance(answer, Replayed) for answer in answers), 1, "replays that went through")
        expect_equal(len(await h.claim(20, queue=queue)), 1, "jobs that are there")


@rule("ENQ-3")
async def a_new_life_of_an_id_does_not_hold_the_keys_of_the_old_one(h: Harness) -> None:
    """A key that ended with its job stays free when the id is used again without it."""
    for key in (ONCE, STARTED):
        for end in ("complete", "fail", "cancel"):
            queue = h.name("q")
            first = await h.leased("first", queue=queue, idempotency=key, result_ttl_ms=MINUTE)
            if end == "cancel":
                await h.cancel(first.key)
            else:
                h.accepted(await h.finish(first, end))
            expect_equal(await h.purge(first.key), "purged", "purge")
            await h.queued("first", queue=queue)
            await expect_free(h, key, f"with a {key.policy} key of an earlier life that ended by {end}", queue=queue)
