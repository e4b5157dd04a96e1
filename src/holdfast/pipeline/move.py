"""Moves a tenant between stores in Spark tasks, one for each queue: a single writer keeps the order.

The driver holds the move's lock and decides, as in `holdfast.migrate`. A task reads one store and writes to the other,
and returns one row, its receipt. A retried task repeats its step: copying a job again is the same request, and a job
that was taken away is no longer waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
from msgspec import json as msgjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.migrate import MovePlan
from holdfast.migrate.mover import StepRunner
from holdfast.migrate.steps import Advance, Receipt, StepInput, run_step
from holdfast.opening import check_shared, existing, open_store
from holdfast.pipeline.errors import plainly

RECEIPTS = StructType([StructField("receipt", StringType(), nullable=False)])

_arrow = cast("Any", pa)


def check_stores(plan: MovePlan) -> None:
    """Raise InvalidOption for a store that tasks cannot reach."""
    for name, url in (("SRC", plan.source), ("DST", plan.target)):
        check_shared(name, url, "exists in one process, but Spark runs several; use another store")


def spark_walker(spark: SparkSession, plan: MovePlan) -> StepRunner:
    """Runs the steps of a move in Spark tasks. A move that is stopped interrupts everything that the session runs."""
    check_stores(plan)

    def run(step_input: StepInput, queues: Sequence[str]) -> list[Receipt]:
        numbers = spark.range(0, len(queues), 1, len(queues))
        done: DataFrame = cast("Any", numbers).mapInArrow(Walk(plan, step_input, tuple(queues)), RECEIPTS)
        with plainly(f"{step_input.step} the jobs"):
            return [msgjson.decode(row["receipt"], type=Receipt) for row in done.collect()]

    async def walker(step_input: StepInput, queues: Sequence[str], advance: Advance) -> Sequence[Receipt]:
        # Run in a thread, so that the event loop keeps renewing the lease.
        running = asyncio.ensure_future(asyncio.to_thread(run, step_input, queues))
        try:
            receipts = await asyncio.shield(running)
        except asyncio.CancelledError:
            # Keep the lock while tasks still copy or take away. A task may be about to start: interrupt again.
            while not running.done():
                with contextlib.suppress(Exception):
                    await asyncio.to_thread(spark.interruptAll)
                await asyncio.wait([running], timeout=1)
            await asyncio.gather(running, return_exceptions=True)
            raise
        advance(sum(receipt.seen for receipt in receipts))
        return receipts

    return walker


# On the executors -----------------------------------------------------------------------------------------------


class Walk:
    """Does a step to the queue of each row."""

    def __init__(self, plan: MovePlan, step_input: StepInput, queues: tuple[str, ...]) -> None:
        self._plan, self._step_input, self._queues = plan, step_input, queues

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark.sql.pandas import types

        schema = cast("Any", types).to_arrow_schema(RECEIPTS, timezone="UTC")
        for batch in batches:
            for row in cast("list[dict[str, Any]]", batch.to_pylist()):
                number: int = row["id"]
                receipt = asyncio.run(self._walk(self._queues[number]))
                row_out = {"receipt": msgjson.encode(receipt).decode()}
                yield _arrow.RecordBatch.from_pylist([row_out], schema=schema)

    async def _walk(self, queue: str) -> Receipt:
        # Both stores exist: the driver has opened them.
        source = await open_store(existing(self._plan.source))
        try:
            target = await open_store(existing(self._plan.target))
            try:
                return await run_step(self._step_input, source, target, queue)
            finally:
                await target.close()
        finally:
            await source.close()
