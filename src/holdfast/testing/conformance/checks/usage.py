"""TENANT-5: a tenant's usage is counted, and its budgets are stored."""

from __future__ import annotations

from holdfast.core.budgets import RECORD_BYTES, Budgets, Usage
from holdfast.core.job import DAY, HOUR, SECOND, AttemptError, Finish, IdempotencyKey, JobState, Replayed, Result
from holdfast.store import TenantSettings
from holdfast.testing.conformance.checks.sharing import prune_all
from holdfast.testing.conformance.expect import expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import LEASE, Harness
from holdfast.testing.conformance.rules import rule

SLACK = 64
"""How much `bytes` may differ from the size of a text or value, for each of them: stores encode them differently."""


async def usage(h: Harness, tenant: str | None = None) -> Usage:
    """What a tenant keeps, after a round of maintenance: counts may be 10 s old without it."""
    await h.advance(10 * SECOND)
    await prune_all(h)
    return await h.store.usage(tenant or h.tenant)


async def expect_usage(h: Harness, jobs: int, keys: int, size: int, parts: int, queues: int, why: str) -> None:
    """Fail unless the usage is this. `size` is that of `parts` payloads, results and errors."""
    found = await usage(h)
    expect_equal((found.jobs, found.keys, found.queues), (jobs, keys, queues), f"jobs, keys and queues {why}")
    least = size + (jobs + keys) * RECORD_BYTES
    expect_between(found.bytes, least, least + parts * SLACK, f"bytes {why}")


@rule("TENANT-5")
async def usage_follows_what_a_tenant_keeps(h: Harness) -> None:
    """It counts this tenant's jobs of every state, their payloads, results and errors, until they are forgotten."""
    async with h.frozen() as f:
        expect_equal(await usage(f), Usage(), "usage of an unknown tenant")
        await f.queued("a", "b", "c", "d", payload=b'"' + b"x" * 998 + b'"')
        apart = f.name("q")
        await f.queued("large", payload=b'"' + b"x" * 99_998 + b'"', queue=apart)
        await f.queued("e", tenant=f.other)
        await expect_usage(f, 5, 0, 104_000, 5, 2, "of waiting jobs")
        a, b, c = await f.claim(3)
        await expect_usage(f, 5, 0, 104_000, 5, 2, "with some leased")
        f.accepted(await f.finish(a, "complete", result=Result(b'"' + b"r" * 498 + b'"')), JobState.COMPLETED)
        f.accepted(await f.fail(b, AttemptError("Boom", "m" * 300, "t" * 700)), JobState.FAILED)
        expect_equal(await f.cancel(c.key), "canceled", "cancel")
        await expect_usage(f, 5, 0, 104_000 + 500 + 1004, 7, 2, "with some ended")
        found = await f.store.usage(f.tenant)
        expect_equal(found.events, len(await f.events()), "events in the usage")
        expect_equal(await f.purge(b.key), "purged", "purge")
        await expect_usage(f, 4, 0, 103_000 + 500, 5, 2, "after a purge")
        await f.advance(HOUR)
        await expect_usage(f, 3, 0, 102_000, 3, 2, "after the retention of a result")
        await f.queued("c", payload=b"{}")
        await expect_usage(f, 3, 0, 101_002, 3, 2, "after an id was used again")
        (large,) = await f.claim(1, tenant=None, queue=apart)
        f.accepted(await f.finish(large, "complete"), JobState.COMPLETED)
        await f.advance(HOUR)
        await expect_usage(f, 2, 0, 1_002, 2, 1, "after a large payload, alone in its queue, is forgotten")
        other = await f.store.usage(f.other)
        expect_equal((other.jobs, other.queues), (1, 1), "jobs and queues of the other tenant")


@rule("TENANT-5")
async def usage_follows_batches_and_attempts(h: Harness) -> None:
    """With many jobs in one call, retries that add errors, an expired lease and a replay, nothing is counted twice."""
    async with h.frozen() as f:
        ids = [f"job-{n}" for n in range(30)]
        await f.queued(*ids, payload=b"[1,2,3,4]", max_attempts=3)
        await f.store.enqueue([f.new(id, payload=b"[1,2,3,4]") for id in (*ids[:5], "one")])
        await expect_usage(f, 31, 0, 31 * 9, 31, 1, "after a batch with repetitions")
        retried, lapsed, failed, *done = await f.claim(31, lease_ms=LEASE)
        await f.retry(retried, AttemptError("E", "m" * 99), delay_ms=HOUR)
        await f.fail(failed, AttemptError("E", "m" * 99))
        await f.store.finish([Finish(job.key, job.token, "complete", result=Result(b"12345")) for job in done])
        await f.advance(LEASE)
        await f.store.reap(100, 0.0)
        late = len((await f.get(lapsed.key)).errors[-1].message) + len("LeaseExpired")
        await expect_usage(f, 31, 0, 31 * 9 + 100 + 100 + late + 28 * 5, 62, 1, "after attempts")
        expect_a(await f.replay(failed.key), Replayed, "replay")
        await expect_usage(f, 31, 0, 31 * 9 + 100 + 100 + late + 28 * 5, 62, 1, "after a replay")
        for job in (retried, lapsed, failed):
            expect_equal(await f.cancel(job.key), "canceled", "cancel")
        await f.advance(2 * DAY)
        await expect_usage(f, 0, 0, 0, 0, 0, "when all are forgotten")


@rule("TENANT-5")
async def keys_that_outlive_their_job_are_counted(h: Harness) -> None:
    """Keys with a time to live count until it ends, keys held forever always count. Other keys never count."""
    async with h.frozen() as f:
        for policy in ("until_terminal", "until_started", "ttl", "forever"):
            key = IdempotencyKey(policy, policy, 2 * HOUR)
            await f.queued(policy, idempotency=key, result_ttl_ms=60 * SECOND)
        await expect_usage(f, 4, 2, 8, 4, 1, "of waiting jobs with keys")
        for job in await f.claim(4):
            f.accepted(await f.finish(job, "complete"), JobState.COMPLETED)
        await f.advance(60 * SECOND)
        await expect_usage(f, 0, 2, 0, 0, 0, "when the jobs are forgotten")
        await f.advance(2 * HOUR)
        await expect_usage(f, 0, 1, 0, 0, 0, "when one key has expired")
        await f.queued("again", idempotency=IdempotencyKey("ttl", "ttl", HOUR))
        await expect_usage(f, 1, 2, 2, 1, 1, "when its key was taken again")


@rule("TENANT-5")
async def budgets_are_kept_field_by_field(h: Harness) -> None:
    """Setting one budget leaves the others, the weight and the quota as they are. Other tenants have their own."""
    await h.store.set_tenant(h.tenant, TenantSettings(None, weight=2.0, budgets=Budgets(max_jobs=10, max_bytes=1000)))
    await h.store.set_tenant(h.tenant, TenantSettings(None, budgets=Budgets(max_bytes=2000, requests_per_s=5)))
    await h.store.set_tenant(h.tenant, TenantSettings(None, max_waiting=7))
    await h.store.set_tenant(h.tenant, TenantSettings(h.queue, max_waiting=3))
    wanted = Budgets(max_jobs=10, max_bytes=2000, requests_per_s=5)
    own = TenantSettings(None, 2.0, 7, wanted)
    expect_equal(list(await h.store.tenant_settings(h.tenant)), [own, TenantSettings(h.queue, None, 3)], "settings")
    expect_equal(list(await h.store.tenant_settings(h.other)), [], "settings of another tenant")
