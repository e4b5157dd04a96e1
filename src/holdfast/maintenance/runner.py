"""Runs the maintenance of a store: periodic tasks, each at its own interval, and the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from holdfast.blobs import Blobs
from holdfast.core.errors import StoreError
from holdfast.core.names import GAUGES
from holdfast.extensions import SingleTenant
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.maintenance.coordinator import Coordinator
from holdfast.maintenance.gauges import ensure_job
from holdfast.maintenance.handlers import system_handlers
from holdfast.maintenance.pruner import prune
from holdfast.maintenance.reaper import reap
from holdfast.maintenance.scheduler import mend, wake_up
from holdfast.maintenance.storeclock import StoreClock
from holdfast.opening import open_store
from holdfast.store import Store
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

PeriodicTask = Callable[[], Awaitable[float]]
"""Runs one round, and returns in how many seconds to run the next one."""


class Maintenance:
    """Reaps and prunes one store, and serves the schedules and flows of one tenant or of all tenants.

    Any number may run at once, on any machines: each task is safe beside others of its kind. With `coordinate=False`
    the caller runs the coordinator. A worker does so, because its handlers may block this event loop.
    """

    def __init__(
        self,
        store: Store,
        *,
        tenant: str | None = None,
        blobs: Blobs | None = None,
        tasks: Mapping[str, PeriodicTask] | None = None,
        on_error: Callable[[BaseException], None] | None = None,
        coordinate: bool = True,
    ) -> None:
        self._store, self._tenant, self._clock = store, tenant, StoreClock()
        self._tasks: dict[str, PeriodicTask] = {
            "reap": lambda: reap(store, self._clock),
            "prune": lambda: prune(store, blobs),
            **(tasks or {}),
        }
        self._on_error = on_error
        # A store of a single tenant is a client of the HTTP service, which serves schedules and flows itself.
        self._coordinator: Coordinator | None = None
        if not isinstance(store, SingleTenant):
            handlers = system_handlers(tenant)
            if GAUGES in handlers:
                self._tasks["keep the job of gauges"] = lambda: ensure_job(store)
            if coordinate:
                self._coordinator = Coordinator(store, tenant, handlers, on_error=on_error)
            self._tasks["mend schedules"] = lambda: mend(store, tenant)
            self._tasks["wake schedules"] = self._wake_schedules

    async def run(self) -> None:
        """Run every task until this is canceled."""
        async with asyncio.TaskGroup() as group:
            if self._coordinator is not None:
                group.create_task(self._coordinator.run(), name="holdfast coordinate")
            for name, task in self._tasks.items():
                group.create_task(self._repeat(name, task), name=f"holdfast {name}")

    async def _wake_schedules(self) -> float:
        """Wake schedules at the start, and whenever the store's clock was set back."""
        await wake_up(self._store, self._tenant)
        await self._clock.set_back()
        return 0.0

    async def _repeat(self, name: str, task: PeriodicTask) -> None:
        pause = Pause()
        while True:
            try:
                wait_s = await task()
                pause.reset()
            except Exception as error:  # noqa: BLE001 - maintenance outlives failures of the store
                if not isinstance(error, (StoreError, *AWAY)):
                    _log.exception("a maintenance task failed", task=name)
                if self._on_error is not None:
                    self._on_error(error)
                wait_s = pause.next_s()
            await asyncio.sleep(wait_s)


async def maintain(
    store: Store | str,
    *,
    stop: asyncio.Event | None = None,
    blobs: Blobs | None = None,
    on_error: Callable[[BaseException], None] | None = None,
) -> None:
    """Run the maintenance of a store, given as an object or a URL, until `stop` is set or the task is canceled."""
    opened = await open_store(store) if isinstance(store, str) else store
    running = asyncio.ensure_future(Maintenance(opened, blobs=blobs, on_error=on_error).run())
    try:
        if stop is None:
            await running
        else:
            await stop.wait()
    finally:
        running.cancel()
        await asyncio.wait([running])
        if opened is not store:
            await opened.close()
