"""A long history of events, made by Spark SQL, and what the audit and the job runs cost next to a plain scan of it.

    python -m bench.spark_history [EVENTS]

Four in five jobs complete at once, the others are retried, and some of those end in the dead letters.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import functions as fn

from holdfast.pipeline.audit import audit_events
from holdfast.pipeline.batches import Batch
from holdfast.pipeline.checksums import read_sums
from holdfast.pipeline.damage import IngestedBatches
from holdfast.pipeline.schemas import BRONZE_EVENTS, GAPS
from holdfast.pipeline.session import jvm_pid, make_session
from holdfast.pipeline.transforms.attempts import attempts
from holdfast.pipeline.transforms.runs import job_runs
from holdfast.pipeline.transforms.violations import batch_sums, tally

PER_JOB = 3.58
"""Events of a job in the mean."""
BATCH = 100_000

# A job has n runs: 1, 2 or 4. Step 0 is its birth, 2k-1 its k-th claim, 2k what came of that.
JOBS = """
SELECT id, pmod(hash(id), 100) AS dice, 1893456000000 + id * 97 AS born_ms,
  concat('tenant-', pmod(hash(id, 1), 40)) AS tenant, concat('queue-', pmod(hash(id, 2), 5)) AS queue,
  concat('job-', lpad(id, 12, '0')) AS job_id, concat('type-', pmod(hash(id, 3), 8)) AS type,
  CASE WHEN pmod(hash(id), 100) < 3 THEN 4 WHEN pmod(hash(id), 100) < 20 THEN 2 ELSE 1 END AS runs
FROM range({jobs})
"""
STEPS = """
SELECT *, born_ms + step * (500 + pmod(hash(id, step), 2000)) + step * step * 3000 AS at_ms,
  int((step + 1) / 2) AS attempt,
  CASE WHEN step = 0 THEN 'enqueued' WHEN step % 2 = 1 THEN 'claimed' WHEN step < 2 * runs THEN 'retried'
    WHEN runs = 4 THEN 'failed' ELSE 'completed' END AS kind
FROM (SELECT *, explode(sequence(0, 2 * runs)) AS step FROM jobs)
"""
EVENTS = """
SELECT 0 AS shard, lpad(at_ms * 1000 + id % 1000, 20, '0') || lpad(id, 12, '0') AS position,
  concat(at_ms, '.', id, '.', step) AS offset, kind, tenant, queue, job_id, type, timestamp_millis(at_ms) AS at,
  step + 1 AS number, attempt, bigint(IF(step = 0, 0, id * 8 + attempt)) AS token,
  IF(step = 0, '', concat('worker-', pmod(hash(id, attempt), 50))) AS worker_id,
  IF(step = 0, 5, NULL) AS priority, IF(step = 0, 4, NULL) AS max_attempts,
  CASE WHEN step = 0 THEN timestamp_millis(at_ms) WHEN step % 2 = 1 THEN timestamp_millis(born_ms)
    WHEN kind = 'retried' THEN timestamp_millis(at_ms + 100) END AS visible_at,
  IF(kind = 'claimed', timestamp_millis(at_ms + 600000), NULL) AS deadline,
  IF(kind = 'failed', 'max_attempts', NULL) AS reason,
  IF(kind IN ('retried', 'failed'), 'builtins.ValueError', NULL) AS error_type,
  IF(kind IN ('retried', 'failed'), concat('item ', id, ' of the list could not be read'), NULL) AS error_message,
  IF(kind IN ('retried', 'failed'), substr(sha1(concat(type, pmod(hash(id, 4), 20))), 1, 16), NULL) AS fingerprint,
  to_json(named_struct('visible_at', at_ms, 'step', step, 'type', type)) AS data,
  to_date(timestamp_millis(at_ms)) AS date, bigint(id / {batch}) AS batch
FROM steps
"""


def write_history(spark, path, events):
    """Write about this many events as a bronze table."""
    jobs = int(events / PER_JOB)
    spark.sql(JOBS.format(jobs=jobs)).createOrReplaceTempView("jobs")
    spark.sql(STEPS).createOrReplaceTempView("steps")
    made = spark.sql(EVENTS.format(batch=int(BATCH / PER_JOB))).select(*BRONZE_EVENTS.fieldNames())
    made.write.mode("overwrite").partitionBy("date", "batch").parquet(str(path))


def notes_of(events):
    """What the notes of the batches would say of these events."""
    days = {}
    for row in batch_sums(tally(events, summed=True)).collect():
        days.setdefault(row["batch"], {})[str(row["date"])] = read_sums(row)
    return IngestedBatches(
        [Batch(batch, sum(one.events for one in said.values()), days=said) for batch, said in days.items()]
    )


def timed(name, act, base=None):
    """Run it twice, and say what the second run took: of the clock, and of the processors."""
    act()
    began, used = time.perf_counter(), _cpu()
    act()
    took, used = time.perf_counter() - began, _cpu() - used
    ratio = f", {took / base[0]:.2f} and {used / base[1]:.2f} times a scan" if base else ""
    print(f"{name:10} {took:6.1f} s, {used:6.1f} s of processors{ratio}", flush=True)
    return took, used


def _cpu():
    ticks = Path(f"/proc/{jvm_pid()}/stat").read_text().rpartition(")")[2].split()
    own = resource.getrusage(resource.RUSAGE_SELF)
    return (int(ticks[11]) + int(ticks[12])) / 100 + own.ru_utime + own.ru_stime


def main():
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    spark = make_session("local[2]")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "events"
        write_history(spark, path, wanted)
        events = spark.read.schema(BRONZE_EVENTS).parquet(str(path))
        gaps = spark.createDataFrame([], GAPS)
        print(f"{events.count():,} events, local[2]", flush=True)

        def noop(frame):
            frame.write.format("noop").mode("overwrite").save()

        taken_in = notes_of(events)

        def audited():
            found = audit_events(events, gaps, ingested=taken_in)
            assert not found.broken, found.text()
            found.violations.unpersist()

        scan = timed("scan", lambda: noop(events))
        timed("job runs", lambda: noop(job_runs(events)), scan)
        timed("attempts", lambda: noop(attempts(events)), scan)
        timed("audit", audited, scan)
        kinds = {
            row["kind"]: row["count"] for row in events.groupBy("kind").agg(fn.count("*").alias("count")).collect()
        }
        print(kinds)
    spark.stop()


if __name__ == "__main__":
    main()
