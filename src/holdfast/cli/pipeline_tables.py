"""Commands on the tables of a lake: build, audit, triage, report, query, compact, retain."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import Json
from holdfast.cli.output import clock, emit, note, on_terminal, printable, say, show
from holdfast.cli.pipeline import Conf, LakePath, Master, Remote, check_spark, counted, session
from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import duration

if TYPE_CHECKING:
    from holdfast.pipeline.lake import Lake

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet computes a text that begins with one of these. With a `'` before it, it shows the text."""
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without --yes, only show what would be done.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (build, audit, triage, report, query, compact, retain):
        app.command()(command)


@contextmanager
def spark_session(master: str | None, remote: str | None, conf: list[str] | None) -> Generator[Any]:
    """The SparkSession for a command, stopped at the end. Spark's errors become short messages."""
    spark = session(master, remote, conf)
    from holdfast.pipeline.errors import plainly

    try:
        with plainly("do that"):
            yield spark
    finally:
        spark.stop()


def open_lake(path: str, remote: str | None, *locks: str) -> Lake:
    """Open the lake. Raises InvalidOption, StoreMismatch, or StoreBusy if another process holds one of these locks."""
    check_spark(remote)
    from holdfast.pipeline.lake import Lake

    place = Lake(path)
    place.check_free(*locks)
    return place


def build(
    *,
    lake: LakePath,
    full: Annotated[bool, typer.Option("--full", help="Rebuild everything, not only what is new.")] = False,
    target: Annotated[
        float, typer.Option(help="The objective: the share of jobs that start in time and do not fail.")
    ] = 0.99,
    start_within: Annotated[str, typer.Option(help="The objective: how soon a job must start.")] = "30s",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Build job runs, attempts and figures from the new events."""
    place = open_lake(lake, remote, "build")
    from holdfast.pipeline.build import build as run_build
    from holdfast.pipeline.transforms.slo import Objective

    within = duration("start_within", start_within)
    objective = Objective(target, within.total_seconds() if within else 0.0)
    with spark_session(master, remote, conf) as spark:
        built = run_build(spark, place, full=full, objective=objective, on_step=note)
    if json:
        emit(built)
    elif built.full:
        say(f"built everything, from {counted(built.batches, 'batch', 'batches')}")
    else:
        days = ", ".join(built.days) or "none"
        say(f"built {counted(built.batches, 'new batch', 'new batches')}; days written: {days}")


def audit(
    *,
    lake: LakePath,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL", help="Also compare with this store, after ingesting the rest of its log."
        ),
    ] = None,
    payloads: Annotated[
        str | None,
        typer.Option(metavar="none|hash|full", help="With --store, if the lake keeps payloads: as for ingest."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most violations to show of each rule.")] = 20,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Check the whole history against the contract. If a rule is broken, show the events and exit with 1."""
    place = open_lake(lake, remote)
    from holdfast.pipeline.audit import audit as run_audit
    from holdfast.pipeline.comparing import store_jobs

    with spark_session(master, remote, conf) as spark:
        if store is not None:
            note("reading the store's jobs and the rest of its log")
        known = None if store is None else store_jobs(spark, place, store, payloads)
        found = run_audit(spark, place, store=known, limit=limit, on_step=note)
        if json:
            emit(found.document())
        else:
            say(found.text(), lines=True)
        found.violations.unpersist()
    if found.broken:
        raise typer.Exit(1)


def triage(
    *,
    lake: LakePath,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only these dead letters, by the columns of job_runs.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most causes to show.")] = 50,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Group dead letters by cause, the most frequent first, each with the condition that replays it.

    The counts come from the log. It does not record when the store forgets a dead letter after its retention, so the
    store may have fewer. `replay` without --yes shows those that the store has.
    """
    place = open_lake(lake, remote)
    from holdfast.pipeline.triage import triage as group_causes

    with spark_session(master, remote, conf) as spark:
        found = group_causes(spark, place, where=where, limit=limit)
    if json:
        emit(found.document())
        return
    rows = [
        [str(cause.count), cause.type, cause.error_type or "", str(cause.tenants), ", ".join(cause.queues),
         clock(cause.last_at), cause.sample or "", cause.where]
        for cause in found.causes
    ]  # fmt: skip
    columns = ["jobs", "type", "error", "tenants", "queues", "last", "sample", "where"]
    show(columns, rows, "No dead letters in the built tables.")
    if found.causes:
        again = f"holdfast pipeline replay --where {shlex.quote(found.causes[0].where)}"
        note(f"{found.total} dead letters. Replay some: {again}")


def report(
    *,
    lake: LakePath,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    days: Annotated[int, typer.Option(min=1, help="How many days to show.")] = 7,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "Holdfast report",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Write one page with charts: throughput, wait and run times, failures, tenants, and the next day."""
    place = open_lake(lake, remote)
    from holdfast.pipeline.report import report as write_report

    with spark_session(master, remote, conf) as spark:
        say(str(write_report(spark, place, out, days=days, title=title)))


def query(
    sql: Annotated[str, typer.Argument(metavar="SELECT", help="The query, on the lake's tables by name.")],
    *,
    lake: LakePath,
    format: Annotated[str, typer.Option(metavar="table|json|csv", help="How to print the rows.")] = "table",
    limit: Annotated[int, typer.Option(min=0, help="The most rows; 0: all.")] = 1000,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Query the tables in SQL: events, payloads, gaps, job_runs, attempts, hourly, failures, slo.

    hourly also has percentiles, such as run_p95_ms. To roll them up, use
    percentile_ms(merged(collect_list(run_histogram)), 95).
    """
    place = open_lake(lake, remote)
    from holdfast.pipeline.query import query as run_query

    if format not in ("table", "json", "csv"):
        raise InvalidOption("format", f"{format!r} is not 'table', 'json' or 'csv'")
    with spark_session(master, remote, conf) as spark:
        answer = run_query(spark, place, sql, limit or None)
    if format == "json":
        emit([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif format == "csv":
        _write_csv(answer.columns, answer.rows)
    else:
        show(answer.columns, [[_cell(value) for value in row] for row in answer.rows], "No rows.")
    if answer.more:
        note(f"There are more than {limit} rows: --limit 0 shows all")


def compact(
    *,
    lake: LakePath,
    file_size: Annotated[int, typer.Option(min=1, metavar="MB", help="The largest size of a file.")] = 128,
    min_files: Annotated[int, typer.Option(min=2, help="Skip days with fewer files.")] = 2,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Merge the small files of each day. Refused while an ingest or a build runs."""
    place = open_lake(lake, remote, "ingest", "build")
    from holdfast.pipeline.compact import compact as run_compact

    with spark_session(master, remote, conf) as spark:
        done = run_compact(spark, place, file_bytes=file_size * 1024 * 1024, min_files=min_files)
    if json:
        emit(done)
    else:
        files, days = counted(done.files_before, "file"), counted(done.days, "day")
        say(f"merged {files} of {days} into {done.files_after}, with {counted(done.rows, 'row')}")


def retain(
    *,
    lake: LakePath,
    days: Annotated[int, typer.Option(min=1, help="How many days to keep.")],
    yes: Yes = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Drop older days from all tables. Days with events that no build has read are kept."""
    place = open_lake(lake, remote, "ingest", "build")
    from holdfast.pipeline.compact import retain as run_retain

    with spark_session(master, remote, conf) as spark:
        dropped = run_retain(spark, place, days, dry_run=not yes)
    if json:
        emit({"dry_run": not yes, "dropped": dropped})
        return
    rows = [[table, str(len(found)), found[0], found[-1]] for table, found in dropped.days.items()]
    show(["table", "days", "first", "last"], rows, f"Nothing is older than {dropped.before}.")
    if dropped.unbuilt:
        note(f"{len(dropped.unbuilt)} days are kept, because no build has read them: run holdfast pipeline build first")
    if dropped.open_jobs:
        note(f"{dropped.open_jobs} jobs of those days had not ended; their history will lack its beginning")
    if rows:
        say(f"{'dropped' if yes else 'would drop'} {dropped.bytes / 1e6:.1f} MB" + ("" if yes else "; --yes does it"))


def _write_csv(columns: list[str], rows: list[list[Any]]) -> None:
    import csv

    # On a terminal control characters are escaped. A file gets them as they are.
    shown = printable if on_terminal() else str
    # csv quotes cells that contain a part of its line end. With CRLF that includes cells with a single CR.
    writer = csv.writer(_Lines())
    for row in (columns, *rows):
        writer.writerow([shown(_csv_cell(value)) for value in row])


class _Lines:
    """Standard output, with plain line ends."""

    def write(self, line: str) -> None:
        sys.stdout.write(line.removesuffix("\r\n") + "\n")


def _csv_cell(value: Any) -> str:
    """A cell that no spreadsheet reads as a formula. Numbers stay numbers."""
    text = _cell(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def _cell(value: Any) -> str:
    from datetime import datetime

    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.isoformat(sep=" ") if isinstance(value, datetime) else str(value)
