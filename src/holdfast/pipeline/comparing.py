"""A store's jobs to compare a lake with, and after them the rest of the log, so that every job has its events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from holdfast.core.errors import InvalidOption, StoreBusy
from holdfast.core.job import JobKey, PurgeCount
from holdfast.paging import pages
from holdfast.pipeline.audit import StoreJobs
from holdfast.pipeline.errors import plainly
from holdfast.pipeline.ingest import KEYS_AT_ONCE, Plan, check_payloads, ingest
from holdfast.pipeline.lake import Lake, positions
from holdfast.pipeline.origin import read_origin
from holdfast.pipeline.reader import OpenStore, jobs_frame
from holdfast.store import Store

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
    before = _end(plan)
    counted = _purges(plan)
    reader = spark.read.format("holdfast").options(store=plan.store, table="jobs")
    if plan.tenant is not None:
        reader = reader.option("tenant", plan.tenant)
    with plainly("read the jobs"):
        jobs = reader.load().persist()
        jobs.count()
    _catch_up(spark, lake, plan)
    return StoreJobs(jobs, before, counted, partial(_look_again, spark, lake, plan))


def _look_again(spark: SparkSession, lake: Lake, plan: Plan, keys: Sequence[JobKey]) -> tuple[DataFrame, StoreJobs]:
    """The same for single jobs, each of which is read in one step, and the events that the lake has by then."""
    before = _end(plan)
    with OpenStore(plan.store) as opened:
        found = [
            job
            for at in range(0, len(keys), KEYS_AT_ONCE)
            for job in opened.run(opened.store.get(keys[at : at + KEYS_AT_ONCE]))
            if job is not None
        ]
    jobs = jobs_frame(spark, found)
    _catch_up(spark, lake, plan)
    return lake.read(spark, "events"), StoreJobs(jobs, before)


def _end(plan: Plan) -> Sequence[str]:
    """Where the log ends now, as positions."""
    with OpenStore(plan.store) as opened:
        return positions(plan.store, opened.run(opened.store.last_offset()))


def _purges(plan: Plan) -> list[PurgeCount]:
    """How many purges the store has counted, by tenant."""

    async def read(store: Store) -> list[PurgeCount]:
        found: dict[str, PurgeCount] = {}
        async for page in pages(partial(store.purge_counts, plan.tenant)):
            found |= {counted.tenant: counted for counted in page.counts}
        return list(found.values())

    with OpenStore(plan.store) as opened:
        return opened.run(read(opened.store))


def _catch_up(spark: SparkSession, lake: Lake, plan: Plan) -> None:
    """Have the log in the lake as far as it goes now: taken in here, or by the ingest that runs there already."""
    with OpenStore(plan.store) as opened:
        end = opened.run(_written(opened))
        until = time.monotonic() + PATIENCE_S
        while True:
            busy = StoreBusy("the log cannot be read to its end: a transaction that began before is still open")
            try:
                ingest(spark, lake, plan)
            except StoreBusy as other:
                busy = other
                busy.add_note(f"It did not take in the log as it is now within {PATIENCE_S:g} s; see how it does")
            if opened.run(_taken_in(opened, lake, end)):
                return
            if time.monotonic() > until:
                raise busy
            time.sleep(LOOK_EVERY_S)


async def _written(opened: OpenStore) -> str:
    return await opened.log.written()


async def _taken_in(opened: OpenStore, lake: Lake, end: str) -> bool:
    offset = lake.read_up_to()
    if offset is None:
        offset, _ = await opened.log.bounds(None)
    return not await opened.log.split(offset, end, AT_ONCE)
