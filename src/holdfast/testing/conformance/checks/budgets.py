"""TENANT-5: budgets of what a tenant keeps. They are judged by counts that `usage` and `set_tenant` have just read."""

from __future__ import annotations

from asyncio import gather

from holdfast.core.budgets import RECORD_BYTES, Budgets
from holdfast.core.errors import JobNotFound, NotReplayable, QuotaExceeded
from holdfast.core.job import (
    HOUR,
    SECOND,
    AlreadyCompleted,
    Duplicate,
    IdempotencyKey,
    JobKey,
    JobState,
    NewJob,
    Queued,
    Replayed,
    Result,
)
from holdfast.core.names import LEASE_KEYS, OPERATOR, SCHEDULES
from holdfast.store import TenantSettings
from holdfast.testing.conformance.checks.sharing import prune_all
from holdfast.testing.conformance.checks.usage import usage
from holdfast.testing.conformance.expect import expect_a, expect_equal
from holdfast.testing.conformance.harness import Harness
from holdfast.testing.conformance.rules import rule


async def allow(h: Harness, **budgets: int) -> None:
    """Set budgets of the tenant."""
    await h.store.set_tenant(h.tenant, TenantSettings(None, budgets=Budgets(**budgets)))


def expect_refused(answer: object, used: int, limit: int, budget: str, why: str) -> None:
    """An enqueue must have been refused because of this budget."""
    refusal = expect_a(answer, QuotaExceeded, why)
    expect_equal((refusal.queue, refusal.used, refusal.limit, refusal.budget), (None, used, limit, budget), why)


@rule("TENANT-5")
async def an_enqueue_over_max_jobs_is_refused_with_the_name_of_the_budget(h: Harness) -> None:
    """Jobs of every state count. Running jobs can end. There is room again when jobs are forgotten."""
    await allow(h, max_jobs=3)
    await h.queued("a", "b", "c")
    async with h.no_event("by a refused enqueue"):
        expect_refused(await h.enqueue("d"), 3, 3, "max_jobs", "enqueue over max_jobs")
        expect_equal(await h.find(h.key("d")), None, "record of a refused job")
    expect_a(await h.enqueue("d", tenant=h.other), Queued, "enqueue of another tenant")
    a, b, c = await h.claim(3)
    h.accepted(await h.complete(a), JobState.COMPLETED)
    h.accepted(await h.retry(b), JobState.RETRYING)
    h.accepted(await h.release(c), JobState.READY)
    expect_equal((await usage(h)).jobs, 3, "jobs in the usage")
    expect_refused(await h.enqueue("d"), 3, 3, "max_jobs", "enqueue while a finished job is kept")
    await h.advance(HOUR)
    expect_equal((await usage(h)).jobs, 2, "jobs in the usage, once a finished one is forgotten")
    await h.queued("d")
    expect_refused(await h.enqueue("e"), 3, 3, "max_jobs", "enqueue when there are three again")
    await allow(h, max_jobs=0)
    await h.queued("e", "f")  # 0 is no limit.


@rule("TENANT-5")
async def an_enqueue_over_max_bytes_is_refused_with_the_name_of_the_budget(h: Harness) -> None:
    """Payloads and results count. A result is never refused."""
    most = 3 * RECORD_BYTES + 3000
    await allow(h, max_bytes=most)
    await h.queued("a", "b", payload=b"[" + b" " * 1000 + b"]")
    refusal = expect_a(await h.enqueue("c", payload=b"[" + b" " * 2000 + b"]"), QuotaExceeded, "too large a payload")
    expect_equal((refusal.limit, refusal.budget), (most, "max_bytes"), "limit and name of the budget")
    await h.queued("c")
    for job in await h.claim(3):
        h.accepted(await h.finish(job, "complete", result=Result(b'"' + b"x" * 5000 + b'"')), JobState.COMPLETED)
    await usage(h)
    refusal = expect_a(await h.enqueue("d"), QuotaExceeded, "enqueue when results have used up the budget")
    expect_equal((refusal.used > most, refusal.budget), (True, "max_bytes"), "over what, and which")
    await h.advance(HOUR)
    await usage(h)
    await h.queued("d")


@rule("TENANT-5")
async def no_queue_is_created_over_max_queues(h: Harness) -> None:
    """Queues that have jobs accept more, even through a handle that has not used them. Another queue is refused."""
    queues = [h.name("q") for _ in range(2)]
    await allow(h, max_queues=2)
    for queue in queues:
        await h.queued("a", queue=queue)
    expect_refused(await h.enqueue("b", queue=h.name("q")), 2, 2, "max_queues", "enqueue into a third queue")
    await h.queued("b", queue=queues[0])
    await usage(h)
    other = await h.store.sibling()
    try:
        await other.usage(h.tenant)
        await other.set_tenant(h.tenant, TenantSettings(None, budgets=Budgets(max_queues=2)))
        new = h.name("q")
        answers = await other.enqueue([h.new("c", queue=queue) for queue in (new, queues[1], new)])
        expect_equal([type(one) for one in answers], [QuotaExceeded, Queued, QuotaExceeded], "answers by queue")
    finally:
        if other is not h.store:
            await other.close()


@rule("TENANT-5")
async def a_batch_is_accepted_up_to_the_budget(h: Harness) -> None:
    """Item by item: what fits is queued, duplicates are answered, the rest is refused. This affects no other tenant."""
    await h.queued("a")
    await allow(h, max_jobs=3)
    ids = ("b", "c", "a", "d", "e")
    answers = await h.store.enqueue([*(h.new(id) for id in ids), h.new("f", tenant=h.other)])
    kinds = [type(answer) for answer in answers]
    # Existing ids are looked up only when there is no room. Until then, each item counts as a new job.
    expect_equal(kinds, [Queued, Queued, Duplicate, QuotaExceeded, QuotaExceeded, Queued], "answers to a batch")
    expect_a(await h.enqueue("b"), Duplicate, "an id that exists, while nothing new is taken")
    expect_equal(await h.list_ids(), ["a", "b", "c"], "jobs that are there")


@rule("TENANT-5")
async def an_ended_id_is_enqueued_again_only_within_the_budgets(h: Harness) -> None:
    """A canceled job's id needs no further record, but its new payload must fit. [ENQ-2]"""
    await h.queued("a", "b")
    for id in ("a", "b"):
        expect_equal(await h.cancel(h.key(id)), "canceled", "cancel")
    await usage(h)
    await allow(h, max_jobs=2, max_bytes=8 * RECORD_BYTES)
    large = await h.enqueue("a", payload=b"[" + b" " * 10 * RECORD_BYTES + b"]")
    expect_equal(expect_a(large, QuotaExceeded, "too large a payload").budget, "max_bytes", "budget")
    await h.queued("a")
    expect_a(await h.enqueue("c"), QuotaExceeded, "enqueue of a further id")


@rule("TENANT-5")
async def concurrent_reads_of_the_usage_count_each_job_once(h: Harness) -> None:
    """A read does not free the room of jobs that were enqueued before it."""
    await allow(h, max_jobs=3)
    await h.queued("a", "b")
    await usage(h)
    await h.queued("c")
    await h.advance(10 * SECOND)
    await prune_all(h)
    await gather(*(h.store.usage(h.tenant) for _ in range(5)))
    expect_refused(await h.enqueue("d"), 3, 3, "max_jobs", "enqueue over max_jobs, after many looks")


@rule("TENANT-5")
async def a_removed_queue_counts_as_a_new_one(h: Harness) -> None:
    """This holds for a handle that has enqueued to it before, too."""
    await allow(h, max_queues=1)
    queues = [h.name("q") for _ in range(3)]
    for queue in queues:
        await h.queued("a", queue=queue)
        key = h.key("a", queue=queue)
        expect_equal((await h.cancel(key), await h.purge(key)), ("canceled", "purged"), "cancel and purge")
        await usage(h)
    answers = [type(await h.enqueue("b", queue=queue)) for queue in queues]
    expect_equal(answers, [Queued, QuotaExceeded, QuotaExceeded], "enqueues to queues that were there, one by one")


@rule("TENANT-5")
async def keys_without_an_end_count_against_max_jobs(h: Harness) -> None:
    """They count even after their jobs are forgotten."""
    for n in range(3):
        id = f"k{n}"
        await h.queued(id, idempotency=IdempotencyKey(id, "forever"), result_ttl_ms=60 * SECOND)
    for job in await h.claim(3):
        h.accepted(await h.complete(job), JobState.COMPLETED)
    await allow(h, max_jobs=3)
    await h.advance(HOUR)
    found = await usage(h)
    expect_equal((found.jobs, found.keys), (0, 3), "jobs and keys in the usage")
    expect_refused(await h.enqueue("d"), 3, 3, "max_jobs", "enqueue while three keys are held")


@rule("TENANT-5")
async def a_replay_over_max_jobs_or_max_bytes_is_refused_with_the_name_of_the_budget(h: Harness) -> None:
    """Item by item, and without partial changes. A replay makes no new record, so it is accepted at the budget."""
    dead: list[JobKey] = []
    for id in ("a", "b"):
        job = await h.leased(id)
        h.accepted(await h.fail(job), JobState.FAILED)
        dead.append(job.key)
    found = await usage(h)
    for over in ({"max_jobs": 1}, {"max_jobs": 0, "max_bytes": found.bytes - 1}):
        await allow(h, **over)
        budget, limit = list(over.items())[-1]
        used = found.jobs if budget == "max_jobs" else found.bytes
        async with h.no_event("by refused replays"):
            answers = await h.store.replay([dead[0], h.key("none"), dead[1]])
            expect_refused(answers[0], used, limit, budget, f"first replay over {budget}")
            expect_a(answers[1], JobNotFound, "replay of no job among refused ones")
            expect_refused(answers[2], used, limit, budget, f"last replay over {budget}")
            for key in dead:
                await h.expect_state(key, JobState.FAILED, "after a refused replay")
    await allow(h, max_bytes=found.bytes, max_jobs=found.jobs)
    expect_a(await h.replay(dead[0]), Replayed, "replay at the budgets")
    await allow(h, max_jobs=1)
    expect_a(await h.replay(dead[0]), NotReplayable, "replay of a waiting job over max_jobs")
    expect_a((await h.store.replay([dead[1]]))[0], QuotaExceeded, "replay over max_jobs again")
    await allow(h, max_jobs=0)
    expect_a(await h.replay(dead[1]), Replayed, "replay without a limit")


@rule("ENQ-3")
async def a_held_key_answers_with_its_job_even_over_a_budget(h: Harness) -> None:
    """A duplicate needs no room. An enqueue with a free key does, and a refused one takes no key. [TENANT-5]"""
    held, lasting, free = IdempotencyKey("held"), IdempotencyKey("lasting", "forever"), IdempotencyKey("free")
    first = await h.enqueue("a", idempotency=held)
    expect_a(first, Queued, "first enqueue of a key")
    await h.queued("b", idempotency=lasting, result_ttl_ms=60 * SECOND)
    a, b = await h.claim(2)
    h.accepted(await h.complete(b), JobState.COMPLETED)
    await usage(h)
    await allow(h, max_jobs=1)
    answers = await h.store.enqueue(
        [h.new("c", idempotency=held), h.new("d", idempotency=free), h.new("e", idempotency=lasting), h.new("f")]
    )
    expect_equal(answers[0], Duplicate("a", JobState.LEASED), "second enqueue of a held key, over max_jobs")
    expect_a(answers[1], QuotaExceeded, "enqueue of a free key")
    expect_equal(expect_a(answers[2], AlreadyCompleted, "enqueue of a completed job's key").id, "b", "holder of a key")
    expect_a(answers[3], QuotaExceeded, "enqueue without a key")
    other_type = h.new("g", idempotency=held, type=h.name("other"))
    expect_a((await h.store.enqueue([other_type]))[0], QuotaExceeded, "the same key of another job type")
    h.accepted(await h.complete(a), JobState.COMPLETED)
    expect_a(await h.enqueue("c", idempotency=held), QuotaExceeded, "a key whose job has ended")
    await allow(h, max_jobs=0)
    expect_a(await h.enqueue("c", idempotency=free), Queued, "a key that only refused enqueues had")
    await h.advance(HOUR)
    await usage(h)
    await allow(h, max_jobs=1)
    expect_equal(await h.enqueue("h", idempotency=lasting), Duplicate("b", None), "key of a forgotten job")


@rule("ENQ-3")
async def a_batch_over_a_budget_knows_the_keys_of_its_own_items(h: Harness) -> None:
    """The item that fits takes the key; the one after it is its duplicate. [TENANT-5, ENQ-4]"""
    await allow(h, max_jobs=1)
    key = IdempotencyKey("once")
    answers = await h.store.enqueue([h.new("a", idempotency=key), h.new("b", idempotency=key), h.new("c")])
    expect_equal([type(answer) for answer in answers], [Queued, Duplicate, QuotaExceeded], "answers to a batch")


@rule("TENANT-5")
async def reserved_queues_do_not_count_against_the_budgets_of_jobs(h: Harness) -> None:
    """Schedules have their own budget. The operator's records have none."""
    await h.queued("a")
    await allow(h, max_jobs=1, max_bytes=1, max_queues=1)
    expect_a(await h.enqueue("more"), QuotaExceeded, "enqueue over every budget")
    for tenant, queue in ((h.tenant, SCHEDULES), (OPERATOR, LEASE_KEYS)):
        new = h.new(h.name("own"))
        own = NewJob(JobKey(tenant, queue, new.key.id), new.envelope, HOUR)
        expect_a((await h.store.enqueue([own]))[0], Queued, f"enqueue into {queue}")


@rule("TENANT-5")
async def an_enqueue_in_a_callers_transaction_is_within_the_budgets(h: Harness) -> None:
    """It is refused like any other, and the transaction continues. [ENQ-7]"""
    async with h.begin() as connection:
        await allow(h, max_jobs=1)
        answers = await h.store.enqueue([h.new("a"), h.new("b")], connection=connection)
        expect_equal([type(answer) for answer in answers], [Queued, QuotaExceeded], "answers in a transaction")
    expect_equal(await h.list_ids(), ["a"], "jobs after the commit")
