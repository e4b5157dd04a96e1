"""TENANT-1 to TENANT-3: a job belongs to one tenant, and no other tenant can see that it exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

from holdfast.core.errors import InvalidOption, JobNotFound
from holdfast.core.job import (
    HOUR,
    AttemptError,
    Cancel,
    Duplicate,
    Extend,
    Finish,
    IdempotencyKey,
    Job,
    JobKey,
    JobState,
    Outcome,
    Progress,
    Purge,
    Queued,
    Report,
    Result,
    SetResultTtl,
)
from holdfast.paging import pages
from holdfast.store import ListQuery, TenantSettings, WorkerInfo
from holdfast.testing.conformance.expect import Broken, expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import LEASE, Harness
from holdfast.testing.conformance.rules import rule


@rule("TENANT-1")
async def one_id_of_two_tenants_is_two_jobs(h: Harness) -> None:
    """Each operation acts on the job of the tenant that it names, and on no other."""
    for tenant in (h.tenant, h.other):
        expect_a(await h.enqueue("job", tenant=tenant, payload=tenant.encode()), Queued, f"enqueue for {tenant}")
    mine = await h.claim_one("job")
    expect_equal((mine.tenant, mine.envelope.payload), (h.tenant, h.tenant.encode()), "job that the tenant claimed")
    await h.claim_none()
    theirs = h.key("job", tenant=h.other)
    await h.expect_state(theirs, JobState.READY, "of the other tenant")
    h.accepted(await h.complete(mine), JobState.COMPLETED)
    await h.expect_state(theirs, JobState.READY, "of the other tenant")
    expect_equal(await h.cancel(theirs), "canceled", "cancel for the other tenant")
    await h.expect_state(mine.key, JobState.COMPLETED, "after the other tenant's cancel")
    expect_equal(await h.purge(theirs), "purged", "purge for the other tenant")
    await h.expect_state(mine.key, JobState.COMPLETED, "after the other tenant's purge")


@rule("TENANT-1")
async def a_payload_never_names_the_tenant(h: Harness) -> None:
    """Whatever a payload or a header says, the job belongs to the tenant of the call."""
    payload = b'{"tenant": "%s", "tid": "%s"}' % (h.other.encode(), h.other.encode())
    await h.queued("job", payload=payload, headers={"tenant": h.other, "tenant_id": h.other})
    expect_equal(await h.find(h.key("job", tenant=h.other)), None, "record under the tenant that the payload names")
    await h.claim_none(tenant=h.other)
    expect_equal((await h.claim_one("job")).tenant, h.tenant, "tenant of the job")
    expect_equal(await h.events(h.other), [], "events of the tenant that the payload names")


@rule("TENANT-1")
async def settings_and_pauses_apply_to_one_tenant_only(h: Harness) -> None:
    """A tenant's settings and pauses do not affect another tenant's queue of the same name."""
    await h.store.set_tenant(h.tenant, TenantSettings(h.queue, weight=2.0, max_waiting=1))
    await h.store.pause(h.tenant, h.queue, paused=True)
    expect_equal(list(await h.store.tenant_settings(h.other)), [], "settings of the other tenant")
    expect(not (await h.stats(tenant=h.other)).paused, "the other tenant's queue shows as paused")
    await h.queued("a", "b", tenant=h.other)
    await h.claim_one("a", tenant=h.other)


@rule("TENANT-1")
async def counts_and_lists_show_one_tenant_only(h: Harness) -> None:
    """Stats and lists of a queue name count and show one tenant's jobs."""
    await h.queued("a", "b")
    await h.queued("c", tenant=h.other)
    expect_equal((await h.stats()).counts[JobState.READY], 2, "ready jobs of the tenant")
    expect_equal((await h.stats(tenant=h.other)).counts[JobState.READY], 1, "ready jobs of the other tenant")
    expect_equal(await h.list_ids(), ["a", "b"], "list of the tenant")
    own = {stats.queue: stats.counts[JobState.READY] for stats in await h.store.stats(h.other)}
    expect_equal(own, {h.queue: 1}, "stats of all queues of the other tenant")
    tenants = await h.store.tenants()
    expect(h.tenant in tenants and h.other in tenants, "tenants with jobs are missing among the tenants")
    expect_equal(tenants, sorted(tenants), "order of the tenants")


@rule("TENANT-1")
async def a_call_over_several_tenants_never_mixes_up_their_jobs(h: Harness) -> None:
    """Claims, acknowledgements and reads of many tenants in one call never mix up their jobs."""
    tenants = [h.tenant, h.other, h.name("v")]
    keys = [h.key(f"job-{number}", tenant=tenants[number * number % 3]) for number in range(10)]
    await h.store.enqueue([h.new(key.id, tenant=key.tenant, payload="|".join(key).encode()) for key in keys])
    jobs = await h.claim(10, tenant=None)
    expect_equal(sorted(job.key for job in jobs), sorted(keys), "jobs of a claim over all tenants")
    for job in jobs:
        expect_equal(job.envelope.payload, "|".join(job.key).encode(), f"payload of {job.key} in the claim")
    done = [Finish(job.key, job.token, "complete", Result("/".join(job.key).encode())) for job in jobs]
    for answer in await h.store.finish(done):
        h.accepted(answer, JobState.COMPLETED)
    for key, job in zip(keys, await h.store.get(keys), strict=True):
        expect(job is not None, f"{key} is not there")
        if job is not None:
            seen = (job.key, job.envelope.payload, job.result)
            expect_equal(seen, (key, "|".join(key).encode(), Result("/".join(key).encode())), "record")


@rule("TENANT-1")
async def a_tenant_is_listed_while_it_has_jobs_or_settings(h: Harness) -> None:
    """Without either it is no longer listed."""
    for tenant in (h.tenant, h.other):
        await h.queued("job", tenant=tenant)
        await h.cancel(h.key(tenant=tenant))
    await h.store.set_tenant(h.other, TenantSettings(weight=2.0))
    for tenant in (h.tenant, h.other):
        expect(tenant in await h.store.tenants(), "a tenant with a canceled job is missing among the tenants")
        expect_equal(await h.purge(h.key(tenant=tenant)), "purged", "purge")
    tenants = await h.store.tenants()
    expect(h.tenant not in tenants, "a tenant without jobs and settings is among the tenants")
    expect(h.other in tenants, "a tenant that has settings is missing among the tenants")


async def refused_cursor(read: Callable[[str], Awaitable[object]], cursor: str) -> None:
    """Fail unless the list refuses a cursor that is not its own."""
    try:
        await read(cursor)
    except InvalidOption:
        return
    raise Broken(f"a list accepts {cursor!r} as a cursor")


@rule("TENANT-1")
async def queues_are_listed_in_pages_by_name(h: Harness) -> None:
    """Each queue with jobs is listed once, and no other tenant's. An empty page with a cursor is not the last."""
    names = [h.name("q") for _ in range(7)]
    for queue in names:
        await h.queued("job", queue=queue)
    await h.queued("job", queue=h.name("q"), tenant=h.other)
    for queue in names[:2]:
        await h.cancel(h.key(queue=queue))
        await h.purge(h.key(queue=queue))
    await h.store.pause(h.tenant, names[0], paused=True)
    left = sorted([names[0], *names[2:]])
    found: list[str] = []
    async for page in pages(lambda cursor: h.store.queue_page(h.tenant, cursor, 2)):
        expect(len(page.queues) <= 2, f"{len(page.queues)} queues in a page of 2")
        found += [stats.queue for stats in page.queues]
        expect(all(stats.counts[JobState.READY] or stats.paused for stats in page.queues), "counts are missing")
    expect_equal(found, left, "queues page by page")
    expect_equal([stats.queue for stats in await h.store.stats(h.tenant)], left, "queues all at once")
    await refused_cursor(lambda cursor: h.store.queue_page(h.tenant, cursor), "no queue")


@rule("TENANT-1")
async def tenants_are_listed_in_pages_by_name(h: Harness) -> None:
    """Each tenant is listed once: those that have jobs in any queue, and those that only have settings."""
    names = [h.name("t") for _ in range(7)]
    for tenant in names[:5]:
        await h.queued("job", tenant=tenant)
        await h.queued("job", tenant=tenant, queue=h.name("q"))
    for tenant in names[4:6]:
        await h.store.set_tenant(tenant, TenantSettings(weight=2.0))
    await h.cancel(h.key(tenant=names[0]))
    await h.purge(h.key(tenant=names[0]))
    found: list[str] = []
    async for page in pages(lambda cursor: h.store.tenant_page(cursor, 2)):
        expect(len(page.tenants) <= 2, f"{len(page.tenants)} tenants in a page of 2")
        found += page.tenants
    expect_equal(found, sorted(set(found)), "order of the tenants")
    expect_equal([name for name in found if name in names], sorted(names[:6]), "tenants page by page")
    expect_equal(await h.store.tenants(), found, "tenants all at once")
    for cursor in ("acme", "4:acme", "9:acme0:", "4:ac me0:"):
        await refused_cursor(h.store.tenant_page, cursor)


@rule("TENANT-1")
async def workers_are_listed_in_pages_by_id(h: Harness) -> None:
    """Each worker that serves the tenant is listed once."""
    names = [h.name("w") for _ in range(6)]
    for number, name in enumerate(names):
        tenant = (h.tenant, h.other, None)[number % 3]
        await h.store.beat(WorkerInfo(name, tenant, "host", 1, (h.queue,), 1, 0), HOUR)
    found: list[str] = []
    async for page in pages(lambda cursor: h.store.worker_page(h.tenant, cursor, 2)):
        expect(len(page.workers) <= 2, f"{len(page.workers)} workers in a page of 2")
        found += [worker.worker_id for worker in page.workers]
    mine = sorted(name for number, name in enumerate(names) if number % 3 != 1)
    expect_equal([name for name in found if name in names], mine, "workers page by page")
    everyone = [worker.worker_id for worker in await h.store.workers(None) if worker.worker_id in names]
    expect_equal(everyone, sorted(names), "workers all at once")
    for name in names:
        await h.store.beat(WorkerInfo(name, None, "host", 1, (), 1, 0), 0)


async def answers_of(h: Harness, key: JobKey, token: int) -> list[object]:
    """All that a caller can learn about a job by its key, as comparable values."""
    outcomes: tuple[Outcome, ...] = ("complete", "fail", "retry", "release")
    error = AttemptError("Boom", "it broke")
    answers: list[object] = [
        *await h.store.finish([Finish(key, token, outcome, error=error) for outcome in outcomes]),
        *await h.store.extend([Extend(key, token, LEASE)]),
        *await h.store.report([Report(key, token, Progress(0.5))]),
        *await h.store.cancel([Cancel(key), Cancel(key, only_waiting=True)]),
        *await h.store.replay([key]),
        *await h.store.purge([Purge(key)]),
        *await h.store.set_result_ttl([SetResultTtl(key, HOUR)]),
        *await h.store.get([key]),
        [job.id for job in (await h.store.list(ListQuery(key.tenant, key.queue))).jobs],
        sum((await h.stats(key.queue, key.tenant)).counts.values()),
    ]
    return [(type(answer), str(answer), answer.args) if isinstance(answer, Exception) else answer for answer in answers]


@rule("TENANT-2")
async def another_tenants_job_answers_like_a_missing_one(h: Harness) -> None:
    """The error is the same in every state of the other tenant's job, which does not change."""
    for state in (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.COMPLETED, JobState.FAILED):
        job = await h.job_in(state)
        token = job.token or 1
        foreign = JobKey(h.other, job.queue, job.id)
        async with h.no_event(f"by a stranger's calls on a {state} job", tenant=None):
            seen = await answers_of(h, foreign, token)
            expect_equal(await h.get(job.key), job, f"record of a {state} job after a stranger's calls")
        nowhere = JobKey(h.name("v"), job.queue, job.id)
        expect_equal(seen, await answers_of(h, nowhere, token), f"answers about a foreign {state} job")
        refusals = [answer for answer in seen if str(answer).startswith("(<class 'holdfast.core.errors.JobNotFound'>")]
        expect_equal(len(refusals), 7, f"refusals by JobNotFound about a foreign {state} job in {seen}")
        expect_equal(str(seen[-3:]), "[None, [], 0]", f"record, list and count of a foreign {state} job")
        fields = (JobNotFound, str(JobNotFound(job.queue, job.id)), (job.queue, job.id))
        expect_equal(refusals[0], fields, "what the refusal says")


@rule("TENANT-2")
async def a_token_is_not_valid_for_another_tenants_job(h: Harness) -> None:
    """The token of one tenant's job is not valid for another tenant's job of the same name."""
    queue = h.name("q")
    mine = await h.leased(queue=queue)
    theirs = await h.leased(queue=queue, tenant=h.other)
    answer = (await h.store.finish([Finish(mine.key, theirs.token, "complete")]))[0]
    expect_equal(answer.__class__.__name__, "LeaseLost", "complete with the token of another tenant's job")
    await h.expect_state(mine.key, JobState.LEASED, "after that")
    await h.expect_state(theirs.key, JobState.LEASED, "after that")


@rule("TENANT-2")
async def another_tenants_job_takes_no_id_and_no_key(h: Harness) -> None:
    """An enqueue is answered as if the other tenant's jobs and keys did not exist."""
    key = IdempotencyKey("once", "forever")
    await h.queued("job", tenant=h.other, idempotency=key)
    expect_a(await h.enqueue("job", idempotency=key), Queued, "enqueue of an id and key that another tenant has")


TRICKY_QUEUES = ("a", "a:b", "a:b:c", "a/b", "a/", "a.b", "A", "1:a", "a-", "a_b")
TRICKY_IDS = (
    "c", "b:c", ":b:c", "1:c", "C", "c ", " c", "c/d", "%63", "c%", "c_", "{c}", "c\\", "c'", 'c"', "c*", "c\u00e9",
    "ce\u0301", "\U0001f600", "x" * 200, "null", "0", "00", "-", "--", "\u00a0",
)  # fmt: skip


@rule("TENANT-3")
async def similar_names_are_kept_apart(h: Harness) -> None:
    """Different (tenant, queue, id) are different jobs, with any separators, case, wildcards, quotes and Unicode."""
    unique = h.name("")
    tenants = (f"a{unique}", f"a{unique}.b", f"A{unique}", f"a{unique}-b", f"a{unique}_b")
    queues = [queue + unique for queue in TRICKY_QUEUES[:4]]
    keys = [JobKey(*parts) for parts in product(tenants[:3], queues, TRICKY_IDS)]
    keys += [JobKey(*parts) for parts in product(tenants, [q + unique for q in TRICKY_QUEUES], ("c", "b:c"))]
    keys = list(dict.fromkeys(keys))
    new = [h.new(k.id, queue=k.queue, tenant=k.tenant, payload="|".join(k).encode()) for k in keys]
    for answer, key in zip(await h.store.enqueue(new), keys, strict=True):
        expect_equal(answer, Queued(key.id, JobState.READY), f"enqueue of {key}")
    for job, key in zip(await h.store.get(keys), keys, strict=True):
        expect(isinstance(job, Job), f"{key} is not there")
        if job is not None:
            expect_equal((job.key, job.envelope.payload), (key, "|".join(key).encode()), "record")
    gone = keys[::2]
    await h.store.cancel([Cancel(key) for key in gone])
    states = [job.state if job else None for job in await h.store.get(keys)]
    wanted = [JobState.CANCELED if number % 2 == 0 else JobState.READY for number in range(len(keys))]
    expect_equal(states, wanted, "states after every second one was canceled")
    for tenant, queue in sorted({(key.tenant, key.queue) for key in keys}):
        ids = sorted(key.id for key in keys[1::2] if (key.tenant, key.queue) == (tenant, queue))
        got = await h.claim(len(keys), tenant=tenant, queue=queue)
        expect_equal(sorted(job.id for job in got), ids, f"jobs claimed from {tenant} {queue}")


@rule("TENANT-3")
async def similar_keys_are_kept_apart(h: Harness) -> None:
    """Different (tenant, queue, job type, key) are different idempotency keys."""
    queues = (h.queue, f"{h.queue}:a", f"{h.queue}:a:b")
    for number, (queue, type_, key) in enumerate(product(queues, ("a", "a:b", "A", "b"), ("c", "b:c", "a:b:c", "C"))):
        fields = {"queue": queue, "type": type_, "idempotency": IdempotencyKey(key)}
        first, second = f"first-{number}", f"second-{number}"
        expect_a(await h.enqueue(first, **fields), Queued, f"first use of {fields}")
        expect_equal(await h.enqueue(second, **fields), Duplicate(first, JobState.READY), f"second use of {fields}")
