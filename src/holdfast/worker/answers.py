"""The end of a job's life in a worker: the store has answered its outcome, or its lease is lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal

from holdfast.core.errors import JobCanceled
from holdfast.core.job import Finished, JobState
from holdfast.telemetry import metrics

if TYPE_CHECKING:
    from holdfast.blobs import Blobs
    from holdfast.core.lease import Refusal
    from holdfast.store import FinishAnswer
    from holdfast.worker.active_job import ActiveJob
    from holdfast.worker.callbacks import Callbacks, EventName
    from holdfast.worker.state import RunState

_EVENT_OF: dict[JobState, EventName] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.RETRYING: "retrying",
}


class Answers:
    """Reports each job's ending to callbacks and metrics, and removes the job from the run's state."""

    def __init__(self, state: RunState, callbacks: Callbacks, blobs: Blobs | None) -> None:
        self._state = state
        self._callbacks = callbacks
        self._blobs = blobs
        self._deletions: set[asyncio.Task[None]] = set()

    def answered(self, batch: list[ActiveJob], answers: list[FinishAnswer | None]) -> None:
        """Report the store's answers to outcomes. None: the lease was over, so the outcome was not sent. [LEASE-4]"""
        self._state.leased.difference_update(batch)
        meter = metrics.current
        observed = meter is not None or not self._callbacks.silent
        for active, answer in zip(batch, answers, strict=True):
            if not isinstance(answer, Finished):
                self._refused(active, answer)
            elif observed:
                self._accepted(active, answer)
            if meter is not None:
                meter.held(-1)
                if active.finish is not None and active.started_at:
                    meter.finished(active.key.queue, active.finish.outcome, active.run_s)
        self._state.changed.set()

    def lost(self, active: ActiveJob, refusal: Refusal) -> None:
        """Stop the handler of a lost lease: its outcome no longer counts. [LEASE-4, CANCEL-2]"""
        if active.finish is not None or active.interruption not in ("", "released"):
            return  # The answer to its acknowledgement will report it.
        state, reason = self._state, _reason(refusal)
        state.leased.discard(active)
        if metrics.current is not None:
            metrics.current.held(-1)
        if active in state.running:
            active.interrupt(reason)
        elif active in state.prefetched:
            state.prefetched.remove(active)
            active.interruption = reason
        self._callbacks.emit(reason, active.job, refusal)
        state.changed.set()

    async def delete_blob(self, name: str) -> None:
        """Try to delete the large result of an outcome that was not accepted."""
        if self._blobs is not None:
            with contextlib.suppress(Exception):
                await self._blobs.delete([name])

    async def close(self) -> None:
        """Wait for blobs that are being deleted."""
        if self._deletions:
            await asyncio.wait(self._deletions)

    def _accepted(self, active: ActiveJob, answer: Finished) -> None:
        finish = active.finish
        if (event := _EVENT_OF.get(answer.state)) is not None:
            self._callbacks.emit(event, active.job, finish.error if finish else None)
        if metrics.current is not None and finish is not None and finish.outcome == "release":
            reason = finish.reason or ("shutdown" if finish.delay_ms is None else "retry_later")
            metrics.current.released(active.key.queue, reason)

    def _refused(self, active: ActiveJob, refusal: Refusal | None) -> None:
        """Report an outcome that was too late."""
        result = active.finish.result if active.finish else None
        # Only after a refusal is it certain that no job refers to the blob.
        if result is not None and result.blob and refusal is not None:
            task = asyncio.create_task(self.delete_blob(result.blob))
            self._deletions.add(task)
            task.add_done_callback(self._deletions.discard)
        if active.finish is None or active.finish.outcome != "release":
            self._callbacks.emit(_reason(refusal), active.job, refusal)


def _reason(refusal: Refusal | None) -> Literal["canceled", "stalled"]:
    return "canceled" if isinstance(refusal, JobCanceled) else "stalled"
