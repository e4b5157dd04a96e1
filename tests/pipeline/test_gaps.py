"""Events trimmed before they were read: noted in the lake, and reported by the audit, not judged."""

from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.ids import new_id
from holdfast.opening import open_store
from holdfast.pipeline.audit import audit
from holdfast.pipeline.comparing import store_jobs
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.json_files import write_json
from holdfast.pipeline.lake import Lake
from tests.pipeline.damages import remove_from_log
from tests.pipeline.settings import only_full


@only_full
async def test_a_late_ingest_records_trimmed_events_and_the_audit_reports_them(spark, tmp_path):
    url = f"file:{tmp_path / 'store'}?test_clock=1&keep_events=0"
    store = await open_store(url)
    keys = [JobKey("t", "q", str(n)) for n in range(4)]
    await store.enqueue([NewJob(key, Envelope("send", b"{}")) for key in keys])
    await store.prune(100)
    claimed = await store.claim(ClaimRequest("t", ("q",), 2, 30_000, "w"))
    await store.finish([Finish(job.key, job.token, "complete") for job in claimed.jobs])
    await store.close()
    lake = Lake(tmp_path / "lake", create=True)
    ingest(spark, lake, IngestPlan(url.partition("?")[0]))
    found = audit(spark, lake)
    assert found.counts == {}
    assert found.notes == ["the log was trimmed before it was read: 2 events follow a gap and are not judged"]


async def test_trimmed_events_of_single_tenants_are_recorded_by_tenant(spark, tmp_path):
    """A loss in another tenant's gap is found. [EVENT-2]"""
    url = f"file:{tmp_path / 'store'}?keep_events=30"
    store = await open_store(url)
    for tenant, count in (("quiet", 2), ("loud", 20), ("quiet", 1), ("loud", 20)):
        for _ in range(count):
            await store.enqueue([NewJob(JobKey(tenant, "q", new_id()), Envelope("send", b"{}"))])
            claimed = await store.claim(ClaimRequest(tenant, ("q",), 1, 30_000, "w"))
            await store.finish([Finish(job.key, job.token, "complete") for job in claimed.jobs])
    last = (await store.events("quiet", None, 100)).events[-1]
    await store.prune(100)
    await store.close()
    lake = Lake(tmp_path / "lake", create=True)
    done = ingest(spark, lake, IngestPlan(url.partition("?")[0]))
    assert (done.events, done.gaps) == (30, 1)
    (row,) = lake.read(spark, "gaps").collect()
    assert (row["tenant"], int(row["from"]), int(row["to"])) == ("loud", 0, 108)
    found = audit(spark, lake)
    assert found.counts == {}
    remove_from_log(url, last)
    other = Lake(tmp_path / "other", create=True)
    assert ingest(spark, other, IngestPlan(url.partition("?")[0])).events == 29
    found = audit(spark, other, store=store_jobs(spark, other, url.partition("?")[0]))
    assert found.counts == {"EVENT-1": 1}
    assert "quiet" in str(found.samples)


def test_a_gap_is_in_the_positions_of_each_shard_that_has_one(spark, tmp_path):
    lake = Lake(tmp_path / "lake", create=True)
    write_json(lake.root / "_origin.json", {"store": "valkey://localhost"})
    lake.record_gap("5.7.9", "5.8.12")
    rows = lake.read(spark, "gaps").orderBy("shard").collect()
    assert [(row["shard"], int(row["from"]), int(row["to"])) for row in rows] == [(1, 7, 8), (2, 9, 12)]
    write_json(lake.root / "_origin.json", {"store": "postgresql://localhost"})
    (row,) = lake.read(spark, "gaps").collect()
    assert [int(part) for part in row["to"].split(".")] == [5, 8, 12]
