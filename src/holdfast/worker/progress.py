"""Progress of running jobs, sent in batches. Of several reports of one job only the newest is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.core.job import Progress, Report
from holdfast.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.lease import Refusal
    from holdfast.worker.active_job import ActiveJob

EVERY_S = 0.1


class Reporter:
    """Sends progress, at most ten times a second. It does not repeat a failed report."""

    def __init__(
        self,
        store: Store,
        on_lost: Callable[[ActiveJob, Refusal], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._on_lost = on_lost
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._newest: dict[ActiveJob, Progress] = {}
        self._scheduled = False
        self._task: asyncio.Task[None] | None = None

    def add(self, active: ActiveJob, progress: Progress) -> None:
        """Send `progress` soon. May be called from any thread."""
        self._newest[active] = progress
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._start)

    async def close(self) -> None:
        """Stop sending."""
        self._newest.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _start(self) -> None:
        self._scheduled = False
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._newest:
            newest = {active: self._newest.pop(active) for active in list(self._newest)}
            # A job that has ended reports nothing.
            items = [(active, progress) for active, progress in newest.items() if active.finish is None]
            try:
                answers = await self._store.report([Report(job.key, job.token, progress) for job, progress in items])
            except Exception as error:  # noqa: BLE001 - a failed report must not stop a worker
                self._on_error(error)
            else:
                for (active, _), answer in zip(items, answers, strict=True):
                    if isinstance(answer, Exception):
                        self._on_lost(active, answer)
            await asyncio.sleep(EVERY_S)
