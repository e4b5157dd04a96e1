"""One worker process: what it is to do, and doing it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli import told
from holdfast.cli.options import blobs_url, duration, store_url, tenant_name, words
from holdfast.cli.session import shown_url
from holdfast.core.errors import InvalidOption
from holdfast.core.job import AttemptError

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.worker import Worker, WorkerEvent


class Plan(Struct, frozen=True):
    """What one worker process is to do. Travels to child processes."""

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
    blobs: str | None = None
    json_logs: bool = False
    log_level: str = "info"


def plan_of(
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
) -> Plan:
    """What the words of a command line ask for. Raises InvalidOption."""
    if all_tenants and tenant is not None:
        raise InvalidOption("tenant", "give --tenant or --all-tenants, not both")
    if modules is None and handler is None:
        raise InvalidOption("module", "nothing to run; name the modules with your @job functions, or pass --handler")
    lease_s, grace_s = duration("lease", lease), duration("grace", grace)
    return Plan(
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


async def work(plan: Plan) -> None:
    """Run one worker by the plan, to its end."""
    from holdfast.opening import make_store
    from holdfast.telemetry.logging import get_logger
    from holdfast.worker.collecting import collect_seldom

    log = get_logger("holdfast.cli")
    store = make_store(plan.store)

    def tell(worker: Worker) -> None:
        log.info(
            "worker started",
            worker=worker.id,
            store=shown_url(plan.store),
            tenant=plan.tenant or "(all)",
            queues=",".join(worker.settings.queues),
        )

    worker = make_worker(plan, store, tell)
    log_events(worker, plan)
    if plan.metrics_port is not None:
        _serve_metrics(plan.metrics_host, plan.metrics_port)
    try:
        await store.open()
        collect_seldom()
        await worker.run()
        ignore_signals()
        log.info("worker stopped", worker=worker.id)
    finally:
        await store.close()


async def try_out(plan: Plan) -> None:
    """Raise what a worker of this plan would: said once, and not again and again by every child process."""
    from holdfast.opening import make_store

    store = make_store(plan.store)
    make_worker(plan, store)
    await store.open()
    await store.close()


def run_child(plan: Plan, number: int) -> NoReturn:
    """Be one of several worker processes; the first is number 0."""
    exit_on_term()
    configure_logs(plan)
    if plan.metrics_port is not None:
        plan = replace(plan, metrics_port=plan.metrics_port + number)
    sys.exit(told(lambda: asyncio.run(work(plan))))


def make_worker(plan: Plan, store: Store, started: Callable[[Worker], None] | None = None) -> Worker:
    """The worker of a plan, which calls `started` when it begins to claim.

    Raises InvalidOption where modules, queues or numbers are wrong.
    """
    from holdfast.cli.loading import add_current_directory, load_function, load_jobs
    from holdfast.queue.queue import Queue
    from holdfast.worker import Worker
    from holdfast.worker.worker import check_lifespan

    add_current_directory()
    user = None if plan.lifespan is None else check_lifespan(load_function(plan.lifespan, "lifespan"))

    @asynccontextmanager
    async def lifespan(worker: Worker) -> AsyncGenerator[None]:
        async with nullcontext() if user is None else user(worker):
            if started is not None:
                started(worker)
            yield

    options: dict[str, Any] = {
        "handler": None if plan.handler is None else load_function(plan.handler, "handler"),
        "lifespan": lifespan,
        "queues": plan.queues,
        "concurrency": plan.concurrency,
        "prefetch": plan.prefetch,
        "lease": plan.lease_s,
        "shutdown_grace": plan.grace_s,
        "fail_unknown_after": plan.fail_unknown_after_s,
    }
    jobs = load_jobs(plan.modules)
    if plan.tenant is None:
        return Worker.for_all_tenants(store, jobs, blobs=plan.blobs, **options)
    return Worker(Queue(store=store, tenant=plan.tenant, blobs=plan.blobs), jobs, **options)


def configure_logs(plan: Plan) -> None:
    """Send the logs of this process to standard error."""
    from holdfast.telemetry import logging

    logging.configure(json=plan.json_logs, level=plan.log_level.upper(), application=True)


def exit_on_term() -> None:
    """Exit with 0 on SIGTERM also before a worker is there to see to it: nothing is held yet."""
    from holdfast.worker.signals import exit_early

    signal.signal(signal.SIGTERM, exit_early)


def ignore_signals() -> None:
    """From here on it is only the way out: a signal that still comes must not spoil the exit code.

    Python puts the default action back for every signal but ignored ones before the process has ended.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def log_events(worker: Worker, plan: Plan) -> None:
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
            if isinstance(event.error, AttemptError) and event.error.traceback:
                fields["traceback"] = event.error.traceback
        say = log.debug if event.name == "completed" else log.warning
        say(f"job {event.name}", **fields)

    for name in ("failed", "retrying", "canceled", "stalled"):
        worker.on(name, tell)
    if plan.log_level == "debug":
        worker.on("completed", tell)


def _said(error: AttemptError | BaseException) -> str:
    if isinstance(error, AttemptError):
        return f"{error.type}: {error.message}"
    return f"{type(error).__name__}: {error}"


def _serve_metrics(host: str, port: int) -> None:
    from holdfast.telemetry import exposition, metrics

    metrics.enable()
    # `enable` has loaded the library or said what is missing; this package does not import it.
    library = cast("Any", sys.modules["prometheus_client"])
    try:
        exposition.serve(host, port, library.generate_latest, library.CONTENT_TYPE_LATEST)
    except OSError as error:
        raise InvalidOption("metrics_port", f"cannot listen on {host}:{port}: {error.strerror}") from None
