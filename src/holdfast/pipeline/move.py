"""Moving a tenant between stores, by Spark's tasks: one for each queue, since a single writer keeps its order.

The driver holds the turn, pauses, decides and lets go, as `holdfast.migrate` has it. A task reads one store and writes
to the other by itself, and gives Spark one row, its receipt. One that is tried again repeats its walk: what it has
copied is the same request again, and what it has taken away does not wait any more.
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

from holdfast.core.errors import InvalidOption
from holdfast.migrate import MovePlan
from holdfast.migrate.mover import StepRunner
from holdfast.migrate.steps import Advance, Receipt, StepInput, run_step
from holdfast.opening import existing, open_store, parse_url
from holdfast.pipeline.errors import plainly

RECEIPTS = StructType([StructField("receipt", StringType(), nullable=False)])

_arrow = cast("Any", pa)


def check_stores(plan: MovePlan) -> None:
    """Raise InvalidOption for a store that tasks cannot reach."""
    for name, url in (("SRC", plan.source), ("DST", plan.target)):
        if parse_url(url).scheme == "memory":
            raise InvalidOption(name, "memory: lives in one process and Spark runs in several; use another store")


def spark_walker(spark: SparkSession, plan: MovePlan) -> StepRunner:
    """Does the steps of a move in tasks. A move that is stopped interrupts all that the session runs."""
    check_stores(plan)

    def run(step_input: StepInput, queues: Sequence[str]) -> list[Receipt]:
        numbers = spark.range(0, len(queues), 1, len(queues))
        told: DataFrame = cast("Any", numbers).mapInArrow(Walk(plan, step_input, tuple(queues)), RECEIPTS)
        with plainly(f"{step_input.step} the jobs"):
            return [msgjson.decode(row["receipt"], type=Receipt) for row in told.collect()]

    async def walker(step_input: StepInput, queues: Sequence[str], advance: Advance) -> Sequence[Receipt]:
        # In a thread, so that the turn is renewed meanwhile.
        running = asyncio.ensure_future(asyncio.to_thread(run, step_input, queues))
        try:
            receipts = await asyncio.shield(running)
        except asyncio.CancelledError:
            # Nobody else may have the turn while tasks still copy or take away. They may be about to start: ask again.
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
                told = {"receipt": msgjson.encode(receipt).decode()}
                yield _arrow.RecordBatch.from_pylist([told], schema=schema)

    async def _walk(self, queue: str) -> Receipt:
        # Both are there: the driver has opened them.
        source = await open_store(existing(self._plan.source))
        try:
            target = await open_store(existing(self._plan.target))
            try:
                return await run_step(self._step_input, source, target, queue)
            finally:
                await target.close()
        finally:
            await source.close()
