"""The tasks of a replay, on the executors: they replay jobs and count the replays of each."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard, cast

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.core import failpoint
from holdfast.core.errors import JobNotFound, NotReplayable, QuotaExceeded, StoreBusy, StoreUnavailable
from holdfast.core.job import Job, JobKey, JobState, Replayed
from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.locks import release_lock, take_lock
from holdfast.store import Store

MAX_STEP = 500
"""The most jobs in one call to the store."""
PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
TURN_POLL_S = 0.01

_JOB = [StructField(name, StringType(), nullable=False) for name in ("tenant", "queue", "job_id", "type")]
CHOSEN = StructType(
    [
        *_JOB,
        StructField("error_type", StringType()),
        StructField("fingerprint", StringType()),
        StructField("enqueued_at", TimestampType(), nullable=False),
        StructField("finished_at", TimestampType(), nullable=False),
        StructField("attempts", IntegerType(), nullable=False),
        StructField("replays", IntegerType(), nullable=False),
    ]
)
ANSWERS = StructType(
    [
        *CHOSEN.fields,
        # replayed (by this run, or otherwise since the set was written), gone, refused, quota
        StructField("answer", StringType(), nullable=False),
        StructField("detail", StringType()),
    ]
)
CHECKED = StructType([*ANSWERS.fields, StructField("replays_now", LongType())])

_arrow = cast("Any", pa)


class ReplayTask:
    """Replays the jobs of one task, and returns an answer for each."""

    def __init__(self, store: str, turn: str, rate: float | None, patience_s: float, by: str = "") -> None:
        self._store, self._turn, self._rate, self._patience_s, self._by = store, turn, rate, patience_s, by
        # A slow replay takes small steps, to keep an even pace.
        self._step = MAX_STEP if rate is None else max(1, min(MAX_STEP, int(rate / 4)))

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        with Path(self._turn).open("a") as turn, OpenStore(self._store) as opened:
            replayer = _Replayer(opened.store, _Turn(turn.fileno()), _Pace(self._rate), self._patience_s, self._by)
            for rows in _parts(batches, self._step):
                answers = opened.run(replayer.replay(rows))
                failpoint.hit("replay.after_part")
                answered = [
                    {**row, "answer": answer, "detail": detail}
                    for row, (answer, detail) in zip(rows, answers, strict=True)
                ]
                yield _batch(answered, ANSWERS)


class CheckTask:
    """Reads from the store how often each job has been replayed."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        with OpenStore(self._store) as opened:
            for rows in _parts(batches, MAX_STEP):
                jobs = opened.run(opened.store.get([_key(row) for row in rows]))
                pairs = zip(rows, jobs, strict=True)
                seen = [{**row, "replays_now": job.replays if _is_same(job, row) else None} for row, job in pairs]
                yield _batch(seen, CHECKED)


class _Turn:
    """A lock that one task of a replay holds at a time. It ends with its process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @contextlib.asynccontextmanager
    async def held(self, patience_s: float) -> AsyncGenerator[None]:
        """Wait for the lock and hold it. Raises StoreBusy after `patience_s`."""
        until = time.monotonic() + max(patience_s, MAX_PAUSE_S)
        while not take_lock(self._descriptor):
            failpoint.hit("replay.not_my_turn")
            if time.monotonic() > until:
                raise StoreBusy("another task of this replay holds the turn and makes no progress")
            await asyncio.sleep(TURN_POLL_S)
        try:
            yield
        finally:
            release_lock(self._descriptor)


class _Pace:
    """Limits the rate of replays."""

    def __init__(self, rate: float | None) -> None:
        self._rate, self._next = rate, 0.0

    async def wait(self) -> None:
        if (left := self._next - time.monotonic()) > 0:
            await asyncio.sleep(left)

    def spend(self, count: int) -> None:
        if self._rate is not None:
            self._next = time.monotonic() + count / self._rate


Answer = tuple[str, str | None]


class _Replayer:
    """Replays rows in turns, within the rate."""

    def __init__(self, store: Store, turn: _Turn, pace: _Pace, patience_s: float, by: str) -> None:
        self._store, self._turn, self._pace, self._patience_s, self._by = store, turn, pace, patience_s, by

    async def replay(self, rows: Sequence[dict[str, Any]]) -> list[Answer]:
        """An answer for each row. Waits up to `patience_s` for an unavailable store or a full quota."""
        answers: list[Answer | None] = [None] * len(rows)
        until, pause_s = time.monotonic() + self._patience_s, PAUSE_S
        while True:
            left = [n for n, answer in enumerate(answers) if answer is None]
            try:
                await self._pace.wait()
                async with self._turn.held(self._patience_s):
                    found = await self._replay_once([rows[n] for n in left])
            except (StoreBusy, StoreUnavailable):
                # The next step sees what this one did before it failed.
                if time.monotonic() >= until:
                    raise
                found = [("quota", None)] * len(left)
            waiting = [n for n, answer in zip(left, found, strict=True) if answer[0] == "quota"]
            if len(waiting) < len(left):
                until, pause_s = time.monotonic() + self._patience_s, PAUSE_S
            late = time.monotonic() >= until
            for n, answer in zip(left, found, strict=True):
                answers[n] = answer if late or answer[0] != "quota" else None
            if all(answer is not None for answer in answers):
                return cast("list[Answer]", answers)
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 - jitter
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _replay_once(self, rows: Sequence[dict[str, Any]]) -> list[Answer]:
        jobs = await self._store.get([_key(row) for row in rows])
        answers = [_seen(job, row) for job, row in zip(jobs, rows, strict=True)]
        dead = [n for n, answer in enumerate(answers) if answer is None]
        if dead:
            self._pace.spend(len(dead))
            failpoint.hit("replay.before_call")
            replies = await self._store.replay([_key(rows[n]) for n in dead], by=self._by)
            failpoint.hit("replay.after_call")
            for n, reply in zip(dead, replies, strict=True):
                answers[n] = await self._answer(reply, rows[n])
        return cast("list[Answer]", answers)

    async def _answer(self, reply: object, row: dict[str, Any]) -> Answer:
        if isinstance(reply, Replayed):
            return "replayed", None
        if isinstance(reply, QuotaExceeded):
            return "quota", str(reply)
        if isinstance(reply, JobNotFound):
            return "gone", None
        # Another process may have replayed it first.
        job = (await self._store.get([_key(row)]))[0]
        assert isinstance(reply, NotReplayable)  # noqa: S101 - the store has no other answer
        return _seen(job, row) or ("refused", reply.reason)


def _seen(job: Job | None, row: dict[str, Any]) -> Answer | None:
    """The answer for a chosen dead letter whose job has changed; None if it is still a dead letter."""
    if not _is_same(job, row):
        return "gone", None
    if job.replays > row["replays"]:
        return "replayed", None
    if job.state is JobState.FAILED and job.finished_at == _ms(row["finished_at"]):
        return None
    return "refused", f"it is {job.state.value} now"


def _is_same(job: Job | None, row: dict[str, Any]) -> TypeGuard[Job]:
    """Whether this is the same job, and not a later one with its id."""
    return job is not None and job.enqueued_at == _ms(row["enqueued_at"])


def _key(row: dict[str, Any]) -> JobKey:
    return JobKey(row["tenant"], row["queue"], row["job_id"])


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _parts(batches: Iterator[Any], size: int) -> Iterator[list[dict[str, Any]]]:
    for batch in batches:
        rows: list[dict[str, Any]] = batch.to_pylist()
        for at in range(0, len(rows), size):
            yield rows[at : at + size]


def _batch(rows: list[dict[str, Any]], schema: StructType) -> Any:
    from pyspark.sql.pandas import types

    return _arrow.RecordBatch.from_pylist(rows, schema=cast("Any", types).to_arrow_schema(schema, timezone="UTC"))
