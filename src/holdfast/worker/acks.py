"""Acknowledgements, gathered: while one batch is on its way the next one fills. An idle worker sends at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.clock import boot_time
from holdfast.core.failpoint import hit
from holdfast.maintenance.backoff import AWAY, Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.job import Finish
    from holdfast.store import FinishAnswer, Store
    from holdfast.worker.active_job import ActiveJob

BATCH = 1_000


class Acknowledger:
    """Sends outcomes until the store has accepted or refused them, or the lease is over by the own clock. [LEASE-4]

    A batch that got no answer is sent again: the same token with the same outcome is answered like the first
    time. [LEASE-1] `on_settled(batch, answers)` gets what became of each, None standing for a lease that was
    over before it could be sent; `on_error` of each failure.
    """

    def __init__(
        self,
        store: Store,
        on_settled: Callable[[list[ActiveJob], list[FinishAnswer | None]], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._on_settled = on_settled
        self._on_error = on_error
        self._waiting: list[ActiveJob] = []
        self._in_flight = 0
        self._wake: asyncio.Future[None] | None = None
        self._batch = BATCH
        self._closing = False

    @property
    def backlog(self) -> int:
        """How many outcomes the store has not answered yet."""
        return len(self._waiting) + self._in_flight

    def add(self, held: ActiveJob, finish: Finish) -> None:
        """Send this outcome with the next batch."""
        held.finish = finish
        if self._waiting:
            hit("worker.mid_batch")
        self._waiting.append(held)
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    async def run(self) -> None:
        """Send what is added, until `close` and everything is answered."""
        pause = Pause()
        while True:
            if not self._waiting:
                if self._closing:
                    return
                self._wake = asyncio.get_running_loop().create_future()
                try:
                    await self._wake
                finally:
                    self._wake = None
                continue
            batch = self._waiting[: self._batch]
            del self._waiting[: self._batch]
            try:
                await self._send(batch)
            except asyncio.CancelledError:
                self._waiting[:0] = batch
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the outcomes must not be lost
                self._put_back(batch, error)
                await asyncio.sleep(pause.next_s())
            else:
                pause.reset()
                self._batch = BATCH

    def close(self) -> None:
        """Let `run` end when everything is answered."""
        self._closing = True
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    async def send_once(self) -> None:
        """One try for everything that waits, for an end in a hurry. Only when `run` has ended."""
        batch, self._waiting = self._waiting, []
        if batch:
            await self._send(batch)

    async def _send(self, batch: list[ActiveJob]) -> None:
        batch = self._without_lost(batch)
        if not batch:
            return
        hit("worker.before_ack")
        self._in_flight = len(batch)
        try:
            answers = await self._store.finish([held.finish for held in batch if held.finish is not None])
        finally:
            self._in_flight = 0
        hit("worker.after_ack")
        self._on_settled(batch, list(answers))

    def _without_lost(self, batch: list[ActiveJob]) -> list[ActiveJob]:
        now = boot_time()
        lost = [held for held in batch if held.until <= now]
        if not lost:
            return batch
        self._on_settled(lost, [None] * len(lost))
        return [held for held in batch if held.until > now]

    def _put_back(self, batch: list[ActiveJob], error: Exception) -> None:
        self._waiting.extend(self._without_lost(batch))
        if not isinstance(error, AWAY):
            # One of the items may be what it cannot take: smaller batches keep the others from its company.
            self._batch = max(1, min(self._batch, len(batch)) // 2)
        self._on_error(error)
