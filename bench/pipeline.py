"""What the pipeline costs beside what it cannot do without: the store's reader, Parquet, a plain scan, enqueue_many.

    make bench-pipeline [ARGS="--events 50000 --stores file"]

Ratios of one run on one machine. Each measure is taken at a tenth of the events and at all of them, so that the last
column shows how its time grows: 10 is linear. By default 200,000 and 2,000,000 events, on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.spark_history import notes_of, write_history
from bench.valkey import Server
from holdfast import Queue, job
from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.opening import open_store
from holdfast.pipeline.audit import audit_events
from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.reader import EventFilter, read_range
from holdfast.pipeline.schemas import BRONZE_EVENTS, EVENTS, GAPS, PARTITIONS
from holdfast.pipeline.session import make_session
from holdfast.pipeline.transforms.attempts import attempts
from holdfast.pipeline.transforms.runs import job_runs

CORES = 2
BATCH = 1000
PER_PARTITION = 50_000
TENANTS, QUEUES = 20, ("mail", "video")
NOTHING = EventFilter(None, None, None)

# The measure in the second place as a share of the one in the third, and the figure to reach, if one was set; <= where
# it is a cost.
RATIOS = (
    ("source to no-op / the store's reader, one process per core", "source", "reader", ">=", 0.8),
    (
        "source to no-op in one task / the store's reader, one process",
        "source, one task",
        "reader, one process",
        ">=",
        None,
    ),
    ("source to no-op / Parquet to no-op", "source", "parquet to no-op", ">=", 0.5),
    ("ingest to Parquet by date / Parquet to Parquet", "ingest", "parquet to parquet", ">=", 0.7),
    ("steady stream / ingest at once", "stream", "ingest", ">=", 0.5),
    ("job runs / plain scan, in time", "job runs", "scan", "<=", 4.0),
    ("attempts / plain scan, in time", "attempts", "scan", "<=", None),
    ("audit / plain scan, in time", "audit", "scan", "<=", 3.0),
    ("DataFrame enqueue / enqueue_many, one process per core", "dataframe enqueue", "enqueue_many", ">=", 0.5),
)


@dataclass
class Times:
    """Rows and seconds of each measure, of one store and one size."""

    taken: dict[str, tuple[int, float]] = field(default_factory=dict)

    def take(self, name, rows, act, before=lambda: None, rounds=2):
        """Run it some times, each after `before`; the best counts."""
        best = float("inf")
        for _ in range(rounds):
            before()
            began = time.perf_counter()
            act()
            best = min(best, time.perf_counter() - began)
        self.taken[name] = rows, best
        print(f"  {name:20} {rows:>9,} rows {best:8.2f} s {rows / best:>10,.0f} rows/s", flush=True)

    def rate(self, name):
        rows, seconds = self.taken[name]
        return rows / seconds

    def ratio(self, name, base, sense):
        if name not in self.taken or base not in self.taken:
            return None
        if sense == "<=":
            return self.taken[name][1] / self.taken[base][1]
        return self.rate(name) / self.rate(base)


def noop(frame):
    frame.write.format("noop").mode("overwrite").save()


# A store with a log ---------------------------------------------------------------------------------------------


async def fill(url, events):
    """Enqueue, claim and complete, until the log has `events` events."""
    store = await open_store(url)
    jobs = events // 3
    for first in range(0, jobs, BATCH):
        numbers = range(first, min(jobs, first + BATCH))
        await store.enqueue([_job(n) for n in numbers])
        left = len(numbers)
        while left:
            got = await store.claim(ClaimRequest(None, QUEUES, left, 60_000, f"worker-{first % 7}", 0.5))
            assert got.jobs, "the store is not new"
            await store.finish([Finish(one.key, one.token, "complete", None, random=0.5) for one in got.jobs])
            left -= len(got.jobs)
    await store.close()
    return jobs * 3


def _job(n):
    key = JobKey(f"tenant-{n % TENANTS}", QUEUES[n % 2], f"job-{n:09}")
    return NewJob(key, Envelope(f"type-{n % 8}", b'{"user": 123456, "template": "welcome"}'))


def pieces(url, size):
    """The log, split as the source splits it."""

    async def split(log):
        start, end = await log.bounds(None)
        return await log.split(start, end, size)

    with OpenStore(url) as opened:
        return opened.run(split(opened.log))


def read_piece(url, log_range):
    """The store's reader alone, giving the same Arrow batches as the source; how many rows."""
    return sum(batch.num_rows for batch in read_range(url, log_range, EVENTS, NOTHING, print))


def measure_store(spark, processes, url, events, folder):
    """Reading, ingesting, following."""
    times = Times()
    rows = asyncio.run(fill(url, events))

    def read(run):
        assert sum(run(partial(read_piece, url), pieces(url, PER_PARTITION))) == rows

    source = spark.read.format("holdfast").options(store=url, eventsPerPartition=PER_PARTITION)
    times.take("reader", rows, lambda: read(processes.imap_unordered))
    times.take("source", rows, lambda: noop(source.load()))
    times.take("reader, one process", rows, lambda: read(map))
    whole = spark.read.format("holdfast").options(store=url, eventsPerPartition=10 * rows)
    if len(pieces(url, 10 * rows)) == 1:
        times.take("source, one task", rows, lambda: noop(whole.load()))
    plain = folder / "plain"
    source.load().write.mode("overwrite").parquet(str(plain))
    parquet = spark.read.schema(EVENTS).parquet(str(plain))
    assert parquet.count() == rows
    times.take("parquet to no-op", rows, lambda: noop(parquet))
    dated = parquet.selectExpr("*", "to_date(at) AS date", "0L AS batch")
    times.take(
        "parquet to parquet", rows,
        lambda: dated.write.mode("overwrite").partitionBy(*PARTITIONS).parquet(str(folder / "dated")),
    )  # fmt: skip
    lake = folder / "lake"

    def empty():
        shutil.rmtree(lake, ignore_errors=True)

    def take_in(**options):
        done = ingest(spark, Lake(lake, create=True), IngestPlan(url, per_partition=PER_PARTITION, **options))
        assert done.events == rows, done

    # At once: one micro-batch. Steady: ten of them, one after another.
    times.take("ingest", rows, lambda: take_in(max_events=2 * rows), empty)
    times.take("stream", rows, lambda: take_in(max_events=max(1, rows // 10)), empty)
    return times


# The other way: rows as jobs --------------------------------------------------------------------------------------


@job(queue="bulk")
async def bulk_job(n: int, text: str) -> None:
    """Never run."""


def measure_enqueue(spark, processes, make_url, count):
    """enqueue_many in as many processes as there are cores, and a DataFrame written by as many tasks."""
    times = Times()
    urls: list[str] = []

    def new():
        urls.append(make_url())
        asyncio.run(_open(urls[-1]))

    text = "x" * 40
    ends = [count * n // CORES for n in range(CORES + 1)]
    times.take(
        "enqueue_many",
        count,
        lambda: processes.starmap(_send, [(urls[-1], *ends[n : n + 2], text) for n in range(CORES)]),
        new,
    )
    rows = spark.range(0, count, 1, 2 * CORES).selectExpr(
        "concat('job-', id) AS id", f"named_struct('n', id, 'text', '{text}') AS payload"
    )

    def write():
        options = {"store": urls[-1], "tenant": "acme", "queue": "bulk", "type": "bulk_job"}
        rows.write.format("holdfast").options(**options).mode("append").save()

    times.take("dataframe enqueue", count, write, new)
    return times


async def _open(url):
    await (await open_store(url)).close()


def _send(url, start, end, text):
    asyncio.run(_enqueue(url, start, end, text))


async def _enqueue(url, start, end, text):
    async with Queue(url, tenant="acme") as queue:
        for first in range(start, end, 10_000):
            numbers = range(first, min(end, first + 10_000))
            await queue.enqueue_many(bulk_job.message(n, text).options(id=f"job-{n}") for n in numbers)


# Tables -------------------------------------------------------------------------------------------------------------


def measure_tables(spark, events, folder):
    """What is made of events, beside reading them."""
    times = Times()
    path = folder / "events"
    write_history(spark, path, events)
    frame = spark.read.schema(BRONZE_EVENTS).parquet(str(path))
    gaps = spark.createDataFrame([], GAPS)
    rows = frame.count()

    taken_in = notes_of(frame)

    def audited():
        found = audit_events(frame, gaps, ingested=taken_in)
        assert not found.broken, found.text()
        found.violations.unpersist()

    times.take("scan", rows, lambda: noop(frame))
    times.take("job runs", rows, lambda: noop(job_runs(frame)))
    times.take("attempts", rows, lambda: noop(attempts(frame)))
    times.take("audit", rows, audited)
    return times


# All of it ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stores(names, folder):
    """What makes the URL of a fresh store, by name."""
    numbers = iter(range(10**9))
    with contextlib.ExitStack() as stack:
        makers = {}
        if "file" in names:
            makers["file"] = lambda: f"file:{tempfile.mkdtemp(prefix='store-', dir=folder)}"
        if "valkey" in names:
            server = stack.enter_context(Server())

            def fresh():
                server.empty()
                return f"{server.url}?prefix=b{next(numbers)}&shards={CORES}"

            makers["valkey"] = fresh
        yield makers


def measure(spark, processes, names, events, folder):
    """All figures at one size, by subject."""
    found = {}
    with stores(names, folder) as makers:
        for name, make_url in makers.items():
            print(f"{name}, {events:,} events", flush=True)
            place = folder / f"{name}-{events}"
            place.mkdir()
            times = measure_store(spark, processes, make_url(), events, place)
            more = measure_enqueue(spark, processes, make_url, max(1, events // 10))
            found[name] = Times(times.taken | more.taken)
            shutil.rmtree(place)
    print(f"tables, {events:,} events", flush=True)
    found["tables"] = measure_tables(spark, events, folder / f"tables-{events}")
    shutil.rmtree(folder / f"tables-{events}")
    return found


def show(small, large, console):
    """Ratios, and how the time grows."""
    table = Table(title=f"Ratios, {CORES} cores, one run", title_justify="left")
    for name in ("measure", "on", "small", "large", "to reach"):
        table.add_column(name, justify="left" if name in ("measure", "on") else "right")
    for title, name, base, sense, goal in RATIOS:
        for subject, times in large.items():
            ratio = times.ratio(name, base, sense)
            if ratio is None:
                continue
            before = small[subject].ratio(name, base, sense)
            if goal is None:
                table.add_row(title, subject, f"{before:.2f}", f"{ratio:.2f}", "")
                continue
            reached = ratio >= goal if sense == ">=" else ratio <= goal
            style = "green" if reached else "red"
            table.add_row(title, subject, f"{before:.2f}", f"[{style}]{ratio:.2f}[/]", f"{sense} {goal:g}")
    console.print(table)
    growth = Table(title="Time, and how it grows with ten times the rows (10: linear)", title_justify="left")
    for name in ("measure", "on", "rows", "seconds", "rows/s", "grows"):
        growth.add_column(name, justify="left" if name in ("measure", "on") else "right")
    for subject, times in large.items():
        for name, (rows, seconds) in times.taken.items():
            before_rows, before = small[subject].taken[name]
            grows = seconds / before * 10 * before_rows / rows
            cells = (f"{rows:,}", f"{seconds:.1f}", f"{rows / seconds:,.0f}", f"{grows:.1f}")
            growth.add_row(name, subject, *cells)
    console.print(growth)


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description="Measure the pipeline.")
    parser.add_argument("--events", type=int, default=2_000_000, help="and a tenth of it (default: %(default)s)")
    parser.add_argument("--stores", default="file,valkey", help="which, by commas (default: %(default)s)")
    options = parser.parse_args()
    spark = make_session(f"local[{CORES}]", conf={"spark.driver.memory": "4g"})
    # Processes that are there before anything is timed, as Spark's are. Started anew: this one has threads.
    with get_context("spawn").Pool(CORES) as processes, tempfile.TemporaryDirectory() as directory:
        sizes = [
            measure(spark, processes, options.stores.split(","), events, Path(directory))
            for events in (options.events // 10, options.events)
        ]
    spark.stop()
    show(*sizes, Console(width=120))


if __name__ == "__main__":
    main()
