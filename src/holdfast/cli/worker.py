"""`holdfast worker`: runs jobs, in this process or in several."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from holdfast.cli.options import (
    AllTenants,
    Blobs,
    Concurrency,
    GaugesByTenant,
    Grace,
    Handler,
    Lease,
    MetricsHost,
    Modules,
    Queues,
    Store,
    Tenant,
    gauges_by_tenant,
)
from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import duration

JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Log JSON lines.")]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]

_LEVELS = ("debug", "info", "warning", "error")


def worker(
    modules: Modules = None,
    *,
    store: Store = None,
    tenant: Tenant = None,
    all_tenants: AllTenants = False,
    queues: Queues = None,
    handler: Handler = None,
    lifespan: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="An async context manager for startup and shutdown."),
    ] = None,
    concurrency: Concurrency = 10,
    processes: Annotated[
        int,
        typer.Option("--processes", min=1, max=256, help="The number of processes; a process that dies is restarted."),
    ] = 1,
    lease: Lease = "30",
    grace: Grace = "20",
    fail_unknown_after: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long a job of an unknown type or version may wait before it fails."),
    ] = "24h",
    prefetch: Annotated[
        int | None, typer.Option(help="How many jobs to claim beyond the free slots. Default: chosen automatically.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Serve Prometheus metrics, /livez and /readyz on this port; with --processes each process uses the "
            "next port.",
        ),
    ] = None,
    metrics_host: MetricsHost = "127.0.0.1",
    by_tenant: GaugesByTenant = None,
    blobs: Blobs = None,
    json_logs: JsonLogs = False,
    log_level: LogLevel = "info",
) -> None:
    """Run jobs until SIGTERM or Ctrl-C. Then finish or release the running jobs, and exit with 0."""
    import asyncio

    from msgspec.structs import replace

    from holdfast.cli.running import (
        check_start,
        configure_logs,
        exit_on_term,
        ignore_signals,
        run_child,
        work,
        worker_config,
    )

    config = replace(
        worker_config(
            modules, handler, store=store, tenant=tenant, all_tenants=all_tenants, queues=queues,
            concurrency=concurrency, lease=lease, grace=grace, blobs=blobs,
        ),
        lifespan=lifespan,
        fail_unknown_after_s=(duration("fail_unknown_after", fail_unknown_after) or timedelta()).total_seconds(),
        prefetch=prefetch,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        gauges_by_tenant=gauges_by_tenant(by_tenant, metrics_port),
        json_logs=json_logs,
        log_level=checked_level(log_level),
    )  # fmt: skip
    if config.gauges_by_tenant and config.tenant is not None:
        raise InvalidOption("gauges_by_tenant", "it needs --all-tenants")
    exit_on_term()
    configure_logs(config)
    if processes == 1:
        asyncio.run(work(config))
        return
    from holdfast.worker.supervisor import supervise

    asyncio.run(check_start(config))
    code = supervise(partial(run_child, config), processes)
    ignore_signals()
    raise typer.Exit(code)


def checked_level(level: str) -> str:
    """The name of a log level. Raises InvalidOption."""
    if level.lower() not in _LEVELS:
        raise InvalidOption("log_level", f"{level!r} is not one of {', '.join(_LEVELS)}")
    return level.lower()
