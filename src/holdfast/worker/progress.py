"""Progress of running jobs, gathered: of several reports of one job the newest counts."""

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
    """Sends progress, at most ten times a second. Best effort: a report that fails is not repeated."""

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
        self._woken = False
        self._task: asyncio.Task[None] | None = None

    def add(self, held: ActiveJob, progress: Progress) -> None:
        """Report `progress` soon. From any thread."""
        self._newest[held] = progress
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._start)

    async def close(self) -> None:
        """Stop sending."""
        self._newest.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _start(self) -> None:
        self._woken = False
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._newest:
            newest = {held: self._newest.pop(held) for held in list(self._newest)}
            # A job that has ended has nothing left to report.
            items = [(held, progress) for held, progress in newest.items() if held.finish is None]
            try:
                answers = await self._store.report([Report(h.key, h.token, progress) for h, progress in items])
            except Exception as error:  # noqa: BLE001 - progress is worth no worker
                self._on_error(error)
            else:
                for (held, _), answer in zip(items, answers, strict=True):
                    if isinstance(answer, Exception):
                        self._on_lost(held, answer)
            await asyncio.sleep(EVERY_S)
