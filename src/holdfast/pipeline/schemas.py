"""Every table of the pipeline: its columns in order.

All instants are UTC with milliseconds. Durations are whole milliseconds (`*_ms`). `EVENTS` and `JOBS` are the rows of
the data source `holdfast`. The others are tables of a lake; bronze tables also have the day and the micro-batch that
wrote the row.
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
"""Counts by bucket. They can be added up over hours, queues and tenants."""


def _struct(*fields: tuple[str, DataType] | tuple[str, DataType, str]) -> StructType:
    """Columns by name and type. A third item, "null", means that the value may be missing."""
    return StructType([StructField(field[0], field[1], nullable=len(field) > 2) for field in fields])  # noqa: PLR2004


def _join(*parts: StructType) -> StructType:
    return StructType([field for part in parts for field in part.fields])


# Rows of the data source ---------------------------------------------------------------------------------

EVENTS = _struct(
    ("shard", INT),  # 0 if the store has one log
    ("position", TEXT),  # sorts, byte by byte, in log order within the shard
    ("offset", TEXT),  # the store's offset, an opaque text
    ("kind", TEXT),
    ("tenant", TEXT),
    ("queue", TEXT),
    ("job_id", TEXT),
    ("type", TEXT),
    ("at", INSTANT),
    ("number", INT),  # within the job's life: 1, 2, 3 ...; 0 if the store did not count
    ("attempt", INT),
    ("token", LONG),
    ("worker_id", TEXT),  # empty if there is none
    ("priority", INT, "null"),  # for enqueued
    ("max_attempts", INT, "null"),  # for enqueued
    ("visible_at", INSTANT, "null"),  # for enqueued, claimed, retried, released, expired, replayed
    ("deadline", INSTANT, "null"),  # for claimed and extended
    ("reason", TEXT, "null"),  # for failed
    ("error_type", TEXT, "null"),  # for retried, failed, expired
    ("error_message", TEXT, "null"),
    ("fingerprint", TEXT, "null"),
    ("data", TEXT),  # all data of the event, as JSON
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
    ("events", INT),  # the number of its last event; 0 if the store did not count
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
# With the option `into`: the files that tasks have written, each with the checksum of what was read. A row without a
# file has the gaps in the events of single tenants.
FILES = _struct(("date", DATE), ("file", TEXT), ("rows", LONG), ("checksum", TEXT), ("gaps", TEXT, "null"))

JOBS_WITH_PAYLOAD = _join(JOBS, _struct(("size", LONG), ("payload", BYTES)))

# Bronze: events as they were read ----------------------------------------------------------------------

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

# Ranges of the log that were trimmed before they were read.
GAPS = _struct(
    ("shard", INT),
    ("from", TEXT),  # positions: events after this one ("": from the beginning) ...
    ("to", TEXT),  # ... up to and including this one are missing
    ("seen_at", INSTANT),
    ("tenant", TEXT, "null"),  # whose events are missing; null: those of all tenants
)

# Silver: jobs and their attempts ----------------------------------------------------------------------------

_JOB = _struct(
    ("tenant", TEXT),
    ("queue", TEXT),
    ("job_id", TEXT),
    ("life", INT),  # 1, 2, ...: each `enqueued` of the same id begins a new life; 0 if the log began later
)

JOB_RUNS = _join(
    _JOB,
    _struct(
        ("type", TEXT),
        ("priority", INT, "null"),
        ("max_attempts", INT, "null"),
        ("enqueued_at", INSTANT, "null"),  # null if the log began later
        ("first_visible_at", INSTANT, "null"),
        ("first_claimed_at", INSTANT, "null"),
        ("ended_at", INSTANT, "null"),
        ("state", TEXT),  # after the last known event
        ("attempts", INT),
        ("replays", INT),
        ("wait_ms", LONG, "null"),  # from visible to the first claim
        ("run_ms", LONG, "null"),  # from the last claim to the end
        ("total_ms", LONG, "null"),
        ("worker_id", TEXT, "null"),  # the last worker
        ("reason", TEXT, "null"),  # why it failed
        ("error_type", TEXT, "null"),  # of the last error of this life
        ("error_message", TEXT, "null"),
        ("fingerprint", TEXT, "null"),
        ("first_position", TEXT),
        ("last_position", TEXT),
        ("shard", INT),
        ("purged", FLAG),
        ("date", DATE),  # the day on which this life began; it never changes, so the table is partitioned by it
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
        ("outcome", TEXT),  # completed, failed, retried, released, expired, canceled or running
        ("wait_ms", LONG, "null"),
        ("run_ms", LONG, "null"),
        ("error_type", TEXT, "null"),
        ("error_message", TEXT, "null"),
        ("fingerprint", TEXT, "null"),
        ("date", DATE),  # the day on which the life began, as in job_runs
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
    ("count", LONG),  # attempts with this error
    ("dead", LONG),  # those that made their job a dead letter
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
