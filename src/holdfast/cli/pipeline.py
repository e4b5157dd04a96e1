"""`holdfast pipeline`: the log as tables, on Spark. PySpark is loaded only when one of these commands runs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import FAILED
from holdfast.cli.options import Json, Store, store_url
from holdfast.cli.output import emit, note, say
from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import duration

if TYPE_CHECKING:
    from holdfast.pipeline.ingest import Ingested

LakePath = Annotated[str, typer.Option("--lake", metavar="DIR", help="The directory of the tables.")]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master. Default: all cores of this machine.")
]
Remote = Annotated[str | None, typer.Option("--remote", metavar="URL", help="Spark Connect, such as sc://host:15002.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting for Spark; can be repeated.")
]

app = typer.Typer(
    name="pipeline",
    help="The log as tables, on Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def register(parent: typer.Typer) -> None:
    """Add these commands."""
    # Imported here, because they import this module.
    from holdfast.cli import pipeline_jobs, pipeline_tables

    app.command()(ingest)
    pipeline_tables.register(app)
    pipeline_jobs.register(app)
    parent.add_typer(app)


def session(master: str | None, remote: str | None, conf: list[str] | None) -> Any:
    """The SparkSession for a command. Raises InvalidOption."""
    from holdfast.pipeline.session import make_session, silence_query_errors

    settings: dict[str, str] = {}
    for pair in conf or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidOption("conf", f"{pair!r} is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    silence_query_errors()
    return make_session(master, remote, conf=settings)


def check_spark(remote: str | None) -> None:
    """Raise InvalidOption if a library or Java is missing, before anything starts."""
    from holdfast.pipeline.session import CONNECT_LIBRARIES, check_java, check_libraries

    if remote is None:
        check_libraries()
        check_java()
    else:
        check_libraries(CONNECT_LIBRARIES)


def ingest(
    *,
    lake: LakePath,
    store: Store = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's events.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option(help="With --follow: how often to look for new events.")] = "10s",
    payloads: Annotated[
        str, typer.Option(metavar="none|hash|full", help="What to keep of payloads, which may contain personal data.")
    ] = "none",
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Continue after events that were trimmed before they were read.")
    ] = False,
    moved: Annotated[bool, typer.Option("--moved", help="It is the same store at a new address.")] = False,
    max_events: Annotated[int, typer.Option(help="About how many events a batch has.", min=1)] = 1_000_000,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Ingest the log into a lake, exactly once: to its current end, or following it.

    Ctrl-C lets the current batch finish; a second Ctrl-C ends at once. Without --follow the exit code is then 1.
    """
    check_spark(remote)
    from holdfast.pipeline.connection import OpenStore
    from holdfast.pipeline.ingest import IngestPlan, check_payloads
    from holdfast.pipeline.ingest import ingest as run_ingest
    from holdfast.pipeline.lake import Lake

    url = store_url(store)
    every = duration("interval", interval)
    plan = IngestPlan(
        url, tenant, check_payloads(payloads), follow, every.total_seconds() if every else 0.0, max_events,
        accept_gap=accept_gap, moved=moved,
    )  # fmt: skip
    # Open the store and the lake first: Spark takes seconds to start.
    with OpenStore(url) as opened:
        _ = opened.log
    place = Lake(lake, create=True)
    place.check_free("ingest")
    stop = threading.Event()
    stop_by(stop.set, stop.is_set)
    spark = session(master, remote, conf)
    stop_by(stop.set, stop.is_set)
    try:
        done = run_ingest(spark, place, plan, _print_batch, stop.is_set)
    finally:
        spark.stop()
    if json:
        emit(done)
    else:
        say(_summary(done, place.root))
    if done.stopped:
        note("Stopped before the end of the log. The same command continues from there.")
        raise typer.Exit(FAILED)


def stop_by(ask: Callable[[], object], asked: Callable[[], bool]) -> None:
    """Let the first signal ask for an end, and the second one end this process.

    Call it again once the session exists: Spark replaces earlier signal handlers by its own.
    """

    def on_signal(*_: Any) -> None:
        if asked():
            sys.exit(FAILED)
        ask()
        note("stopping; a second signal ends it at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun, such as "1 batch" or "2 batches"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def _print_batch(done: Ingested) -> None:
    note(f"batch {done.batches}: {done.events} events so far, {done.events / max(done.seconds, 0.001):.0f}/s")


def _summary(done: Ingested, root: object) -> str:
    text = f"{counted(done.events, 'event')} in {counted(done.batches, 'batch', 'batches')}, into {root}"
    if done.payloads or done.missing_payloads:
        text += f"; {done.payloads} payloads, {done.missing_payloads} were already gone"
    if done.gaps:
        text += f"; {counted(done.gaps, 'gap')}: events of single tenants were trimmed before they were read"
    return text
