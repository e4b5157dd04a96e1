"""DataFrames as jobs: each row is one enqueue with its own id, so that a task may run twice.

Columns:

    id                  the job's id; default: the idempotency key. One of the two is required
    idempotency_key     unique among the jobs of that type, for as long as the option `idempotency` says
    payload             a struct, map or array, JSON in a string, or bytes in the codec of the option `codec`
    queue, type         override the options of that name
    priority, max_attempts
    run_at (timestamp) or delay (seconds)

Options:

    store, tenant       the store and the tenant; a tenant never comes from a row [TENANT-1]
    queue, type         for rows without a value of their own (queue: default)
    codec               for payloads that are bytes (json)
    priority, maxAttempts, resultTtl (seconds)
    idempotency         until_terminal (the default), until_started or forever
    patience            how many seconds to wait for a full quota or an unavailable store (300)
    write               a name for this write: rows that it has enqueued before are not enqueued again, even if their
                        jobs were canceled since [ENQ-8]; default: a new name for each write

An invalid row fails the write; rows that were enqueued before stay. Count the jobs in the store: Spark may lose the
counts of a task.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast, get_args

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from holdfast.budgets import ceiling_ms
from holdfast.core import names
from holdfast.core.budgets import check_kept
from holdfast.core.errors import (
    HoldfastError,
    InvalidOption,
    InvalidPayload,
    QuotaExceeded,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.core.job import (
    RESULT_TTL,
    AlreadyCompleted,
    Duplicate,
    Envelope,
    IdempotencyKey,
    JobKey,
    KeyPolicy,
    NewJob,
)
from holdfast.jobs import codec as codecs
from holdfast.jobs.options import duration_ms, instant_ms
from holdfast.pipeline.source_options import number, store_url

if TYPE_CHECKING:
    from holdfast.pipeline.connection import OpenStore
    from holdfast.store import EnqueueAnswer

CHUNK = 1000
PAUSE_S, MAX_PAUSE_S = 0.1, 5.0

COLUMNS = ("id", "idempotency_key", "payload", "queue", "type", "priority", "max_attempts", "run_at", "delay")
"""The columns that a row may have."""
_WRITING = frozenset({
    "store", "path", "tenant", "queue", "type", "codec", "priority", "maxattempts", "resultttl", "idempotency",
    "patience", "write", "checkpointlocation",
})  # fmt: skip


@dataclass
class Written(WriterCommitMessage):
    """The answers that a task counted."""

    queued: int = 0
    """New jobs, including those of an earlier attempt of this task."""
    duplicates: int = 0
    completed: int = 0

    def add(self, answer: EnqueueAnswer) -> None:
        """Count one answer."""
        if isinstance(answer, Duplicate):
            self.duplicates += 1
        elif isinstance(answer, AlreadyCompleted):
            self.completed += 1
        else:
            self.queued += 1


class WriteOptions:
    """The checked options and columns of a write."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in _WRITING:
                raise InvalidOption(name, "there is no such option for writing")
        if overwrite:
            raise InvalidOption("mode", "jobs are added, never replaced; use .mode('append')")
        self.store = store_url(given)
        if "tenant" not in given:
            raise InvalidOption("tenant", "not given; use .option('tenant', NAME)")
        self.tenant = names.check_tenant(given["tenant"])
        self.queue = names.check_own_queue(given.get("queue", "default"))
        self.type = names.check_type(given["type"]) if given.get("type") else ""
        self.codec = codecs.get(given.get("codec", "json")).name
        self.priority = names.check_priority(int(given.get("priority", "5")))
        self.max_attempts = names.check_max_attempts(number("maxAttempts", given.get("maxattempts", "4")))
        ttl = given.get("resultttl")
        self.result_ttl_ms = RESULT_TTL if ttl is None else duration_ms("resultTtl", float(ttl))
        policy = given.get("idempotency", "until_terminal")
        if policy not in get_args(KeyPolicy) or policy == "ttl":
            raise InvalidOption("idempotency", f"{policy!r} is not 'until_terminal', 'until_started' or 'forever'")
        self.policy: KeyPolicy = cast("KeyPolicy", policy)
        self.patience_s = float(given.get("patience", "300"))
        self.write = given.get("write") or uuid.uuid4().hex
        self.columns = frozenset(schema.fieldNames())
        self._check_columns(schema)

    def _check_columns(self, schema: StructType) -> None:
        if unknown := self.columns.difference(COLUMNS):
            reason = (
                f"jobs have no such column, only {', '.join(sorted(COLUMNS))}. Put the rest into a struct `payload`"
            )
            raise InvalidOption(f"column {min(unknown)}", reason)
        if not self.columns & {"id", "idempotency_key"}:
            reason = "a column id or idempotency_key is required: Spark may run a task twice"
            raise InvalidOption("id", reason)
        if "payload" not in self.columns:
            raise InvalidOption("payload", "the column is missing; create it with struct(...) or to_json(...)")
        if {"run_at", "delay"} <= self.columns:
            raise InvalidOption("delay", "give a column run_at or delay, not both")
        kind = schema["payload"].dataType
        self.payload_is = (
            "text" if isinstance(kind, StringType) else "bytes" if isinstance(kind, BinaryType) else "value"
        )


class _Write:
    """What batch and stream writes share."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = WriteOptions(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Enqueue the rows of one task."""
        from holdfast.pipeline.connection import OpenStore
        from holdfast.pipeline.reader import freeze_imports

        written = Written()
        with OpenStore(self._options.store) as opened:
            check_kept("resultTtl", self._options.result_ttl_ms, ceiling_ms(opened.store))
            sender = _Sender(opened, self._options.patience_s, written)
            for batch in iterator:
                jobs = list(_jobs(batch, self._options))
                for at in range(0, len(jobs), CHUNK):
                    sender.send(jobs[at : at + CHUNK])
            sender.finish()
        freeze_imports()
        return written


class Sink(_Write, DataSourceArrowWriter):
    """A batch write."""


class StreamSink(_Write, DataSourceStreamArrowWriter):
    """A write of a stream."""


class _Sender:
    """Sends chunks of jobs, the next one while the last is in flight. Sends again what was refused for now."""

    def __init__(self, opened: OpenStore, patience_s: float, written: Written) -> None:
        self._opened, self._patience_s, self._written = opened, patience_s, written
        self._sent: tuple[list[NewJob], Future[list[EnqueueAnswer]]] | None = None

    def send(self, jobs: list[NewJob]) -> None:
        following = (jobs, self._start(jobs))
        self.finish()
        self._sent = following

    def finish(self) -> None:
        """Wait until everything that was sent is enqueued."""
        if self._sent is None:
            return
        (jobs, answers), self._sent = self._sent, None
        until = time.monotonic() + self._patience_s
        pause_s = PAUSE_S
        while True:
            left, reason = self._take(jobs, answers)
            if reason is None:
                return
            if len(left) < len(jobs):
                # There is progress: wait the full time again.
                until, pause_s = time.monotonic() + self._patience_s, PAUSE_S
            if time.monotonic() >= until:
                reason.add_note(
                    f"{len(left)} rows of this task were not enqueued after {self._patience_s:g} s; "
                    "write again: enqueued rows are not enqueued twice"
                )
                raise reason
            time.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 - jitter
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            jobs, answers = left, self._start(left)

    def _start(self, jobs: list[NewJob]) -> Future[list[EnqueueAnswer]]:
        return self._opened.start(self._opened.store.enqueue(jobs))

    def _take(
        self, jobs: list[NewJob], answers: Future[list[EnqueueAnswer]]
    ) -> tuple[list[NewJob], HoldfastError | None]:
        """Count the answers. Returns the jobs that are left, and why."""
        try:
            answered = answers.result()
        except (StoreBusy, StoreUnavailable) as error:
            return jobs, error
        left: list[NewJob] = []
        reason: HoldfastError | None = None
        for job, answer in zip(jobs, answered, strict=True):
            if isinstance(answer, QuotaExceeded):
                left.append(job)
                reason = answer
            else:
                self._written.add(answer)
        return left, reason


# From rows to jobs ----------------------------------------------------------------------------------------------


def _jobs(batch: Any, options: WriteOptions) -> Iterator[NewJob]:
    rows = {name: cast("list[Any]", batch.column(name).to_pylist()) for name in options.columns}
    nothing = [None] * batch.num_rows
    columns = [rows.get(name, nothing) for name in COLUMNS]
    for row in zip(*columns, strict=True):
        try:
            yield _job(row, options)
        except HoldfastError as error:
            error.add_note(f"in the row with id {row[0]!r}, key {row[1]!r}")
            raise


def _job(row: Sequence[Any], options: WriteOptions) -> NewJob:
    id_, key, payload, queue, type_, priority, attempts, run_at, delay = row
    if id_ is None and key is None:
        raise InvalidOption("id", "a row has neither an id nor an idempotency key")
    # When a task is repeated, its key may be free again. An id made from the key still finds the first job.
    id_ = names.check_id(str(key if id_ is None else id_))
    queue = options.queue if queue is None else _queue(queue)
    envelope = Envelope(
        options.type if type_ is None else _type(type_),
        codecs.check_size(_payload(payload, options)),
        options.codec if options.payload_is == "bytes" else "json",
        priority=options.priority if priority is None else names.check_priority(int(priority)),
        max_attempts=options.max_attempts if attempts is None else names.check_max_attempts(int(attempts)),
        result_ttl_ms=options.result_ttl_ms,
        request_id=_request_id(options.write, queue, id_),
        idempotency=None if key is None else IdempotencyKey(names.check_id(key, "idempotency key"), options.policy),
    )
    delay_ms = 0 if delay is None else duration_ms("delay", delay)
    at = None if run_at is None else max(0, instant_ms("run_at", cast("datetime", run_at)))
    return NewJob(JobKey(options.tenant, queue, id_), envelope, delay_ms, at)


def _payload(value: Any, options: WriteOptions) -> bytes:
    if value is None:
        raise InvalidPayload("the payload is null")
    if options.payload_is == "value":
        return codecs.encode(value)
    data: bytes = value.encode() if options.payload_is == "text" else value
    if options.payload_is == "text" or options.codec == "json":
        codecs.decode_json_text(data)
    return data


def _request_id(write: str, queue: str, id_: str) -> str:
    return hashlib.blake2b(names.join_key(write, queue, id_).encode(), digest_size=16).hexdigest()


_queue = lru_cache(maxsize=1024)(names.check_own_queue)
_type = lru_cache(maxsize=1024)(names.check_type)
