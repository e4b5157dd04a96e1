"""What was cut from the log before it was read: noted in the lake, and told by the audit, not judged."""

from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.pipeline.audit import audit
from holdfast.pipeline.ingest import Plan, ingest
from holdfast.pipeline.lake import Lake, write_json
from holdfast.store import open_store
from tests.pipeline.settings import only_full


@only_full
async def test_an_ingest_that_came_late_notes_what_was_trimmed_before_and_the_audit_says_so(spark, tmp_path):
    url = f"file:{tmp_path / 'store'}?test_clock=1&keep_events=0"
    store = await open_store(url)
    keys = [JobKey("t", "q", str(n)) for n in range(4)]
    await store.enqueue([NewJob(key, Envelope("send", b"{}")) for key in keys])
    await store.prune(100)
    claimed = await store.claim(ClaimRequest("t", ("q",), 2, 30_000, "w"))
    await store.finish([Finish(job.key, job.token, "complete") for job in claimed.jobs])
    await store.close()
    lake = Lake(tmp_path / "lake", create=True)
    ingest(spark, lake, Plan(url.partition("?")[0]))
    found = audit(spark, lake)
    assert found.counts == {}
    assert found.notes == ["the log was cut before it was read: 2 events follow on what is missing, and are not judged"]


def test_a_gap_is_in_the_positions_of_each_shard_that_has_one(spark, tmp_path):
    lake = Lake(tmp_path / "lake", create=True)
    write_json(lake.root / "_origin.json", {"store": "valkey://localhost"})
    lake.note_gap("5.7.9", "5.8.12")
    rows = lake.read(spark, "gaps").orderBy("shard").collect()
    assert [(row["shard"], int(row["from"]), int(row["to"])) for row in rows] == [(1, 7, 8), (2, 9, 12)]
    write_json(lake.root / "_origin.json", {"store": "postgresql://localhost"})
    (row,) = lake.read(spark, "gaps").collect()
    assert [int(part) for part in row["to"].split(".")] == [5, 8, 12]
