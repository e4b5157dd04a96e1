"""The audit: real histories break nothing, and each planted fault is found, by its rule, with its events."""

import asyncio
import threading

import pytest

from holdfast.core.errors import StoreBusy
from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.opening import open_store
from holdfast.pipeline import comparing
from holdfast.pipeline.audit import StoreJobs, audit_events
from holdfast.pipeline.comparing import store_jobs
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.positions import positions
from holdfast.pipeline.schemas import GAPS, JOBS
from holdfast.pipeline.transforms.violations import FINDINGS
from tests.log import all_events
from tests.pipeline.histories import frame, instant, random_history, to_row
from tests.pipeline.plants import PLANTS, Unfit, histories, job_of, kinds
from tests.pipeline.settings import FULL, only_full
from tests.pipeline.traffic import make_traffic, of_store

pytestmark = pytest.mark.xdist_group("spark")

SEEDS = 60 if FULL else 12
CUT, REAL = 1000, 3000
SET_BACK = range(2000, 2020 if FULL else 2004)
MONTH_MS = 30 * 24 * 3_600_000


@pytest.fixture(scope="module")
def shards():
    """Histories by seed, each a shard."""
    found = {}
    for row in asyncio.run(random_history(range(SEEDS))):
        found.setdefault(row["shard"], []).append(row)
    return found


def moved(rows, shard):
    """The same history as another shard, of other tenants."""
    return [row | {"shard": shard, "tenant": f"{row['tenant']}-{shard}"} for row in rows]


def plant(shards, fault, shard):
    """The first history that has a place for this fault, with it."""
    for rows in shards.values():
        try:
            return fault(moved(rows, shard))
        except Unfit:
            continue
    raise AssertionError(f"no history has a place for {fault.__name__}")


@pytest.fixture(scope="module")
def planted(spark, shards):
    """One audit over a shard for each fault, one whose log was cut, some whose clock was set back, all as it was."""
    rows, expected = [], {}
    for number, fault in enumerate(PLANTS):
        faulty, expected[fault] = plant(shards, fault, number)
        rows += faulty
    longest = max(shards.values(), key=len)
    cut = moved(longest, CUT)
    middle = len(cut) // 2
    rows += cut[:middle] + cut[middle + 10 :]
    rows += asyncio.run(random_history(SET_BACK, back_ms=MONTH_MS))
    for number, history in shards.items():
        rows += moved(history, REAL + number)
    gap = (CUT, cut[middle - 1]["position"], cut[middle + 9]["position"], cut[0]["at"], None)
    audit = audit_events(frame(spark, rows), spark.createDataFrame([gap], GAPS), extensions=True, limit=1000)
    yield audit, expected
    audit.violations.unpersist()


def found_in(audit, *shards):
    return {(found.rule, job_of(vars(found)), found.positions[-1]) for found in audit.samples if found.shard in shards}


@pytest.mark.parametrize("fault", PLANTS, ids=lambda fault: fault.__name__)
def test_a_planted_error_is_found_with_its_events_and_no_other(planted, fault):
    audit, expected = planted
    assert found_in(audit, PLANTS.index(fault)) == expected[fault]


def test_trimmed_events_are_reported_as_trimmed_and_not_as_lost(planted):
    audit, _ = planted
    assert found_in(audit, CUT) == set()
    assert any("the log was trimmed" in note for note in audit.notes)


def test_a_clock_that_was_set_back_is_reported_and_breaks_no_rule(planted):
    audit, _ = planted
    assert found_in(audit, *SET_BACK) == set()
    (note,) = (note for note in audit.notes if "clock was set back" in note)
    assert int(note.partition("set back: ")[2].partition(" ")[0]) >= len(SET_BACK)


def test_a_broken_audit_says_so_in_text_and_in_json(planted):
    audit, _ = planted
    assert audit.broken
    assert audit.text().startswith(f"{audit.total:,} violations over {audit.events:,} events\n")
    assert "CLAIM-1: 1\n" in audit.text()
    assert audit.document()["counts"] == audit.counts
    assert audit.violations.count() == audit.total


def test_real_histories_break_no_rule(planted, shards):
    audit, _ = planted
    assert len(shards) == SEEDS
    assert found_in(audit, *(REAL + number for number in shards)) == set()


def two_done(shards):
    """Two jobs of one history and one tenant that were completed at once."""
    done = (
        [job for job in histories(rows) if kinds(job) == ["enqueued", "claimed", "completed"]]
        for rows in shards.values()
    )
    jobs = next(found for found in done if len(found) > 1)
    first, second = sorted(jobs[:2], key=lambda job: job[1]["position"])
    return first, [row | {"tenant": first[0]["tenant"]} for row in second]


def found_alone(spark, rows):
    """What an audit finds in these events, all of it."""
    audit = audit_events(frame(spark, rows), spark.createDataFrame([], GAPS), extensions=True)
    found = found_in(audit, rows[0]["shard"])
    assert audit.total == len(found)
    assert ", ".join(f"{name} {kind}" for name, kind in audit.violations.dtypes) == FINDINGS
    return found


def test_a_token_granted_twice_is_found_in_an_otherwise_correct_log(spark, shards):
    first, second = two_done(shards)
    second = [second[0], *(row | {"token": first[1]["token"]} for row in second[1:])]
    expected = {("LEASE-5", job_of(row), row["position"]) for row in second[1:]}
    assert found_alone(spark, [*first, *second]) == expected


def test_a_token_of_another_job_is_found(spark, shards):
    first, (*begun, last) = two_done(shards)
    rows = [*first, *begun, last | {"token": first[1]["token"]}]
    assert found_alone(spark, rows) == {("LEASE-5", job_of(last), last["position"])}


def test_a_duplicate_extension_is_found_in_an_otherwise_correct_log(spark, shards):
    (born, claimed, done), _ = two_done(shards)
    extended = claimed | {"kind": "extended", "position": claimed["position"] + "!", "number": 3}
    rows = [born, claimed, extended, done | {"number": 4}]
    assert found_alone(spark, rows) == set()
    assert found_alone(spark, [*rows, extended]) == {("EVENT-1", job_of(extended), extended["position"])}


def test_two_events_at_one_position_are_found_in_an_otherwise_correct_log(spark, shards):
    first, (born, claimed, done) = two_done(shards)
    rows = [*first, born, claimed, done | {"position": claimed["position"]}]
    (found,) = found_alone(spark, rows)
    assert found[:2] == ("EVENT-1", job_of(done))


def test_another_jobs_token_in_the_first_event_is_found(spark, shards):
    first, (born, *_, last) = two_done(shards)
    token = first[1]["token"]
    canceled = last | {"kind": "canceled", "attempt": 0, "token": token, "number": 2}
    rows = [*first, born | {"token": token}, canceled]
    assert ("LEASE-5", job_of(last), last["position"]) in found_alone(spark, rows)


async def test_an_audit_reads_the_jobs_that_are_alive_by_the_log(spark, tmp_path):
    """A real store with the real clock: a job that it has lost, one that ended unseen, one that was never logged."""
    store = await open_store(f"file:{tmp_path}?test_clock=1")
    keys = [JobKey("t", "q", str(n)) for n in range(5)]
    await store.enqueue([NewJob(key, Envelope("send", b"{}")) for key in keys])
    claimed = await store.claim(ClaimRequest("t", ("q",), 2, 30_000, "w"))
    await store.finish([Finish(job.key, job.token, "complete") for job in claimed.jobs])
    await store.shift_clock(120_000)
    await store.enqueue([NewJob(JobKey("t", "q", "later"), Envelope("send", b"{}"))])
    page = await store.events(None, None, 100)
    jobs = [job for job in await store.get([*keys, JobKey("t", "q", "later")]) if job]
    end = await store.last_offset()
    await store.close()

    ended = claimed.jobs[0].id
    rows = [to_row(event) for event in page.events if not (event.job_id == ended and event.kind == "completed")]
    lost, unlogged = (job for job in jobs if job.state == "ready" and job.id != "later").__next__().id, "ghost"
    stored = [job_row(job) for job in jobs if job.id != lost]
    stored.append(job_row(jobs[0]) | {"id": unlogged})
    frame_of_jobs = spark.createDataFrame([tuple(row[name] for name in JOBS.fieldNames()) for row in stored], JOBS)
    audit = audit_events(
        frame(spark, rows), spark.createDataFrame([], GAPS), store=StoreJobs(frame_of_jobs, positions("file:", end))
    )
    found = {(violation.rule, violation.job_id) for violation in audit.samples}
    assert found == {("STATE-1", lost), ("EVENT-1", ended), ("EVENT-1", unlogged)}
    assert audit.waiting == 5


def job_row(job):
    """The columns of a job from the data source that the audit reads."""
    row = dict.fromkeys(JOBS.fieldNames()) | {
        "tenant": job.tenant, "queue": job.queue, "id": job.id, "state": str(job.state), "type": job.envelope.type,
        "enqueued_at": instant(job.enqueued_at), "visible_at": instant(job.visible_at),
        "finished_at": instant(job.finished_at), "codec": "json", "worker_id": job.worker_id, "events": job.events,
    }  # fmt: skip
    return row | {name: 0 for name, value in row.items() if value is None and not JOBS[name].nullable}


@only_full
def test_an_audit_with_the_store_waits_for_the_ingest_that_follows_the_log(spark, file_url, tmp_path, monkeypatch):
    lake = Lake(tmp_path / "lake", create=True)
    of_store(file_url, lambda store: make_traffic(store, 10))
    stop, began = threading.Event(), threading.Event()
    plan = IngestPlan(file_url, follow=True, interval_s=0.2)
    follow = threading.Thread(target=ingest, args=(spark, lake, plan, lambda _: began.set(), stop.is_set))
    follow.start()
    try:
        assert began.wait(60)
        of_store(file_url, lambda store: make_traffic(store, 10, seed=2))
        known = store_jobs(spark, lake, file_url)
        events = of_store(file_url, all_events)
        assert lake.read(spark, "events").count() == len(events)
        assert known.jobs.count() == 20
    finally:
        stop.set()
        follow.join()

    # An audit that does not come to its end says why.
    of_store(file_url, lambda store: make_traffic(store, 1, seed=3))
    monkeypatch.setattr(comparing, "PATIENCE_S", 0)
    with lake.lock("ingest"), pytest.raises(StoreBusy, match="already running on this lake: process") as busy:
        store_jobs(spark, lake, file_url)
    assert "did not take in the log" in busy.value.__notes__[0]
