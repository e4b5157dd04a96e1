"""`holdfast worker`: runs the jobs of some modules, in this process or in several."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from holdfast.cli.options import Blobs, Store, Tenant, blobs_url, duration, store_url, tenant_name, words
from holdfast.core.errors import InvalidOption

JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Logs as JSON lines.")]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]

_LEVELS = ("debug", "info", "warning", "error")


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(worker)


def worker(
    modules: Annotated[
        str | None, typer.Argument(metavar="[MODULE[,MODULE...]]", help="The modules whose @job functions to run.")
    ] = None,
    *,
    store: Store = None,
    tenant: Tenant = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Serve every tenant, in fair turns; HOLDFAST_TENANT does not count.")
    ] = False,
    queues: Annotated[
        str | None,
        typer.Option(metavar="QUEUE[,QUEUE...]", help="The queues to serve; if not given, those of the jobs."),
    ] = None,
    handler: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="What gets the payloads of jobs without a type.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="How many jobs run at once.")] = 10,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, help="How many processes; one that dies is started again.")
    ] = 1,
    lease: Annotated[
        str, typer.Option(metavar="SECONDS", help="How long a job stays ours without a sign of life.")
    ] = "30",
    grace: Annotated[
        str, typer.Option(metavar="SECONDS", help="How long running jobs may go on after SIGTERM.")
    ] = "20",
    prefetch: Annotated[
        int | None, typer.Option(help="How many jobs to claim ahead; if not given, as it fits.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve Prometheus metrics; with --processes each has the next port."),
    ] = None,
    blobs: Blobs = None,
    json_logs: JsonLogs = False,
    log_level: LogLevel = "info",
) -> None:
    """Run jobs until SIGTERM or Ctrl-C. Then finish or give back what is held, and exit with 0."""
    import asyncio

    from holdfast.cli.running import Plan, configure_logs, exit_on_term, ignore_signals, run_child, try_out, work

    if all_tenants and tenant is not None:
        raise InvalidOption("tenant", "give --tenant or --all-tenants, not both")
    if modules is None and handler is None:
        raise InvalidOption("module", "nothing to run; name the modules with your @job functions, or pass --handler")
    lease_s, grace_s = duration("lease", lease), duration("grace", grace)
    plan = Plan(
        store=store_url(store),
        tenant=None if all_tenants else tenant_name(tenant, "--tenant, --all-tenants"),
        modules=words("module", modules) or [],
        handler=handler,
        queues=words("queues", queues),
        concurrency=concurrency,
        lease_s=30.0 if lease_s is None else lease_s.total_seconds(),
        grace_s=20.0 if grace_s is None else grace_s.total_seconds(),
        prefetch=prefetch,
        metrics_port=metrics_port,
        blobs=blobs_url(blobs),
        json_logs=json_logs,
        log_level=checked_level(log_level),
    )
    exit_on_term()
    configure_logs(plan)
    if processes == 1:
        asyncio.run(work(plan))
        return
    from holdfast.worker.supervisor import supervise

    asyncio.run(try_out(plan))
    code = supervise(partial(run_child, plan), processes)
    ignore_signals()
    raise typer.Exit(code)


def checked_level(level: str) -> str:
    """The name of a log level. Raises InvalidOption."""
    if level.lower() not in _LEVELS:
        raise InvalidOption("log_level", f"{level!r} is none of {', '.join(_LEVELS)}")
    return level.lower()
