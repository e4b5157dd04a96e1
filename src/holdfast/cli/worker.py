"""`holdfast worker`: runs the jobs of some modules, in this process or in several."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from msgspec import Struct

from holdfast.cli.options import Blobs, Store, Tenant, blobs_url, duration, store_url, tenant_name, words
from holdfast.cli.session import shown_url
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from holdfast.store import Store as OpenStore
    from holdfast.worker import Worker, WorkerEvent

JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Logs as JSON lines.")]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]

_LEVELS = ("debug", "info", "warning", "error")


class Plan(Struct, frozen=True):
    """What one worker process is to do. Travels to child processes."""

    store: str
    tenant: str | None
    modules: list[str]
    handler: str | None = None
    queues: list[str] | None = None
    concurrency: int = 10
    lease_s: float = 30.0
    grace_s: float = 20.0
    prefetch: int | None = None
    metrics_port: int | None = None
    blobs: str | None = None
    json_logs: bool = False
    log_level: str = "info"


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
    """Run jobs until SIGTERM or Ctrl-C; then finish or give back what is held, and exit with 0."""
    if all_tenants and tenant is not None:
        raise InvalidOption("tenant", "give --tenant or --all-tenants, not both")
    if modules is None and handler is None:
        raise InvalidOption("module", "nothing to run; name the modules with your @job functions, or pass --handler")
    lease_s, grace_s = duration("lease", lease), duration("grace", grace)
    plan = Plan(
        store=store_url(store),
        tenant=None if all_tenants else tenant_name(tenant),
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
    from holdfast.cli.supervisor import supervise

    raise typer.Exit(asyncio.run(supervise(plan, processes)))


async def work(plan: Plan, *, handle_signals: bool = True, on_ready: Callable[[Worker], None] | None = None) -> None:
    """Run one worker by the plan, to its end. `on_ready` is called once the store is open and the jobs are found."""
    from holdfast.store import make_store
    from holdfast.telemetry.logging import get_logger

    log = get_logger("holdfast.cli")
    store = make_store(plan.store)
    worker = make_worker(plan, store)
    _log_events(worker, plan)
    if plan.metrics_port is not None:
        _serve_metrics(plan.metrics_port)
    try:
        await store.open()
        if on_ready is not None:
            on_ready(worker)
        log.info(
            "worker started",
            worker=worker.id,
            store=shown_url(plan.store),
            tenant=plan.tenant or "(all)",
            queues=",".join(worker.settings.queues),
        )
        await worker.run(handle_signals=handle_signals)
        log.info("worker stopped", worker=worker.id)
    finally:
        await store.close()


def make_worker(plan: Plan, store: OpenStore) -> Worker:
    """The worker of a plan. Raises InvalidOption where modules, queues or numbers are wrong."""
    from holdfast.cli.loading import add_current_directory, load_handler, load_jobs
    from holdfast.queue import Queue
    from holdfast.worker import Worker

    add_current_directory()
    options: dict[str, Any] = {
        "handler": None if plan.handler is None else load_handler(plan.handler),
        "queues": plan.queues,
        "concurrency": plan.concurrency,
        "prefetch": plan.prefetch,
        "lease": plan.lease_s,
        "shutdown_grace": plan.grace_s,
    }
    jobs = load_jobs(plan.modules)
    if plan.tenant is None:
        return Worker.for_all_tenants(store, jobs, blobs=plan.blobs, **options)
    return Worker(Queue(store=store, tenant=plan.tenant, blobs=plan.blobs), jobs, **options)


def configure_logs(plan: Plan) -> None:
    """Send the logs of this process to standard error."""
    from holdfast.telemetry import logging

    logging.configure(json=plan.json_logs, level=plan.log_level.upper())


def checked_level(level: str) -> str:
    """The name of a log level. Raises InvalidOption."""
    if level.lower() not in _LEVELS:
        raise InvalidOption("log_level", f"{level!r} is none of {', '.join(_LEVELS)}")
    return level.lower()


def exit_on_term() -> None:
    """Exit with 0 on SIGTERM also before a worker is there to see to it: nothing is held yet."""

    def leave(number: int, frame: object) -> NoReturn:
        del number, frame
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)


def _log_events(worker: Worker, plan: Plan) -> None:
    """Say in the log what becomes of jobs: what goes wrong always, what goes well at the level `debug`."""
    from holdfast.telemetry.logging import get_logger

    log = get_logger("holdfast.cli")

    def tell(event: WorkerEvent) -> None:
        job = event.job
        if job is None:
            return
        fields: dict[str, Any] = {"id": job.id, "type": job.envelope.type, "queue": job.queue, "tenant": job.tenant}
        fields["attempt"] = job.attempts
        if event.error is not None:
            fields["error"] = _said(event.error)
        say = log.debug if event.name == "completed" else log.warning
        say(f"job {event.name}", **fields)

    for name in ("failed", "retrying", "canceled", "stalled"):
        worker.on(name, tell)
    if plan.log_level == "debug":
        worker.on("completed", tell)


def _said(error: Any) -> str:
    kind = error.type if hasattr(error, "message") and hasattr(error, "type") else type(error).__name__
    return f"{kind}: {getattr(error, 'message', error)}"


def _serve_metrics(port: int) -> None:
    from holdfast.telemetry import metrics

    metrics.enable()
    # `enable` has loaded the library or said what is missing; this package does not import it.
    library = cast("Any", sys.modules["prometheus_client"])
    try:
        library.start_http_server(port)
    except OSError as error:
        raise InvalidOption("metrics_port", f"cannot listen on port {port}: {error.strerror}") from None
