"""EVENT-1: the purges of a tenant are numbered 1, 2, 3, ..., and the store has the last number."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import Unsupported
from holdfast.core.events import Event
from holdfast.core.job import DAY, HOUR, PURGE_COUNT_MS, JobKey, JobState, Purge, PurgeCount
from holdfast.paging import pages
from holdfast.testing.conformance.expect import Skipped, expect, expect_equal
from holdfast.testing.conformance.harness import Harness
from holdfast.testing.conformance.rules import rule

SHARDS_MET = 100
"""A purge drops old counts only of its own shard. With this many tenants, each shard almost certainly has one."""


async def count_of(h: Harness, tenant: str) -> PurgeCount | None:
    """The store's count for a tenant."""
    try:
        page = await h.store.purge_counts(tenant)
    except Unsupported as refused:
        raise Skipped("the store does not show its counts of purges") from refused
    expect(page.cursor is None and len(page.counts) <= 1, f"the count of one tenant is {page}")
    return page.counts[0] if page.counts else None


async def purged(h: Harness, tenant: str) -> list[Event]:
    """The purges in a tenant's log since the start of the check."""
    return [event for event in await h.events(tenant) if event.kind == "purged"]


async def expect_counted(h: Harness, count: int, *, tenant: str = "") -> None:
    """Fail unless the tenant had this many purges: its log numbers them, and the store has the last number."""
    tenant = tenant or h.tenant
    events = await purged(h, tenant)
    expect_equal(
        [event.data.get("purge") for event in events], list(range(1, count + 1)), "numbers of purges in the log"
    )
    series = list({int(event.data.get("series", 0)) for event in events})
    expect(len(series) == min(count, 1), f"the purges of one count are of {series}")
    expect_equal(
        await count_of(h, tenant), PurgeCount(tenant, series[0], count) if count else None, "the store's count"
    )


async def ended(h: Harness, *ids: str, tenant: str = "") -> list[JobKey]:
    """Make canceled jobs of a tenant."""
    await h.queued(*ids, tenant=tenant or None)
    keys = [h.key(id, tenant=tenant or None) for id in ids]
    for key in keys:
        expect_equal(await h.cancel(key), "canceled", "cancel of a waiting job")
    return keys


@rule("EVENT-1")
async def purges_are_counted_by_tenant(h: Harness) -> None:
    """One by one, in a batch, and in one call for two tenants. A new life of an id counts like any other."""
    await expect_counted(h, 0)
    (a,) = await ended(h, "a")
    expect_equal(await h.purge(a), "purged", "purge of a canceled job")
    await expect_counted(h, 1)
    for _ in range(2):
        await h.store.purge([Purge(key) for key in await ended(h, "a", "b", "c")])
    await expect_counted(h, 7)
    await expect_counted(h, 0, tenant=h.other)
    mine, theirs = await ended(h, "x", "y"), await ended(h, "x", "y", tenant=h.other)
    await h.store.purge([Purge(key) for key in (mine[0], *theirs, mine[1])])
    await expect_counted(h, 9)
    await expect_counted(h, 2, tenant=h.other)
    if h.capabilities.durable:
        await h.reopen()
        await h.store.purge([Purge(key) for key in await ended(h, "z")])
        await expect_counted(h, 10)


@rule("EVENT-1")
async def jobs_that_are_not_purged_are_not_counted(h: Harness) -> None:
    """Refused purges, a job named twice, replaced jobs, and jobs forgotten after their retention."""
    (key,) = await ended(h, "job")
    waiting, missing = h.key("waiting"), h.key("missing")
    await h.queued("waiting", delay_ms=HOUR)
    answers = await h.store.purge([Purge(waiting), Purge(missing), Purge(key, finished_at=1), Purge(key), Purge(key)])
    expected = ["not_terminal", "not_found", "not_terminal", "purged", "not_found"]
    expect_equal(answers, expected, "answers to a purge")
    await expect_counted(h, 1)
    expect_equal(await h.store.purge([Purge(missing)]), ["not_found"], "purge of no job")
    await ended(h, "job")
    await ended(h, "job")
    done = await h.job_in(JobState.COMPLETED, result_ttl_ms=HOUR)
    await h.advance(HOUR)
    while (await h.store.prune(1000)).more:
        pass
    expect_equal(await h.find(done.key), None, "a completed job past its retention")
    await expect_counted(h, 1)


@rule("EVENT-1")
async def purges_from_several_handles_have_one_order(h: Harness) -> None:
    """The log has them in the order of their numbers, whichever transaction begins or commits first."""
    stores = [h.store, *await h.handles(3)]
    ids = [f"job-{n}" for n in range(24)]
    keys = await ended(h, *ids)
    calls = [stores[n % 4].purge([Purge(key) for key in keys[n : n + 2]]) for n in range(0, 24, 2)]
    for answers in await asyncio.gather(*calls):
        expect_equal(answers, ["purged", "purged"], "answers to purges side by side")
    await expect_counted(h, 24)


@rule("EVENT-1")
async def counts_of_purges_come_in_pages(h: Harness) -> None:
    """They list all tenants that have a count, with any page size."""
    await count_of(h, h.tenant)
    tenants = [h.name("t") for _ in range(5)]
    for n, tenant in enumerate(tenants, 1):
        ids = [f"job-{i}" for i in range(n)]
        await h.store.purge([Purge(key) for key in await ended(h, *ids, tenant=tenant)])
    for limit in (1, 2, 100):
        found: dict[str, int] = {}
        async for page in pages(lambda cursor, limit=limit: h.store.purge_counts(None, cursor, limit)):
            found |= {counted.tenant: counted.count for counted in page.counts}
        expect_equal([found.get(tenant) for tenant in tenants], [1, 2, 3, 4, 5], f"counts in pages of {limit}")


@rule("EVENT-1")
async def an_old_count_of_purges_is_dropped_and_restarts(h: Harness) -> None:
    """The new count has another series, so its numbers are not taken for those of the old one."""
    async with h.frozen() as f:
        await f.store.purge([Purge(key) for key in await ended(f, "a", "b")])
        await f.advance(PURGE_COUNT_MS)
        await f.store.purge([Purge(key) for key in await ended(f, "a", tenant=f.other)])
        await expect_counted(f, 2)
        await f.store.purge([Purge(key) for key in await ended(f, "c")])
        await expect_counted(f, 3)
        await f.advance(PURGE_COUNT_MS + 1)
        for tenant in (f.name("t") for _ in range(SHARDS_MET)):
            await f.store.purge([Purge(key) for key in await ended(f, "b", tenant=tenant)])
            if await count_of(f, f.tenant) is None:
                break
        expect_equal(await count_of(f, f.tenant), None, "a count whose last purge is long past")
        await f.advance(DAY)
        await f.store.purge([Purge(key) for key in await ended(f, "a")])
        seen = [(event.data["series"], event.data["purge"]) for event in await purged(f, f.tenant)]
        expect_equal([number for _, number in seen], [1, 2, 3, 1], "numbers of purges in two counts")
        expect(seen[0][0] == seen[2][0] != seen[3][0], f"two counts of purges are of {seen}")
        expect_equal(await count_of(f, f.tenant), PurgeCount(f.tenant, *seen[3]), "the store's count")
