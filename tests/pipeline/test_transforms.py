"""Silver and gold against the same thing done by hand, event by event, over real histories."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from pyspark.testing import assertDataFrameEqual

from holdfast.pipeline.schemas import ATTEMPTS, FAILURES, HOURLY, JOB_RUNS, SLO
from holdfast.pipeline.transforms.attempts import attempts
from holdfast.pipeline.transforms.failures import failures
from holdfast.pipeline.transforms.hourly import hourly
from holdfast.pipeline.transforms.runs import job_runs
from holdfast.pipeline.transforms.sketches import GROWTH, merged, percentile
from holdfast.pipeline.transforms.slo import Objective, slo
from tests.pipeline.histories import frame, random_history

pytestmark = pytest.mark.xdist_group("spark")

ENDS = ("completed", "failed", "canceled")
NOTES = ("extended", "progressed")


@pytest.fixture(scope="module")
def rows():
    return asyncio.run(random_history(range(20), steps=120))


@pytest.fixture(scope="module")
def events(spark, rows):
    frame_of_rows = frame(spark, rows).cache()
    yield frame_of_rows
    frame_of_rows.unpersist()


def lives(rows):
    """The events of each life, with its number."""
    found, current = {}, Counter()
    for row in rows:
        job = (row["tenant"], row["queue"], row["job_id"])
        current[job] += row["kind"] == "enqueued"
        found.setdefault((*job, current[job]), []).append(row)
    return found


def ms(start, end):
    return None if start is None or end is None else max(0, round((end - start) / timedelta(milliseconds=1)))


def run_of(name, events):
    born, claims = events[0], [event for event in events if event["kind"] == "claimed"]
    change = [event for event in events if event["kind"] not in (*NOTES, "purged")][-1]
    end = change if change["kind"] in ENDS else None
    ended_at = end and end["at"]
    error = next((event for event in reversed(events) if event["fingerprint"]), None)
    later = change["visible_at"] is not None and change["visible_at"] > change["at"]
    state = {"claimed": "leased", "retried": "retrying", "expired": "retrying"}
    waits = "scheduled" if later else "ready"
    return dict(zip(("tenant", "queue", "job_id", "life"), name, strict=True)) | {
        "type": born["type"], "priority": born["priority"], "max_attempts": born["max_attempts"],
        "enqueued_at": born["at"], "first_visible_at": born["visible_at"],
        "first_claimed_at": claims[0]["at"] if claims else None, "ended_at": ended_at,
        "state": change["kind"] if end else state.get(change["kind"], waits),
        "attempts": events[-1]["attempt"] - (events[-1]["kind"] == "released"),
        "replays": [event["kind"] for event in events].count("replayed"),
        "wait_ms": ms(born["visible_at"], claims[0]["at"] if claims else None),
        "run_ms": ms(claims[-1]["at"] if claims else None, ended_at), "total_ms": ms(born["at"], ended_at),
        "worker_id": events[-1]["worker_id"] or None, "reason": end["reason"] if end else None,
        "error_type": error and error["error_type"], "error_message": error and error["error_message"],
        "fingerprint": error and error["fingerprint"], "first_position": born["position"],
        "last_position": events[-1]["position"], "shard": born["shard"], "purged": events[-1]["kind"] == "purged",
        "date": born["at"].date(),
    }  # fmt: skip


def attempts_of(name, events):
    changes = [event for event in events if event["kind"] not in NOTES]
    for claim, end in zip(changes, [*changes[1:], None], strict=True):
        if claim["kind"] == "claimed":
            yield dict(zip(("tenant", "queue", "job_id", "life"), name, strict=True)) | {
                "type": claim["type"], "attempt": claim["attempt"], "token": claim["token"],
                "worker_id": claim["worker_id"], "visible_at": claim["visible_at"], "claimed_at": claim["at"],
                "ended_at": end and end["at"], "outcome": end["kind"] if end else "running",
                "wait_ms": ms(claim["visible_at"], claim["at"]), "run_ms": ms(claim["at"], end and end["at"]),
                "error_type": end and end["error_type"], "error_message": end and end["error_message"],
                "fingerprint": end and end["fingerprint"], "date": events[0]["at"].date(),
            }  # fmt: skip


def table(spark, rows, schema):
    return spark.createDataFrame([tuple(row[name] for name in schema.fieldNames()) for row in rows], schema)


def test_job_runs_are_the_lives_of_the_jobs(spark, rows, events):
    expected = table(spark, [run_of(name, life) for name, life in lives(rows).items()], JOB_RUNS)
    assertDataFrameEqual(job_runs(events), expected, ignoreNullable=True)
    assert {row["state"] for row in expected.collect()} == {
        "scheduled", "ready", "leased", "retrying", "completed", "failed", "canceled"
    }  # fmt: skip


def test_attempts_are_the_claims_with_their_ends(spark, rows, events):
    expected = table(spark, [row for name, life in lives(rows).items() for row in attempts_of(name, life)], ATTEMPTS)
    assertDataFrameEqual(attempts(events), expected, ignoreNullable=True)


def test_a_job_whose_beginning_is_not_known_has_life_0(spark, rows):
    life = next(life for name, life in lives(rows).items() if len(life) == 3 and name[3] == 1)
    (row,) = job_runs(frame(spark, life[1:])).collect()
    assert (row["life"], row["enqueued_at"], row["wait_ms"], row["priority"]) == (0, None, None, None)
    assert row["first_position"] == life[1]["position"]
    assert row["date"] == life[1]["at"].date()


def test_hours_count_events_and_keep_durations_that_add_up(rows, events):
    claimed = attempts(events).cache()
    found = hourly(events, claimed).collect()
    hours = Counter((row["at"].replace(minute=0, second=0, microsecond=0), row["tenant"], row["kind"]) for row in rows)
    assert {field.name for field in HOURLY} == set(found[0].asDict())
    for kind in ("enqueued", "claimed", "completed", "failed", "retried", "released", "expired", "canceled"):
        assert sum(row[kind] for row in found) == sum(count for (_, _, k), count in hours.items() if k == kind)
    waits = sorted(row["wait_ms"] for row in claimed.collect())
    histogram = merged(row["wait_histogram"] for row in found)
    assert sum(row["wait_count"] for row in found) == sum(histogram.values()) == len(waits)
    assert sum(row["wait_sum_ms"] for row in found) == sum(waits)
    for percent in (10, 50, 75, 95, 99, 100):
        exact = waits[max(0, -(-len(waits) * percent // 100) - 1)]
        assert percentile(histogram, percent) == pytest.approx(exact, rel=GROWTH - 1)
    ran = [row for row in claimed.collect() if row["outcome"] in ("completed", "failed", "retried")]
    ran = [row for row in ran if row["error_type"] != "LeaseExpired"]
    assert sum(row["run_count"] for row in found) == len(ran)
    assert sum(row["run_sum_ms"] for row in found) == sum(row["run_ms"] for row in ran)


def test_failures_are_grouped_by_day_and_fingerprint(rows, events):
    found = failures(events).collect()
    assert [field.name for field in FAILURES] == list(found[0].asDict())
    groups = {}
    for row in rows:
        if row["fingerprint"]:
            groups.setdefault((row["date"], row["fingerprint"], row["type"], row["error_type"]), []).append(row)
    assert len(found) == len(groups)
    for row in found:
        group = groups[row["date"], row["fingerprint"], row["type"], row["error_type"]]
        assert row["count"] == len(group)
        assert row["dead"] == sum(event["kind"] == "failed" for event in group)
        assert row["jobs"] == len({(event["tenant"], event["queue"], event["job_id"]) for event in group})
        assert row["tenants"] == len({event["tenant"] for event in group})
        assert row["sample"] in {event["error_message"] for event in group}


def test_the_error_budget_counts_late_and_failed_jobs(spark, rows, events):
    runs = [run_of(name, life) for name, life in lives(rows).items()]
    ended = [run for run in runs if run["state"] in ("completed", "failed")]
    bad = [run for run in ended if run["state"] == "failed" or run["wait_ms"] > 500]
    found = slo(table(spark, runs, JOB_RUNS), Objective(0.9, 0.5)).collect()
    assert [field.name for field in SLO] == list(found[0].asDict())
    assert sum(row["bad"] for row in found) == len(bad)
    assert sum(row["good"] for row in found) == len(ended) - len(bad)
    for row in found:
        assert row["burn_rate"] == pytest.approx(row["bad"] / (row["good"] + row["bad"]) / 0.1)
    assert slo(table(spark, [], JOB_RUNS)).collect() == []


def test_a_percentile_of_nothing_is_none():
    assert percentile({}, 50) is None
    assert percentile({-1: 3}, 50) == 0
