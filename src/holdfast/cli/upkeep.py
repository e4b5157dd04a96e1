"""Operating a store: maintain, migrate, workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import (
    Blobs,
    GaugesByTenant,
    Json,
    MetricsHost,
    MetricsPort,
    Store,
    StoreUrl,
    blobs_url,
    gauges_by_tenant,
    store_url,
)
from holdfast.cli.output import emit, say, show, when
from holdfast.cli.session import shown_url, with_store
from holdfast.cli.worker import JsonLogs, LogLevel, checked_level

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.store import Store as OpenStore
    from holdfast.store import WorkerInfo


def maintain(
    *,
    store: Store = None,
    blobs: Blobs = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    by_tenant: GaugesByTenant = None,
    json_logs: JsonLogs = False,
    log_level: LogLevel = "info",
) -> None:
    """Run a store's maintenance until SIGTERM or Ctrl-C.

    It ends expired leases, deletes jobs after their retention, runs schedules and advances flows. Every worker does so
    too.
    """
    import asyncio

    from holdfast.cli.running import exit_on_term, serve_metrics
    from holdfast.telemetry import logging

    url, tenants = store_url(store), gauges_by_tenant(by_tenant, metrics_port)
    exit_on_term()
    logging.configure(json=json_logs, level=checked_level(log_level).upper())
    if metrics_port is not None:
        serve_metrics(metrics_host, metrics_port, tenants)
    asyncio.run(_maintain(url, blobs_url(blobs)))


def migrate(url: StoreUrl, *, json: Json = False) -> None:
    """Migrate a store's schema, in one transaction. Exits with 1 if that fails.

    It is safe to run several at once, and while workers run. Only postgresql:// has a schema.
    """
    import asyncio

    from holdfast.opening import make_store

    steps: list[str] = []

    async def ask() -> bool:
        store = make_store(url)
        migrate_store: Callable[[Callable[[str], None]], Awaitable[int]] | None = getattr(store, "migrate", None)
        try:
            if migrate_store is not None:
                await migrate_store(steps.append)
            return migrate_store is not None
        finally:
            await store.close()

    has_schema = asyncio.run(ask())
    if json:
        emit({"url": shown_url(url), "steps": steps})
    elif not has_schema:
        say(f"Nothing to migrate: {url.partition(':')[0]}: has no schema.")
    elif steps:
        say("\n".join(f"applied {name}" for name in steps), lines=True)
    else:
        say("Nothing to migrate: the schema is up to date.")


def list_workers(
    *,
    store: Store = None,
    tenant: Annotated[str | None, typer.Option(help="Only workers that serve this tenant.")] = None,
    json: Json = False,
) -> None:
    """List live workers."""
    from holdfast.core.names import check_tenant
    from holdfast.queue.records import worker_of

    if tenant is not None:
        check_tenant(tenant)

    async def act(opened: OpenStore) -> Sequence[WorkerInfo]:
        return await opened.workers(tenant)

    found = [worker_of(info) for info in with_store(store, act)]
    if json:
        emit({"workers": found})
        return
    rows = [
        [
            one.id,
            one.host,
            str(one.pid),
            "(all)" if one.tenant is None else one.tenant,
            ",".join(one.queues),
            f"{one.held}/{one.concurrency}",
            when(one.started_at),
            when(one.seen_at),
        ]
        for one in found
    ]
    show(["id", "host", "pid", "tenant", "queues", "held", "started", "last seen"], rows, "No worker is alive.")


async def _maintain(url: str, blobs: str | None) -> None:
    from holdfast.blobs import Blobs as BlobStore
    from holdfast.cli.running import ignore_signals, open_and_log
    from holdfast.maintenance import maintain as run
    from holdfast.opening import make_store
    from holdfast.telemetry.logging import get_logger
    from holdfast.worker.signals import stop_event

    log = get_logger("holdfast.cli")
    blob_store = None if blobs is None else BlobStore.open(blobs)
    opened = make_store(url)
    try:
        await open_and_log(opened, url)
        with stop_event() as stop:
            log.info("maintenance started", store=shown_url(url))
            await run(
                opened,
                stop=stop,
                blobs=blob_store,
                on_error=lambda error: log.warning("a maintenance task failed", error=error),
            )
        ignore_signals()
        log.info("maintenance stopped")
    finally:
        await opened.close()
