"""A store's jobs to compare a lake with, and after them the rest of the log, so that every job has its events."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from holdfast.core.errors import InvalidOption, StoreBusy
from holdfast.options import moment
from holdfast.pipeline.audit import StoreJobs
from holdfast.pipeline.ingest import Plan, check_payloads, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.origin import read_origin
from holdfast.pipeline.reader import OpenStore
from holdfast.pipeline.trouble import plainly

PATIENCE_S = 300.0
LOOK_EVERY_S = 0.2
AT_ONCE = 100_000


def store_jobs(spark: SparkSession, lake: Lake, url: str, payloads: str | None = None) -> StoreJobs:
    """The jobs as the store has them; then the lake takes in what its log has more, or whoever is at it does.

    Raises InvalidOption if the lake keeps payloads and none are named, StoreBusy if somebody else has it for long.
    """
    if payloads is None and lake.has("payloads"):
        raise InvalidOption("payloads", "the lake keeps payloads; say 'none', 'hash' or 'full' as for ingest")
    plan = Plan(url, read_origin(lake).tenant, check_payloads(payloads or "none"))
    with OpenStore(plan.store) as opened:
        taken_at = moment(opened.run(opened.store.now()))
    reader = spark.read.format("holdfast").options(store=plan.store, table="jobs")
    if plan.tenant is not None:
        reader = reader.option("tenant", plan.tenant)
    with plainly("read the jobs"):
        jobs = reader.load().persist()
        jobs.count()
    _catch_up(spark, lake, plan)
    return StoreJobs(jobs, taken_at)


def _catch_up(spark: SparkSession, lake: Lake, plan: Plan) -> None:
    """Have the log in the lake as far as it goes now: taken in here, or by the ingest that runs there already."""
    with OpenStore(plan.store) as opened:
        end = opened.run(_end(opened))
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                ingest(spark, lake, plan)
                return
            except StoreBusy as busy:
                if opened.run(_taken_in(opened, lake, end)):
                    return
                if time.monotonic() > until:
                    busy.add_note(f"It did not take in the log as it is now within {PATIENCE_S:g} s; see how it does")
                    raise
            time.sleep(LOOK_EVERY_S)


async def _end(opened: OpenStore) -> str:
    return await opened.store.last_offset()


async def _taken_in(opened: OpenStore, lake: Lake, end: str) -> bool:
    offset = lake.read_up_to()
    return offset is not None and not await opened.log.split(offset, end, AT_ONCE)
