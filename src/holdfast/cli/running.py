"""One worker process: its configuration, and its run from start to end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli import exit_code_of
from holdfast.cli.options import blobs_url, store_url, tenant_name, words
from holdfast.cli.session import is_new, shown_url
from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.core.job import WAITING, AttemptError
from holdfast.jobs.moments import duration

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.telemetry.exposition import Checks
    from holdfast.worker import Worker, WorkerEvent


class WorkerConfig(Struct, frozen=True):
    """The configuration of one worker process. It is sent to child processes."""

    store: str
    tenant: str | None
    modules: list[str]
    handler: str | None = None
    lifespan: str | None = None
    queues: list[str] | None = None
    concurrency: int = 10
    lease_s: float = 30.0
    grace_s: float = 20.0
    fail_unknown_after_s: float = 24 * 3600.0
    prefetch: int | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    gauges_by_tenant: tuple[str, ...] = ()
    blobs: str | None = None
    json_logs: bool = False
    log_level: str = "info"


def worker_config(
    modules: str | None,
    handler: str | None,
    *,
    store: str | None,
    tenant: str | None,
    all_tenants: bool,
    queues: str | None,
    concurrency: int,
    lease: str,
    grace: str,
    blobs: str | None,
) -> WorkerConfig:
    """The configuration for these options of a command line. Raises InvalidOption."""
    if all_tenants and tenant is not None:
        raise InvalidOption("tenant", "give --tenant or --all-tenants, not both")
    if modules is None and handler is None:
        raise InvalidOption("module", "nothing to run; name the modules with your @job functions, or pass --handler")
    lease_s, grace_s = duration("lease", lease), duration("grace", grace)
    return WorkerConfig(
        store=store_url(store),
        tenant=None if all_tenants else tenant_name(tenant, "--tenant, --all-tenants"),
        modules=words("module", modules) or [],
        handler=handler,
        queues=words("queues", queues),
        concurrency=concurrency,
        lease_s=30.0 if lease_s is None else lease_s.total_seconds(),
        grace_s=20.0 if grace_s is None else grace_s.total_seconds(),
        blobs=blobs_url(blobs),
    )


async def work(config: WorkerConfig) -> None:
    """Run one worker until it is stopped."""
    from holdfast.opening import make_store
    from holdfast.telemetry.logging import get_logger
    from holdfast.worker.collecting import collect_seldom

    log = get_logger("holdfast.cli")
    store = make_store(config.store)

    async def log_start(worker: Worker) -> None:
        queues = worker.settings.queues
        log.info(
            "worker started",
            worker=worker.id,
            store=shown_url(config.store),
            tenant=config.tenant or "(all)",
            queues=",".join(queues),
        )
        if config.tenant is not None and (waiting := await jobs_elsewhere(store, config.tenant, queues)):
            log.warning(
                "the queues of this worker have no jobs, but jobs wait in other queues of the tenant; "
                "name the queues to serve with --queues",
                waiting=waiting,
            )

    worker = make_worker(config, store, log_start)
    log_events(worker, config)
    if config.metrics_port is not None:
        checks = {"/livez": worker.health.why_not_live, "/readyz": worker.health.why_not_ready}
        serve_metrics(config.metrics_host, config.metrics_port, config.gauges_by_tenant, checks)
    try:
        await open_and_log(store, config.store)
        collect_seldom()
        await worker.run()
        ignore_signals()
        log.info("worker stopped", worker=worker.id)
    finally:
        await store.close()


async def open_and_log(store: Store, url: str) -> None:
    """Open a store. If that creates it, log a warning: the URL may be mistyped."""
    from holdfast.telemetry.logging import get_logger

    await store.open()
    if is_new(store):
        get_logger("holdfast.cli").warning("created a new store: there was none at this URL", store=shown_url(url))


async def jobs_elsewhere(store: Store, tenant: str, queues: tuple[str, ...]) -> str:
    """The tenant's queues with waiting jobs, as text, if none of `queues` has jobs. Otherwise an empty text."""
    from holdfast.core.names import RESERVED

    try:
        stats = await store.stats(tenant)
    except HoldfastError:
        return ""  # The token of a worker over HTTP may not be allowed to read.
    if any(one.queue in queues for one in stats):
        return ""
    waiting = {one.queue: sum(one.counts.get(state, 0) for state in WAITING) for one in stats}
    return ", ".join(f"{name} ({n})" for name, n in waiting.items() if n and not name.startswith(RESERVED))


async def check_start(config: WorkerConfig) -> None:
    """Raise any error that would keep a worker from starting: once here, not in every child process."""
    from holdfast.opening import make_store

    store = make_store(config.store)
    make_worker(config, store)
    await open_and_log(store, config.store)
    await store.close()


def run_child(config: WorkerConfig, number: int) -> NoReturn:
    """Run as one of several worker processes, numbered from 0."""
    exit_on_term()
    configure_logs(config)
    if config.metrics_port is not None:
        config = replace(config, metrics_port=config.metrics_port + number)
    sys.exit(exit_code_of(lambda: asyncio.run(work(config))))


def make_worker(
    config: WorkerConfig, store: Store, on_start: Callable[[Worker], Awaitable[None]] | None = None
) -> Worker:
    """The worker of a configuration. It calls `on_start` before its first claim.

    Raises InvalidOption if a module, a queue or a number is wrong.
    """
    from holdfast.cli.loading import add_current_directory, load_function, load_jobs
    from holdfast.queue.queue import Queue
    from holdfast.worker import Worker
    from holdfast.worker.worker import check_lifespan

    add_current_directory()
    user = None if config.lifespan is None else check_lifespan(load_function(config.lifespan, "lifespan"))

    @asynccontextmanager
    async def lifespan(worker: Worker) -> AsyncGenerator[None]:
        async with nullcontext() if user is None else user(worker):
            if on_start is not None:
                await on_start(worker)
            yield

    options: dict[str, Any] = {
        "handler": None if config.handler is None else load_function(config.handler, "handler"),
        "lifespan": lifespan,
        "queues": config.queues,
        "concurrency": config.concurrency,
        "prefetch": config.prefetch,
        "lease": config.lease_s,
        "shutdown_grace": config.grace_s,
        "fail_unknown_after": config.fail_unknown_after_s,
    }
    jobs = load_jobs(config.modules)
    if config.tenant is None:
        return Worker.for_all_tenants(store, jobs, blobs=config.blobs, **options)
    return Worker(Queue(store=store, tenant=config.tenant, blobs=config.blobs), jobs, **options)


def configure_logs(config: WorkerConfig) -> None:
    """Send the logs of this process to standard error."""
    from holdfast.telemetry import logging

    logging.configure(json=config.json_logs, level=config.log_level.upper(), application=True)


def exit_on_term() -> None:
    """Exit with 0 on a SIGTERM that arrives before the worker handles signals: it holds no job yet."""
    from holdfast.worker.signals import exit_early

    signal.signal(signal.SIGTERM, exit_early)


def ignore_signals() -> None:
    """Keep a late signal from changing the exit code: the process is ending already.

    While it ends, Python restores the default action of every signal that is not ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def log_events(worker: Worker, config: WorkerConfig) -> None:
    """Log how jobs end: failures always, completions at the level `debug`."""
    from holdfast.telemetry.logging import get_logger

    log = get_logger("holdfast.cli")

    def log_event(event: WorkerEvent) -> None:
        job = event.job
        if job is None:
            return
        fields: dict[str, Any] = {"id": job.id, "type": job.envelope.type, "queue": job.queue, "tenant": job.tenant}
        fields["attempt"] = job.attempts
        if event.error is not None:
            fields["error"] = _error_text(event.error)
            if isinstance(event.error, AttemptError) and event.error.traceback:
                fields["traceback"] = event.error.traceback
        write = log.debug if event.name == "completed" else log.warning
        write(f"job {event.name}", **fields)

    for name in ("failed", "retrying", "canceled", "stalled"):
        worker.on(name, log_event)
    if config.log_level == "debug":
        worker.on("completed", log_event)


def _error_text(error: AttemptError | BaseException) -> str:
    if isinstance(error, AttemptError):
        return f"{error.type}: {error.message}"
    return f"{type(error).__name__}: {error}"


def serve_metrics(host: str, port: int, tenants: tuple[str, ...], checks: Checks | None = None) -> None:
    """Record metrics, with the gauges of the store, and serve them and the health checks. Raises InvalidOption."""
    from holdfast.telemetry import exposition, gauges, metrics

    metrics.enable()
    gauges.enable(tenants=tenants)
    # This package does not import prometheus_client. `enable` has imported it, or has raised what to install.
    library = cast("Any", sys.modules["prometheus_client"])
    try:
        exposition.serve(host, port, library.generate_latest, library.CONTENT_TYPE_LATEST, checks)
    except OSError as error:
        raise InvalidOption("metrics_port", f"cannot listen on {host}:{port}: {error.strerror}") from None
