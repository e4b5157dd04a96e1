"""Runs the duties of upkeep, each in its own rhythm, through failures of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from holdfast.blobs import Blobs
from holdfast.core.errors import StoreError
from holdfast.extensions import SingleTenant
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.maintenance.coordinator import Coordinator
from holdfast.maintenance.duties import DUTIES
from holdfast.maintenance.pruner import prune
from holdfast.maintenance.reaper import reap
from holdfast.maintenance.scheduler import mend, wake_up
from holdfast.maintenance.storeclock import StoreClock
from holdfast.opening import open_store
from holdfast.store import Store
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

Duty = Callable[[], Awaitable[float]]
"""Does its work and returns in how many seconds it wants to do it again."""


class Maintenance:
    """Reaps and prunes one store, and takes care of the schedules and flows of one tenant or of all.

    Any number may run at once; each duty is safe beside others of its kind. With `leads=False` the caller runs the
    coordinator: a worker does, whose handlers may block this event loop.
    """

    def __init__(
        self,
        store: Store,
        *,
        tenant: str | None = None,
        blobs: Blobs | None = None,
        duties: Mapping[str, Duty] | None = None,
        on_error: Callable[[BaseException], None] | None = None,
        leads: bool = True,
    ) -> None:
        self._store, self._tenant, self._clock = store, tenant, StoreClock()
        self._duties: dict[str, Duty] = {
            "reap": lambda: reap(store, self._clock),
            "prune": lambda: prune(store, blobs),
            **(duties or {}),
        }
        self._on_error = on_error
        # What is one tenant's alone is a service, which does it itself.
        self._coordinator: Coordinator | None = None
        if not isinstance(store, SingleTenant):
            if leads:
                self._coordinator = Coordinator(store, tenant, DUTIES, on_error=on_error)
            self._duties["mend schedules"] = lambda: mend(store, tenant)
            self._duties["wake schedules"] = self._wake_schedules

    async def run(self) -> None:
        """Do every duty, for ever. Ends by being canceled."""
        async with asyncio.TaskGroup() as group:
            if self._coordinator is not None:
                group.create_task(self._coordinator.run(), name="holdfast coordinate")
            for name, duty in self._duties.items():
                group.create_task(self._repeat(name, duty), name=f"holdfast {name}")

    async def _wake_schedules(self) -> float:
        """When upkeep begins, and whenever the store's clock was set back."""
        await wake_up(self._store, self._tenant)
        await self._clock.set_back()
        return 0.0

    async def _repeat(self, name: str, duty: Duty) -> None:
        pause = Pause()
        while True:
            try:
                wait_s = await duty()
                pause.reset()
            except Exception as error:  # noqa: BLE001 - upkeep outlives a store's troubles
                if not isinstance(error, (StoreError, *AWAY)):
                    _log.exception("upkeep failed", duty=name)
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
    """Run the upkeep of a store, given or by URL, until `stop` is set or the task is canceled."""
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
