"""Reads the jobs of a store for a comparison with a lake, and then the rest of the log: every job has its events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from holdfast.core.errors import InvalidOption, StoreBusy
from holdfast.core.job import JobKey, PurgeCount
from holdfast.paging import pages
from holdfast.pipeline.audit import StoreJobs
from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.errors import plainly
from holdfast.pipeline.ingest import MAX_KEYS, IngestPlan, check_payloads, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.origin import read_origin
from holdfast.pipeline.positions import positions
from holdfast.pipeline.reader import jobs_frame
from holdfast.store import Store

PATIENCE_S = 300.0
POLL_S = 0.2
RANGE_EVENTS = 100_000


def store_jobs(spark: SparkSession, lake: Lake, url: str, payloads: str | None = None) -> StoreJobs:
    """Read the jobs of the store, then bring the lake up to date, or wait for a running ingest to do so.

    Raises InvalidOption if the lake keeps payloads and `payloads` is None. Raises StoreBusy if another ingest has the
    lake and does not get to the end of the log in time.
    """
    if payloads is None and lake.has("payloads"):
        raise InvalidOption("payloads", "the lake keeps payloads; give 'none', 'hash' or 'full', as for ingest")
    plan = IngestPlan(url, read_origin(lake).tenant, check_payloads(payloads or "none"))
    before = _end(plan)
    counted = _purges(plan)
    reader = spark.read.format("holdfast").options(store=plan.store, table="jobs")
    if plan.tenant is not None:
        reader = reader.option("tenant", plan.tenant)
    with plainly("read the jobs"):
        jobs = reader.load().persist()
        jobs.count()
    _catch_up(spark, lake, plan)
    return StoreJobs(jobs, before, counted, partial(_read_again, spark, lake, plan))


def _read_again(
    spark: SparkSession, lake: Lake, plan: IngestPlan, keys: Sequence[JobKey]
) -> tuple[DataFrame, StoreJobs]:
    """Read single jobs again, each in one step, and the events up to a later end of the log."""
    before = _end(plan)
    with OpenStore(plan.store) as opened:
        found = [
            job
            for at in range(0, len(keys), MAX_KEYS)
            for job in opened.run(opened.store.get(keys[at : at + MAX_KEYS]))
            if job is not None
        ]
    jobs = jobs_frame(spark, found)
    _catch_up(spark, lake, plan)
    return lake.read(spark, "events"), StoreJobs(jobs, before)


def _end(plan: IngestPlan) -> Sequence[str]:
    """The end of the log now, as positions."""
    with OpenStore(plan.store) as opened:
        return positions(plan.store, opened.run(opened.store.last_offset()))


def _purges(plan: IngestPlan) -> list[PurgeCount]:
    """The purges that the store has counted, by tenant."""

    async def read(store: Store) -> list[PurgeCount]:
        found: dict[str, PurgeCount] = {}
        async for page in pages(partial(store.purge_counts, plan.tenant)):
            found |= {counted.tenant: counted for counted in page.counts}
        return list(found.values())

    with OpenStore(plan.store) as opened:
        return opened.run(read(opened.store))


def _catch_up(spark: SparkSession, lake: Lake, plan: IngestPlan) -> None:
    """Bring the lake up to the current end of the log, or wait until a running ingest has done so."""
    with OpenStore(plan.store) as opened:
        end = opened.run(_written(opened))
        until = time.monotonic() + PATIENCE_S
        while True:
            busy = StoreBusy("the log cannot be read to its end: an older transaction is still open")
            try:
                ingest(spark, lake, plan)
            except StoreBusy as other:
                busy = other
                busy.add_note(f"It did not reach the current end of the log within {PATIENCE_S:g} s; check on it")
            if opened.run(_is_ingested(opened, lake, end)):
                return
            if time.monotonic() > until:
                raise busy
            time.sleep(POLL_S)


async def _written(opened: OpenStore) -> str:
    return await opened.log.written()


async def _is_ingested(opened: OpenStore, lake: Lake, end: str) -> bool:
    offset = lake.read_up_to()
    if offset is None:
        offset, _ = await opened.log.bounds(None)
    return not await opened.log.split(offset, end, RANGE_EVENTS)
