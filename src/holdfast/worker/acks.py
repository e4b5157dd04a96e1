"""Sends outcomes to the store in batches: while one batch is in flight, the next one fills.

An idle worker sends each outcome at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.clock import boot_time
from holdfast.core.failpoint import hit
from holdfast.core.job import Finish, Finished, JobState
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.worker.joining import is_completed

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store import Store
    from holdfast.worker.active_job import ActiveJob
    from holdfast.worker.answers import Answers

BATCH = 1_000


class Acknowledger:
    """Sends each outcome until the store has accepted or refused it, or the lease is over by the local clock. [LEASE-4]

    A batch without an answer is sent again: the store gives a repeated outcome the first answer. [LEASE-1] `answers`
    receives each answer, `on_error(operation, error)` each failure of the store.
    """

    def __init__(self, store: Store, answers: Answers, on_error: Callable[[str, BaseException], None]) -> None:
        self._store = store
        self._answers = answers
        self._on_error = on_error
        self._waiting: list[ActiveJob] = []
        self._in_flight = 0
        self._wakeup: asyncio.Future[None] | None = None
        self._batch = BATCH
        self._closing = False
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def backlog(self) -> int:
        """How many outcomes the store has not answered yet."""
        return len(self._waiting) + self._in_flight

    def add(self, active: ActiveJob, finish: Finish) -> None:
        """Send this outcome with the next batch."""
        active.finish = finish
        if active.joined:
            check = asyncio.create_task(self._add_unless_completed(active, finish))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        else:
            self._add(active)

    async def run(self) -> None:
        """Send outcomes until `close` is called and everything is answered."""
        pause = Pause()
        while True:
            if not self._waiting:
                if self._closing:
                    return
                self._wakeup = asyncio.get_running_loop().create_future()
                try:
                    await self._wakeup
                finally:
                    self._wakeup = None
                continue
            batch = self._waiting[: self._batch]
            del self._waiting[: self._batch]
            try:
                await self._send(batch)
            except asyncio.CancelledError:
                self._waiting[:0] = batch
                raise
            except Exception as error:  # noqa: BLE001 - no failure may lose the outcomes
                self._put_back(batch, error)
                await asyncio.sleep(pause.next_s())
            else:
                pause.reset()
                self._batch = BATCH

    def close(self) -> None:
        """Make `run` return when everything is answered."""
        self._closing = True
        self._wake()

    async def finish_checks(self, timeout_s: float) -> None:
        """Wait until the store has answered for the jobs that joined a transaction."""
        if self._checks:
            await asyncio.wait(self._checks, timeout=timeout_s)

    async def send_once(self) -> None:
        """Try once to send everything that is left. Call it only after `run` has ended."""
        batch, self._waiting = self._waiting, []
        if batch:
            await self._send(batch)

    async def abandon_checks(self) -> None:
        """Cancel the checks that `finish_checks` did not see end."""
        for check in self._checks:
            check.cancel()
        if self._checks:
            await asyncio.wait(self._checks)

    async def _send(self, batch: list[ActiveJob]) -> None:
        batch = self._drop_expired(batch)
        if not batch:
            return
        hit("worker.before_ack")
        self._in_flight = len(batch)
        try:
            answers = await self._store.finish([active.finish for active in batch if active.finish is not None])
        finally:
            self._in_flight = 0
        hit("worker.after_ack")
        self._answers.answered(batch, list(answers))

    def _drop_expired(self, batch: list[ActiveJob]) -> list[ActiveJob]:
        now = boot_time()
        expired = [active for active in batch if active.until <= now]
        if not expired:
            return batch
        self._answers.answered(expired, [None] * len(expired))
        return [active for active in batch if active.until > now]

    def _put_back(self, batch: list[ActiveJob], error: Exception) -> None:
        self._waiting.extend(self._drop_expired(batch))
        if not isinstance(error, AWAY):
            # The store may have rejected the batch for one item: smaller batches separate the others from it.
            self._batch = max(1, min(self._batch, len(batch)) // 2)
        self._on_error("finish", error)

    async def _add_unless_completed(self, active: ActiveJob, finish: Finish) -> None:
        """Acknowledge a job unless its handler's own transaction has completed it. [ENQ-7]"""
        pause = Pause()
        while active.until > boot_time():
            try:
                (job,) = await self._store.get([active.key])
            except Exception as error:  # noqa: BLE001 - a worker outlives failures of its store
                self._on_error("get", error)
                await asyncio.sleep(pause.next_s())
                continue
            if not is_completed(job, active.token):
                break
            if finish.result is not None and finish.result.blob:
                await self._answers.delete_blob(finish.result.blob)
            active.finish = Finish(active.key, active.token, "complete")
            self._answers.answered([active], [Finished(JobState.COMPLETED)])
            return
        # Add it even if the lease has expired: `run` reports that.
        self._add(active)

    def _add(self, active: ActiveJob) -> None:
        if self._waiting:
            hit("worker.mid_batch")
        self._waiting.append(active)
        self._wake()

    def _wake(self) -> None:
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(None)
