"""The last part of the demo: its event log as tables on Spark, an audit against the contract, and charts."""

from __future__ import annotations

import importlib
import shlex
import subprocess
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from holdfast.core.errors import InvalidOption
from holdfast.demo.show import command, line

SKIPPED = "so its last part was left out: the event log as tables on Spark, an audit of it, and charts"


def missing(get_spark: str = "") -> str:
    """Why this part cannot run on this machine; "" if it can.

    If only PySpark is missing, the command `get_spark` runs first to install it.
    """
    from holdfast.pipeline.session import check_java, check_libraries

    try:
        check_java()
        if get_spark and not _has_libraries():
            subprocess.run(shlex.split(get_spark), check=False)
            importlib.invalidate_caches()
        check_libraries()
    except InvalidOption as error:
        return f"{error}; {SKIPPED}"
    return ""


def _has_libraries() -> bool:
    from holdfast.pipeline.session import check_libraries

    try:
        check_libraries()
    except InvalidOption:
        return False
    return True


def audit_log(console: Console, directory: Path, store: str, get_spark: str = "") -> bool:
    """Ingest the log, build, audit and report. Returns whether no rule was broken.

    If something is missing, prints that in one line and returns True.
    """
    if lack := missing(get_spark):
        line(console, f"\n[dim]{escape(lack)}[/]")
        return True
    line(console, "\n[bold]The same from the event log alone[/], on Spark:")
    from holdfast.pipeline.audit import audit
    from holdfast.pipeline.build import build
    from holdfast.pipeline.ingest import IngestPlan, ingest
    from holdfast.pipeline.lake import Lake
    from holdfast.pipeline.report import report
    from holdfast.pipeline.session import make_session

    spark = make_session("local[2]", app="holdfast demo")
    try:
        lake = Lake(directory / "lake", create=True)
        done = ingest(spark, lake, IngestPlan(store))
        line(console, f"  ingest  {done.events:,} events, as Parquet in {escape(str(directory / 'lake'))}")
        build(spark, lake)
        runs = lake.read(spark, "job_runs").count()
        line(console, f"  build   {runs:,} job runs, their attempts, and figures by hour")
        found = audit(spark, lake)
        style = "bold red" if found.broken else "bold green"
        summary, _, rest = found.text().partition("\n")
        line(console, f"  audit   [{style}]{summary}[/]")
        if found.broken:
            line(console, escape(rest))
        page = report(spark, lake, directory / "report.html", title="Holdfast demo")
        line(console, f"  report  {escape(str(page.absolute()))}")
    finally:
        spark.stop()
    _print_query(console, directory / "lake")
    return not found.broken


def _print_query(console: Console, lake: Path) -> None:
    line(console, "Query it:")
    query = "SELECT tenant, queue, count(*) AS jobs, max(wait_ms) AS longest_wait FROM job_runs GROUP BY ALL"
    text = f'pipeline query --lake {shlex.quote(str(lake))} "{query}"'
    line(console, escape(f"  {command()} {text}"))
