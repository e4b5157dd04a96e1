"""Every table of the pipeline, column by column, in order.

All instants are UTC with milliseconds; durations are whole milliseconds (`*_ms`). `EVENTS` and `JOBS` are what the
data source `holdfast` gives; the others are tables of a lake, where bronze tables also have the day and the
micro-batch they were written by.
"""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

INT, LONG, DOUBLE, TEXT, BYTES = IntegerType(), LongType(), DoubleType(), StringType(), BinaryType()
FLAG, DATE, INSTANT = BooleanType(), DateType(), TimestampType()
HISTOGRAM = MapType(INT, LONG, valueContainsNull=False)
"""Counts by bucket, which can be added up over hours, queues and tenants."""


def _struct(*fields: tuple[str, DataType] | tuple[str, DataType, str]) -> StructType:
    """Columns by name and type; a third item "null" says that a value may be missing."""
    return StructType([StructField(field[0], field[1], nullable=len(field) > 2) for field in fields])  # noqa: PLR2004


def _join(*parts: StructType) -> StructType:
    return StructType([field for part in parts for field in part.fields])


# What the data source gives -------------------------------------------------------------------------------

EVENTS = _struct(
    ("shard", INT),  # 0 where the store has one log
    ("position", TEXT),  # sorts, byte by byte, as the log does within its shard
    ("offset", TEXT),  # the store's own, opaque
    ("kind", TEXT),
    ("tenant", TEXT),
    ("queue", TEXT),
    ("job_id", TEXT),
    ("type", TEXT),
    ("at", INSTANT),
    ("number", INT),  # within the job's life: 1, 2, 3 ...; 0 where the store did not count
    ("attempt", INT),
    ("token", LONG),
    ("worker_id", TEXT),  # "" where there is none
    ("priority", INT, "null"),  # of enqueued
    ("max_attempts", INT, "null"),  # of enqueued
    ("visible_at", INSTANT, "null"),  # of enqueued, claimed, retried, released, expired, replayed
    ("deadline", INSTANT, "null"),  # of claimed and extended
    ("reason", TEXT, "null"),  # of failed
    ("error_type", TEXT, "null"),  # of retried, failed, expired
    ("error_message", TEXT, "null"),
    ("fingerprint", TEXT, "null"),
    ("data", TEXT),  # all that the event says, as JSON
)

JOBS = _struct(
    ("tenant", TEXT),
    ("queue", TEXT),
    ("id", TEXT),
    ("state", TEXT),
    ("type", TEXT),
    ("priority", INT),
    ("attempts", INT),
    ("max_attempts", INT),
    ("replays", INT),
    ("events", INT),  # the number of its last event; 0 where the store did not count
    ("token", LONG),
    ("worker_id", TEXT),
    ("enqueued_at", INSTANT),
    ("visible_at", INSTANT),
    ("claimed_at", INSTANT, "null"),
    ("deadline", INSTANT, "null"),
    ("finished_at", INSTANT, "null"),
    ("expires_at", INSTANT, "null"),
    ("reason", TEXT, "null"),
    ("error_type", TEXT, "null"),  # of the last error
    ("error_message", TEXT, "null"),
    ("fingerprint", TEXT, "null"),
    ("idempotency_key", TEXT, "null"),
    ("codec", TEXT),
    ("version", INT),
)
# With the option `into`: the files that the events were written to, and the checksum of what was read for each; or,
# without a file, what of single tenants was missing.
FILES = _struct(("date", DATE), ("file", TEXT), ("rows", LONG), ("checksum", TEXT), ("gaps", TEXT, "null"))

JOBS_WITH_PAYLOAD = _join(JOBS, _struct(("size", LONG), ("payload", BYTES)))

# Bronze: what was read, as it was read ----------------------------------------------------------------------

_WRITTEN = _struct(("date", DATE), ("batch", LONG))
PARTITIONS = ("date", "batch")

BRONZE_EVENTS = _join(EVENTS, _WRITTEN)

PAYLOADS = _join(
    _struct(
        ("tenant", TEXT),
        ("queue", TEXT),
        ("job_id", TEXT),
        ("enqueued_at", INSTANT),
        ("type", TEXT),
        ("codec", TEXT),
        ("version", INT),
        ("payload", BYTES, "null"),  # with --payloads full
        ("payload_sha256", TEXT, "null"),  # with --payloads hash
        ("size", LONG),
    ),
    _WRITTEN,
)

# Where the log had been cut before it was read: what is missing, and since when that is known.
GAPS = _struct(
    ("shard", INT),
    ("from", TEXT),  # positions: what lies behind this one ("": from the very beginning) ...
    ("to", TEXT),  # ... up to and with this one is missing
    ("seen_at", INSTANT),
    ("tenant", TEXT, "null"),  # of this one alone; null: of all
)

# Silver: jobs and their attempts ----------------------------------------------------------------------------

_JOB = _struct(
    ("tenant", TEXT),
    ("queue", TEXT),
    ("job_id", TEXT),
    ("life", INT),  # 1, 2, ...: a new `enqueued` of the same id begins another; 0 where the log began later
)

JOB_RUNS = _join(
    _JOB,
    _struct(
        ("type", TEXT),
        ("priority", INT, "null"),
        ("max_attempts", INT, "null"),
        ("enqueued_at", INSTANT, "null"),  # null where the log began later
        ("first_visible_at", INSTANT, "null"),
        ("first_claimed_at", INSTANT, "null"),
        ("ended_at", INSTANT, "null"),
        ("state", TEXT),  # as last known
        ("attempts", INT),
        ("replays", INT),
        ("wait_ms", LONG, "null"),  # from visible to the first claim
        ("run_ms", LONG, "null"),  # from the last claim to the end
        ("total_ms", LONG, "null"),
        ("worker_id", TEXT, "null"),  # the last
        ("reason", TEXT, "null"),  # why it failed
        ("error_type", TEXT, "null"),  # of the last error of this life
        ("error_message", TEXT, "null"),
        ("fingerprint", TEXT, "null"),
        ("first_position", TEXT),
        ("last_position", TEXT),
        ("shard", INT),
        ("purged", FLAG),
        ("date", DATE),  # on which this life began; it never changes, so the table is partitioned by it
    ),
)

ATTEMPTS = _join(
    _JOB,
    _struct(
        ("type", TEXT),
        ("attempt", INT),
        ("token", LONG),
        ("worker_id", TEXT),
        ("visible_at", INSTANT, "null"),
        ("claimed_at", INSTANT),
        ("ended_at", INSTANT, "null"),
        ("outcome", TEXT),  # completed failed retried released expired canceled running
        ("wait_ms", LONG, "null"),
        ("run_ms", LONG, "null"),
        ("error_type", TEXT, "null"),
        ("error_message", TEXT, "null"),
        ("fingerprint", TEXT, "null"),
        ("date", DATE),  # on which the life began, as in job_runs
    ),
)

# Gold: figures ------------------------------------------------------------------------------------------------

HOURLY = _struct(
    ("hour", INSTANT),
    ("tenant", TEXT),
    ("queue", TEXT),
    ("type", TEXT),
    ("enqueued", LONG),
    ("claimed", LONG),
    ("completed", LONG),
    ("failed", LONG),
    ("retried", LONG),
    ("released", LONG),
    ("expired", LONG),
    ("canceled", LONG),
    ("wait_count", LONG),
    ("wait_sum_ms", LONG),
    ("wait_histogram", HISTOGRAM),
    ("run_count", LONG),
    ("run_sum_ms", LONG),
    ("run_histogram", HISTOGRAM),
    ("date", DATE),
)

FAILURES = _struct(
    ("fingerprint", TEXT),
    ("type", TEXT),
    ("error_type", TEXT),
    ("sample", TEXT),
    ("first_seen_at", INSTANT),
    ("last_seen_at", INSTANT),
    ("count", LONG),  # attempts that ended so
    ("dead", LONG),  # of these, the last of their job: dead letters
    ("jobs", LONG),
    ("tenants", LONG),
    ("date", DATE),
)

SLO = _struct(
    ("hour", INSTANT),
    ("tenant", TEXT),
    ("queue", TEXT),
    ("target", DOUBLE),
    ("start_within_ms", LONG),
    ("good", LONG),
    ("bad", LONG),
    ("burn_rate", DOUBLE),
    ("date", DATE),
)

TABLES = {
    "events": BRONZE_EVENTS,
    "payloads": PAYLOADS,
    "job_runs": JOB_RUNS,
    "attempts": ATTEMPTS,
    "hourly": HOURLY,
    "failures": FAILURES,
    "slo": SLO,
}
"""The tables of a lake, by name."""
