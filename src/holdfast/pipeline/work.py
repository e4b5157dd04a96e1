"""Workers on Spark's executors: ordinary ones, with the same leases, heartbeats and signals, one for each task.

A task that dies leaves leases behind that run out; whoever works on the same queues, in another task or anywhere else,
takes over. Spark starts a lost task again, and with it a worker. Nothing here acknowledges a job.
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
from holdfast.pipeline.errors import plainly
from holdfast.pipeline.reader import OpenStore
from holdfast.store import Store
from holdfast.worker import Worker

OUTCOMES = ("completed", "failed", "retrying", "canceled", "stalled")
LARGEST_CODE = 64 * 1024 * 1024
LOOK_EVERY_S = 0.5

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
"""Makes a worker on an open store. It travels to the executors, so it must be importable there."""

_arrow = cast("Any", pa)


class Plan(Struct, frozen=True):
    """How many workers, and for how long. Without an end they work until their tasks are canceled."""

    store: str
    tasks: int = 2
    """All of them need a free core; those that find none wait for one."""
    until_empty: bool = False
    """Until nothing of their queues is ready, running or to be retried. What is scheduled for later is not waited for,
    nor a queue that is paused."""
    duration_s: float | None = None
    stop_file: str | None = None
    """Until this file appears, which the executors must be able to see."""

    def __post_init__(self) -> None:
        force_setattr(self, "store", absolute(self.store))
        if self.stop_file is not None:
            force_setattr(self, "stop_file", str(Path(self.stop_file).absolute()))
        if self.tasks < 1:
            raise InvalidOption("tasks", f"{self.tasks} is not a whole number from 1 on")
        if self.duration_s is not None and self.duration_s <= 0:
            raise InvalidOption("duration", f"{self.duration_s:g} s is no time to work in")


class Worked(Struct, frozen=True):
    """What came of it."""

    workers: list[dict[str, Any]]
    """By each task that lived to tell; of one that was lost, what its successor did."""
    left: dict[str, int]
    """Jobs in the queues by their state, as the store has them now."""

    @property
    def totals(self) -> dict[str, int]:
        """What all workers together say they did."""
        return {name: sum(worker[name] for worker in self.workers) for name in OUTCOMES}


def work(spark: SparkSession, plan: Plan, make: MakeWorker, code: bytes | None = None) -> Worked:
    """Run a worker in each of `plan.tasks` tasks, until the plan says to stop.

    `code` (from `pack`) is put on the Python path of each. Raises what a worker raised.
    """
    if plan.stop_file is not None and Path(plan.stop_file).exists():
        raise InvalidOption("stop_file", f"{plan.stop_file} is there already; remove it first")
    with OpenStore(plan.store) as opened:
        # What is wrong with the options is said here, once.
        settings = make(opened.store).settings
        numbers = spark.range(0, plan.tasks, 1, plan.tasks)
        crew: DataFrame = cast("Any", numbers).mapInArrow(Crew(plan, make, code), WORKED)
        with plainly("run the workers"):
            rows = crew.collect()
        left = opened.run(_counts(opened.store, settings.tenant, settings.queues))
    workers = sorted((cast("Any", row).asDict() for row in rows), key=lambda worker: worker["task"])
    return Worked(workers, {state.value: count for state, count in left.items()})


def pack(paths: Iterable[Path]) -> bytes | None:
    """Modules (`.py`) and packages (directories) as one piece that can travel; None for none. Raises InvalidOption."""
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
    if size > LARGEST_CODE:
        raise InvalidOption("code", f"is {size / 1e6:.0f} MB; install that much on the executors instead")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            archive.write(file, name)
    return packed.getvalue()


async def _counts(store: Store, tenant: str | None, queues: tuple[str, ...]) -> dict[JobState, int]:
    """Jobs that could be worked on by now: what is ready in a paused queue could not."""
    counts: dict[JobState, int] = dict.fromkeys(_WAITING, 0)
    for name in await store.tenants() if tenant is None else [tenant]:
        for stats in await store.stats(name, queues):
            for state in counts:
                if state is JobState.LEASED or not stats.paused:
                    counts[state] += stats.counts.get(state, 0)
    return counts


# On the executors -----------------------------------------------------------------------------------------------


class Crew:
    """Runs a worker for each row."""

    def __init__(self, plan: Plan, make: MakeWorker, code: bytes | None) -> None:
        self._plan, self._make, self._code = plan, make, code

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark.sql.pandas import types

        if self._code is not None:
            _unpack(self._code)
        schema = cast("Any", types).to_arrow_schema(WORKED, timezone="UTC")
        for batch in batches:
            for row in cast("list[dict[str, Any]]", batch.to_pylist()):
                told = asyncio.run(self._work(row["id"]))
                yield _arrow.RecordBatch.from_pylist([told], schema=schema)

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
        """Stop the worker when it is time, and when Spark's side of the task is gone."""
        plan, parent = self._plan, os.getppid()
        until = None if plan.duration_s is None else time.monotonic() + plan.duration_s
        while os.getppid() == parent and (until is None or time.monotonic() < until):
            if plan.stop_file is not None and await asyncio.to_thread(Path(plan.stop_file).exists):
                break
            if plan.until_empty and await self._empty(store, worker):
                break
            await asyncio.sleep(LOOK_EVERY_S)
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
    place = tempfile.mkdtemp(prefix="holdfast-code-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(code)) as archive:
        archive.extractall(place)
    sys.path.insert(0, place)
    _unpacked[code] = place
