"""A `purged` event that is lost or doubled in the store's log, before the ingest, is found. [EVENT-1]

Its job has no record any more. What tells is its number among its tenant's purges, and the store's count of these.
"""

import pytest

from holdfast.core.job import PURGE_COUNT_MS, Cancel, Envelope, JobKey, NewJob, Purge, PurgeCount
from holdfast.opening import open_store
from holdfast.pipeline.audit import StoreJobs, audit, audit_events
from holdfast.pipeline.comparing import store_jobs
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.schemas import GAPS, JOBS
from tests.log import all_events
from tests.pipeline.damages import QUEUE, double_in_log, remove_from_log
from tests.pipeline.histories import frame, to_row
from tests.pipeline.traffic import of_store

pytestmark = pytest.mark.xdist_group("spark")

TENANTS = ("first", "middle", "last", "only", "doubled", "again", "whole", "returned")


async def lives_and_purges(store, tenant, ids):
    """One step in each call, so that each event has its own entry."""
    for id_ in ids:
        key = JobKey(tenant, QUEUE, id_)
        await store.enqueue([NewJob(key, Envelope("send", b"{}"))])
        await store.cancel([Cancel(key)])
        await store.purge([Purge(key)])


async def make_purges(store):
    for tenant in TENANTS:
        await lives_and_purges(store, tenant, "a" if tenant == "only" else "abc")
    # A life that is as long: by its job alone, the first purge could come behind it.
    await store.enqueue([NewJob(JobKey("again", QUEUE, "a"), Envelope("send", b"{}"))])
    await store.cancel([Cancel(JobKey("again", QUEUE, "a"))])
    return [event for event in await all_events(store) if event.kind == "purged"]


async def return_after_a_long_time(store):
    """The counts of the tenants are dropped; that of one restarts."""
    await store.shift_clock(PURGE_COUNT_MS + 1)
    for n in range(20):  # Some in each shard.
        await lives_and_purges(store, f"later{n}", "a")
    await lives_and_purges(store, "returned", "xyz")


@pytest.mark.parametrize("old", [False, True], ids=["counts", "dropped counts"])
def test_a_lost_or_duplicate_purge_is_found(spark, url, tmp_path, old):
    url = f"{url}{'&' if '?' in url else '?'}test_clock=1"
    purged = {}
    for event in of_store(url, make_purges):
        purged.setdefault(event.tenant, []).append(event)
    lake = Lake(tmp_path / "lake", create=True)
    if old:
        of_store(url, return_after_a_long_time)
    for tenant, place in (("first", 0), ("middle", 1), ("last", 2), ("only", 0)):
        remove_from_log(url, purged[tenant][place])
    double_in_log(url, purged["doubled"][2])
    double_in_log(url, purged["again"][0])
    ingest(spark, lake, IngestPlan(url))

    known = store_jobs(spark, lake, url)
    found = audit(spark, lake, store=known)
    by_tenant = {}
    for violation in found.samples:
        by_tenant.setdefault(violation.tenant, []).append(violation)
    # A count that was dropped proves no more that the last purge is there, and nothing is found that is not so.
    lost = {"first", "middle"} | (set() if old else {"last", "only"})
    assert set(by_tenant) == lost | {"doubled", "again"}, found.text()
    assert all(len(by_tenant[tenant]) == 1 for tenant in (*lost, "doubled")), found.text()
    assert "purge 2 of its tenant and comes after purge 0" in by_tenant["first"][0].explanation
    if not old:
        assert "has counted 3 purges of tenant last, but the log has 2" in by_tenant["last"][0].explanation
        assert "has counted 1 purges of tenant only" in by_tenant["only"][0].explanation
    assert set(found.counts) <= {"EVENT-1", "EVENT-2"}, found.text()
    found.violations.unpersist()
    known.jobs.unpersist()


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """The log of two tenants with three purges each, as rows, and their series."""

    async def make(store):
        await lives_and_purges(store, "acme", "abc")
        await lives_and_purges(store, "other", "abc")
        series = {event.tenant: event.data["series"] for event in await all_events(store) if event.kind == "purged"}
        return [to_row(event) for event in await all_events(store)], series

    return of_store(f"file:{tmp_path_factory.mktemp('purges')}", make)


def judged(spark, rows, counts, gap=None):
    """The findings in this log with these counts, for a store without jobs; `gap` is after one row, up to another."""
    gaps = [] if gap is None else [(0, gap[0]["position"], gap[1]["position"], rows[0]["at"], None)]
    end = max(row["position"] for row in rows)
    known = StoreJobs(spark.createDataFrame([], JOBS), [end], counts)
    found = audit_events(frame(spark, rows), spark.createDataFrame(gaps, GAPS), store=known)
    found.violations.unpersist()
    return [(violation.tenant, violation.explanation) for violation in found.samples]


def test_a_store_with_a_lower_purge_count_than_the_log_is_found(spark, of_two):
    rows, series = of_two
    counts = [PurgeCount("acme", series["acme"], 2), PurgeCount("other", series["other"], 3)]
    ((tenant, said),) = judged(spark, rows, counts)
    assert (tenant, said) == ("acme", "the store has counted 2 purges of tenant acme, but the log has purge 3")
    assert judged(spark, rows, [PurgeCount("acme", series["acme"], 3), counts[1]]) == []


def test_purges_that_may_be_in_a_gap_are_not_judged(spark, of_two):
    """The gap is exact: what is missing elsewhere is found."""
    rows, series = of_two
    counts = [PurgeCount("acme", series["acme"], 3), PurgeCount("other", series["other"], 3)]
    mine = [row for row in rows if row["tenant"] == "acme"]
    theirs = [row for row in rows if row["tenant"] == "other"]
    assert judged(spark, [*mine[:3], *mine[6:], *theirs], counts, (mine[2], mine[5])) == []
    lost = [row for row in theirs if row is not theirs[5]]
    ((tenant, said),) = judged(spark, [*mine[:3], *mine[6:], *lost], counts, (mine[2], mine[5]))
    assert tenant == "other"
    assert "purge 3 of its tenant and comes after purge 1" in said
    # All of the other tenant's purges may have been in the gap, and the last one of this tenant.
    assert judged(spark, mine[:8], counts, (mine[7], theirs[8])) == []


async def test_a_purge_after_a_move_back_continues_the_count(tmp_path):
    """A tenant's count stays in its store, wherever its jobs are meanwhile."""
    store = await open_store(f"file:{tmp_path}/store")
    try:
        await lives_and_purges(store, "acme", "abc")
        assert await store.tenants() == []
        await lives_and_purges(store, "acme", "a")
        ((counted,), cursor) = await _counts(store)
        assert (counted.tenant, counted.count, cursor) == ("acme", 4, None)
    finally:
        await store.close()


async def _counts(store):
    page = await store.purge_counts(None)
    return page.counts, page.cursor
