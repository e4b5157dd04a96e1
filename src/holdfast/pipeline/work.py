"""Workers on Spark's executors, one for each task. They are ordinary workers, with the same leases and heartbeats.

If a task dies, its leases expire, and any other worker of the same queues claims the jobs, on Spark or elsewhere. Spark
restarts a lost task, and with it a worker. Nothing here acknowledges a job.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import io
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
from msgspec import Struct
from msgspec.structs import force_setattr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from holdfast.core.errors import InvalidOption, StoreBusy, StoreUnavailable
from holdfast.core.job import JobState
from holdfast.opening import absolute, existing, open_store
from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.errors import plainly
from holdfast.store import Store
from holdfast.worker import Worker

OUTCOMES = ("completed", "failed", "retrying", "canceled", "stalled")
MAX_CODE_BYTES = 64 * 1024 * 1024
POLL_S = 0.5

_WAITING = (JobState.READY, JobState.LEASED, JobState.RETRYING, JobState.SCHEDULED)

WORKED = StructType(
    [
        StructField("task", IntegerType(), nullable=False),
        StructField("worker_id", StringType(), nullable=False),
        *(StructField(name, LongType(), nullable=False) for name in OUTCOMES),
        StructField("seconds", DoubleType(), nullable=False),
    ]
)

MakeWorker = Callable[[Store], Worker]
"""Makes a worker on an open store. Spark sends it to the executors, so it must be importable there."""

_arrow = cast("Any", pa)


class WorkPlan(Struct, frozen=True):
    """How many workers to run, and when to stop them. By default they run until their tasks are canceled."""

    store: str
    tasks: int = 2
    """Each task needs a core; tasks without one wait."""
    until_empty: bool = False
    """Stop when no job of the queues is ready, running or waiting for a retry. Scheduled jobs and paused queues do not
    count."""
    duration_s: float | None = None
    stop_file: str | None = None
    """Stop when this file appears. The executors must see it."""

    def __post_init__(self) -> None:
        force_setattr(self, "store", absolute(self.store))
        if self.stop_file is not None:
            force_setattr(self, "stop_file", str(Path(self.stop_file).absolute()))
        if self.tasks < 1:
            raise InvalidOption("tasks", f"{self.tasks} is not a whole number above 0")
        if self.duration_s is not None and self.duration_s <= 0:
            raise InvalidOption("duration", f"{self.duration_s:g} s is too short; it must be above 0")


class Worked(Struct, frozen=True):
    """What the workers did."""

    workers: list[dict[str, Any]]
    """One entry for each task that ended well. A restarted task counts only its last run."""
    left: dict[str, int]
    """The jobs in the queues now, by state."""

    @property
    def totals(self) -> dict[str, int]:
        """The counts of all workers together."""
        return {name: sum(worker[name] for worker in self.workers) for name in OUTCOMES}


def work(spark: SparkSession, plan: WorkPlan, make: MakeWorker, code: bytes | None = None) -> Worked:
    """Run a worker in each of `plan.tasks` tasks, until the plan's end.

    `code` (from `pack`) is added to the Python path of each task. Raises the error of a worker.
    """
    if plan.stop_file is not None and Path(plan.stop_file).exists():
        raise InvalidOption("stop_file", f"{plan.stop_file} exists already; remove it first")
    with OpenStore(plan.store) as opened:
        # Wrong options raise here, once, instead of in every task.
        settings = make(opened.store).settings
        numbers = spark.range(0, plan.tasks, 1, plan.tasks)
        tasks: DataFrame = cast("Any", numbers).mapInArrow(WorkerTask(plan, make, code), WORKED)
        with plainly("run the workers"):
            rows = tasks.collect()
        left = opened.run(_counts(opened.store, settings.tenant, settings.queues))
    workers = sorted((cast("Any", row).asDict() for row in rows), key=lambda worker: worker["task"])
    return Worked(workers, {state.value: count for state, count in left.items()})


def pack(paths: Iterable[Path]) -> bytes | None:
    """Modules (`.py`) and packages (directories) as one archive; None if there are none. Raises InvalidOption."""
    files: dict[str, Path] = {}
    for path in paths:
        if path.is_file():
            files[path.name] = path
        elif path.is_dir():
            found = (file for file in sorted(path.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)
            files |= {str(file.relative_to(path.parent)): file for file in found}
        else:
            raise InvalidOption("code", f"there is no file or directory {path}")
    if not files:
        return None
    size = sum(file.stat().st_size for file in files.values())
    if size > MAX_CODE_BYTES:
        raise InvalidOption("code", f"it has {size / 1e6:.0f} MB; install that much on the executors instead")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            archive.write(file, name)
    return packed.getvalue()


async def _counts(store: Store, tenant: str | None, queues: tuple[str, ...]) -> dict[JobState, int]:
    """The jobs that workers could run now or later. Waiting jobs of paused queues are left out."""
    counts: dict[JobState, int] = dict.fromkeys(_WAITING, 0)
    for name in await store.tenants() if tenant is None else [tenant]:
        for stats in await store.stats(name, queues):
            for state in counts:
                if state is JobState.LEASED or not stats.paused:
                    counts[state] += stats.counts.get(state, 0)
    return counts


# On the executors -----------------------------------------------------------------------------------------------


class WorkerTask:
    """Runs a worker for each row."""

    def __init__(self, plan: WorkPlan, make: MakeWorker, code: bytes | None) -> None:
        self._plan, self._make, self._code = plan, make, code

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark.sql.pandas import types

        if self._code is not None:
            _unpack(self._code)
        schema = cast("Any", types).to_arrow_schema(WORKED, timezone="UTC")
        for batch in batches:
            for row in cast("list[dict[str, Any]]", batch.to_pylist()):
                done = asyncio.run(self._work(row["id"]))
                yield _arrow.RecordBatch.from_pylist([done], schema=schema)

    async def _work(self, task: int) -> dict[str, Any]:
        began = time.monotonic()
        store = await open_store(existing(self._plan.store))
        try:
            worker = self._make(store)
            counts = dict.fromkeys(OUTCOMES, 0)

            def count(event: Any) -> None:
                counts[event.name] += 1

            for name in OUTCOMES:
                worker.on(cast("Any", name), count)
            watching = asyncio.create_task(self._watch(store, worker))
            try:
                await worker.run()
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
        finally:
            await store.close()
        return {"task": task, "worker_id": worker.id, **counts, "seconds": time.monotonic() - began}

    async def _watch(self, store: Store, worker: Worker) -> None:
        """Stop the worker at the plan's end, or when Spark's side of the task is gone."""
        plan, parent = self._plan, os.getppid()
        until = None if plan.duration_s is None else time.monotonic() + plan.duration_s
        while os.getppid() == parent and (until is None or time.monotonic() < until):
            if plan.stop_file is not None and await asyncio.to_thread(Path(plan.stop_file).exists):
                break
            if plan.until_empty and await self._empty(store, worker):
                break
            await asyncio.sleep(POLL_S)
        await worker.stop()

    async def _empty(self, store: Store, worker: Worker) -> bool:
        try:
            counts = await _counts(store, worker.settings.tenant, worker.settings.queues)
        except (StoreBusy, StoreUnavailable):
            return False
        return not any(count for state, count in counts.items() if state is not JobState.SCHEDULED)


_unpacked: dict[bytes, str] = {}


def _unpack(code: bytes) -> None:
    """Put shipped code on the Python path of this process."""
    if code in _unpacked:
        return
    directory = tempfile.mkdtemp(prefix="holdfast-code-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(code)) as archive:
        archive.extractall(directory)
    sys.path.insert(0, directory)
    _unpacked[code] = directory
