"""One run of a worker: claims as far as it has room, runs, acknowledges, and leaves nothing behind.

Claims and acknowledgements go on beside each other, so that a store can commit them together. Everything here
belongs to one event loop; only the heartbeat has a thread of its own, and hands over by `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.clock import boot_time
from holdfast.core.errors import HoldfastError, JobCanceled
from holdfast.core.failpoint import hit
from holdfast.core.job import ClaimRequest, Finish, Finished, JobKey, JobState
from holdfast.extensions import SingleTenant
from holdfast.maintenance import Maintenance
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.maintenance.coordinator import Coordinator
from holdfast.maintenance.duties import DUTIES
from holdfast.queue.claims import Claimer, inbox_at, pause_s
from holdfast.store import Store, WorkerInfo
from holdfast.telemetry import metrics, tracing
from holdfast.telemetry.logging import get_logger
from holdfast.worker import outcome
from holdfast.worker.acks import Acknowledger
from holdfast.worker.active_job import ActiveJob
from holdfast.worker.clients import Clients
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.joining import Joining, is_completed
from holdfast.worker.progress import Reporter
from holdfast.worker.runner import Runner

if TYPE_CHECKING:
    from holdfast.core.job import Claimed
    from holdfast.core.lease import Refusal
    from holdfast.queue.connection import Address
    from holdfast.store import FinishAnswer, Store
    from holdfast.worker.callbacks import Callbacks, EventName
    from holdfast.worker.handlers import Handler
    from holdfast.worker.settings import Settings

CLAIM_LIMIT = 1_000
ACK_BACKLOG = 10_000
"""The most outcomes that may wait for a store that does not answer, before claiming stops."""
PREFETCH_S = 0.25
"""Prefetch at most what runs in this time: a job must not wait here while another worker is free."""
END_S = 2.0
"""How long a handler may take to stop when asked."""
SAID = 10
"""The most jobs that a line of the log names."""
SAY_EVERY_S = 10.0
"""How often to log what the end waits for."""
DRAIN_S = 5.0
"""How long the last acknowledgements may take."""
HURRY_S = 1.0
"""The same, when a second signal asks to end at once."""

_EVENT_OF: dict[JobState, EventName] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.RETRYING: "retrying",
}

_log = get_logger(__name__)


class Loop:
    """The state of one run. Made inside the event loop that it runs in."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        handlers: dict[str, Handler],
        callbacks: Callbacks,
        address: Address | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._callbacks = callbacks
        self._loop = asyncio.get_running_loop()
        self._held: set[ActiveJob] = set()
        self._ahead: deque[ActiveJob] = deque()
        self._queues = settings.queues
        self._prefetch = settings.prefetch or 0
        self._ended = 0
        self._refilling = False
        self._measured_at: float | None = None
        self._room_wakeup: asyncio.Future[None] | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._all_free = asyncio.Event()
        self._one_ended = asyncio.Event()
        self._fatal: BaseException | None = None
        self._claimer = Claimer(store)
        self._wakeup = self._claimer.wakeup(settings.tenant, settings.queues)
        self._post = inbox_at(store, self._deliver)
        self._acks = Acknowledger(store, self._settled, self._on_error("finish"))
        self._reporter = Reporter(store, self._lost, self._on_error("report"))
        self._runner = Runner(
            handlers, settings.concurrency, settings.codec, settings.blobs,
            self._ack, self._freed, self._reporter.add,
            completer=Joining(store, settings.codec, lambda: self._runner.running), unknown_ms=settings.unknown_ms,
            clients=Clients(store, settings.name, settings.codec, settings.blobs, self._loop), address=address,
        )  # fmt: skip
        self._joining: set[asyncio.Task[None]] = set()
        self._heartbeat = Heartbeat(
            store, self._held, settings.lease_ms, self._describe, self._lost, self._on_error("extend"),
            None if isinstance(store, SingleTenant) else self._lead,
        )  # fmt: skip
        self._deletions: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until `stop`, then finish or release what is held. Raises what makes work impossible."""
        maintenance = Maintenance(
            self._store,
            tenant=self._settings.tenant,
            blobs=self._settings.blobs,
            on_error=self._on_error("maintain"),
            leads=False,
        )
        self._heartbeat.start()
        _, acking, claiming = tasks = [
            asyncio.create_task(duty) for duty in (maintenance.run(), self._acks.run(), self._claim())
        ]
        for task in tasks:
            task.add_done_callback(self._on_end_of_duty)
        try:
            self._claimer.start()
            await self._stop.wait()
            leaving = asyncio.create_task(self._leave(claiming))
            tasks.append(leaving)
            await self._end_running()
            await self._end_calls(leaving, acking)
        finally:
            for task in tasks:
                task.cancel()
            for task in self._joining:
                task.cancel()
            await asyncio.wait([*tasks, *self._deletions, *self._joining])
            self._claimer.leave(self._wakeup, pass_on=False)
            self._claimer.close()
            await self._reporter.close()
            await self._runner.close()
            await self._heartbeat.stop()
            await self._callbacks.finish(END_S)
        if self._fatal is not None:
            raise self._fatal

    async def _lead(self, store: Store) -> None:
        """Take care of schedules and flows, in the heartbeat's thread and with its handle on the store."""
        on_error = partial(self._heartbeat.call_in_loop, self._on_error("maintain"))
        await Coordinator(store, self._settings.tenant, DUTIES, on_error=on_error).run()

    def _on_end_of_duty(self, task: asyncio.Task[None]) -> None:
        """A bug of ours must not leave a worker that only looks alive: stop it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal = error
            self.stop()

    def stop(self) -> None:
        """Stop claiming; finish what runs, or release after the grace what can be stopped. Twice is harmless."""
        if not self._stop.is_set():
            self._stop.set()
            self._wakeup.notify()
            self._notify_room()

    def hurry(self) -> None:
        """End at once: cancel what runs, try once to release what stops."""
        self._hurry.set()
        self.stop()

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether this task is one of our handlers."""
        return task is not None and any(held.task is task for held in self._runner.running)

    # Claiming --------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        pause = Pause()
        while not self._stop.is_set():
            if self._room() <= 0:
                self._room_wakeup = self._loop.create_future()
                await self._room_wakeup
                continue
            self._measure()
            room = min(CLAIM_LIMIT, self._room())
            if room <= 0:
                continue
            # Armed before the look: a hint that comes during it makes us look again. [CLAIM-3]
            self._wakeup.arm()
            sent = boot_time()
            try:
                # What is claimed ahead is not to be delivered: it would wait here while others are free.
                free = max(0, self._settings.concurrency - len(self._runner.running) - len(self._ahead))
                claimed = await self._post.claim(self._request(room), free)
                hit("worker.after_claim")
            except Exception as error:  # noqa: BLE001 - a worker outlives its store's troubles
                if self._is_fatal(error):
                    return
                self._on_error("claim")(error)
                await self._within(pause.next_s(), self._stop)
                continue
            pause.reset()
            self._take(claimed, sent)
            if len(claimed.jobs) < room and not self._stop.is_set():
                self._measured_at = None
                await self._wakeup.wait(pause_s(claimed))

    def _request(self, room: int) -> ClaimRequest:
        settings = self._settings
        self._queues = self._queues[1:] + self._queues[:1]
        chance = random.random()  # noqa: S311 - jitter, no secret
        return ClaimRequest(settings.tenant, self._queues, room, settings.lease_ms, settings.worker_id, chance)

    def _deliver(self, claimed: Claimed, sent: float) -> None:
        """Take jobs that were handed off to this worker, within the room that the last claim reported."""
        hit("worker.after_claim")
        self._take(claimed, sent)
        if self._post.needs_claim:
            self._wakeup.notify()

    def _take(self, claimed: Claimed, sent: float) -> None:
        if not claimed.jobs:
            return
        lease_s = self._settings.lease_ms / 1000
        until, renew_at = sent + lease_s, sent + lease_s / 3
        taken = [
            ActiveJob(job, JobKey(job.tenant, job.queue, job.id), job.token, until, renew_at) for job in claimed.jobs
        ]
        self._held.update(taken)
        self._ahead.extend(taken)
        if metrics.current is not None:
            metrics.current.held(len(taken))
            for job in claimed.jobs:
                metrics.current.claimed(job.queue, (claimed.now - job.visible_at) / 1000)
        self._heartbeat.kick(taken, sent)
        self._runner.tracing = tracing.active()
        if self._stop.is_set():
            self._release_ahead()
        else:
            self._start_next()

    def _start_next(self) -> None:
        ahead, running, limit = self._ahead, self._runner.running, self._settings.concurrency
        now = boot_time()
        while ahead and len(running) < limit:
            held = ahead.popleft()
            if held.until > now:
                self._runner.start(held)
            else:
                self._settled([held], [None])

    def _room(self) -> int:
        """How many jobs to claim. Claimed ahead is refilled when half of it is used up, not one by one."""
        if len(self._ahead) > self._prefetch // 2 or self._acks.backlog > ACK_BACKLOG:
            return 0
        return self._settings.concurrency + self._prefetch - len(self._runner.running) - len(self._ahead)

    def _measure(self) -> None:
        """Find how much to claim ahead from how fast jobs ended since the last claim, if there was no idling."""
        if self._settings.prefetch is not None:
            return
        now = time.monotonic()
        if self._measured_at is None:
            self._prefetch = 0
        elif now > self._measured_at:
            speed = self._ended / (now - self._measured_at)
            self._prefetch = min(self._settings.concurrency, int(speed * PREFETCH_S))
        self._ended = 0
        self._measured_at = now

    def _freed(self) -> None:
        self._ended += 1
        if not self._refilling:
            self._refilling = True
            self._loop.call_soon(self._refill)

    def _refill(self) -> None:
        """Once for all slots that became free in one turn of the event loop."""
        self._refilling = False
        self._one_ended.set()
        self._start_next()
        self._notify_room()
        if not self._runner.running:
            self._all_free.set()

    def _notify_room(self) -> None:
        wakeup, self._room_wakeup = self._room_wakeup, None
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(None)

    # What became of it -----------------------------------------------------------------------------------------

    def _ack(self, held: ActiveJob, finish: Finish) -> None:
        if not held.joined:
            self._acks.add(held, finish)
            return
        held.finish = finish
        task = asyncio.create_task(self._ack_joined(held, finish))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _ack_joined(self, held: ActiveJob, finish: Finish) -> None:
        """Acknowledge, unless the handler's own transaction has completed the job. [ENQ-7]"""
        pause = Pause()
        while held.until > boot_time():
            try:
                (job,) = await self._store.get([held.key])
            except Exception as error:  # noqa: BLE001 - a worker outlives its store's troubles
                self._on_error("get")(error)
                await asyncio.sleep(pause.next_s())
                continue
            if not is_completed(job, held.token):
                break
            if finish.result is not None and finish.result.blob:
                await self._delete(finish.result.blob)
            held.finish = Finish(held.key, held.token, "complete")
            self._settled([held], [Finished(JobState.COMPLETED)])
            return
        # Also when the lease has run out: the acknowledgement says so.
        self._acks.add(held, finish)

    def _settled(self, batch: list[ActiveJob], answers: list[FinishAnswer | None]) -> None:
        self._held.difference_update(batch)
        if self._callbacks.silent and metrics.current is None:
            for held, answer in zip(batch, answers, strict=True):
                if not isinstance(answer, Finished):
                    self._refused(held, answer)
        else:
            for held, answer in zip(batch, answers, strict=True):
                self._tell(held, answer)
        self._notify_room()

    def _tell(self, held: ActiveJob, answer: FinishAnswer | None) -> None:
        finish = held.finish
        if not isinstance(answer, Finished):
            self._refused(held, answer)
        elif (name := _EVENT_OF.get(answer.state)) is not None:
            self._callbacks.emit(name, held.job, finish.error if finish else None)
        if metrics.current is not None:
            metrics.current.held(-1)
            if finish is not None and held.started_at:
                metrics.current.finished(held.key.queue, finish.outcome, held.run_s)
            if finish is not None and finish.outcome == "release" and isinstance(answer, Finished):
                reason = finish.reason or ("shutdown" if finish.delay_ms is None else "retry_later")
                metrics.current.released(held.key.queue, reason)

    def _refused(self, held: ActiveJob, refusal: Refusal | None) -> None:
        """An outcome that came too late; None: so late that it was not sent. [LEASE-4]"""
        result = held.finish.result if held.finish else None
        if result is not None and result.blob and refusal is not None and self._settings.blobs is not None:
            # Not accepted for certain, so nothing refers to it.
            task = asyncio.create_task(self._delete(result.blob))
            self._deletions.add(task)
            task.add_done_callback(self._deletions.discard)
        if held.finish is None or held.finish.outcome != "release":
            self._callbacks.emit("canceled" if isinstance(refusal, JobCanceled) else "stalled", held.job, refusal)

    async def _delete(self, blob: str) -> None:
        with contextlib.suppress(Exception):
            if self._settings.blobs is not None:
                await self._settings.blobs.delete([blob])

    def _lost(self, held: ActiveJob, refusal: Refusal) -> None:
        """The lease is gone: notify the handler; its outcome no longer counts. [LEASE-4, CANCEL-2]"""
        if held.finish is not None or held.verdict not in ("", "released"):
            return  # Its acknowledgement is on the way and will get the answer.
        verdict = "canceled" if isinstance(refusal, JobCanceled) else "stalled"
        self._held.discard(held)
        if metrics.current is not None:
            metrics.current.held(-1)
        if held in self._runner.running:
            self._runner.notify(held, verdict)
        elif held in self._ahead:
            self._ahead.remove(held)
            held.verdict = verdict
        self._callbacks.emit(verdict, held.job, refusal)
        self._one_ended.set()
        self._notify_room()

    # The end ---------------------------------------------------------------------------------------------------

    async def _end_running(self) -> None:
        self._release_ahead()
        if not self._runner.running:
            return
        self._all_free.clear()
        _log.info(
            "stopping: running jobs may finish", running=len(self._runner.running), grace_s=self._settings.grace_s
        )
        await self._wait_for(lambda: self._runner.running, "waiting for running jobs", self._settings.grace_s)
        self._runner.notify_all("released")
        await self._within(END_S, self._all_free)
        # A handler that cannot be stopped still has its effects: its job stays leased to it, or two would run it.
        await self._wait_for(self._runner.unstoppable, "waiting for handlers that do not stop when asked")
        if self._hurry.is_set() and self._runner.running:
            # Told twice: children are killed now, tasks are canceled again.
            self._runner.notify_all("released")
            await asyncio.wait([asyncio.ensure_future(self._all_free.wait())], timeout=HURRY_S / 4)
        self._runner.abandon()
        if left := self._runner.unstoppable():
            _log.error(
                "ending while handlers run; their leases run out by themselves", running=len(left), jobs=_ids(left)
            )

    async def _wait_for(
        self, found: Callable[[], Collection[ActiveJob]], saying: str, seconds: float = math.inf
    ) -> None:
        """Wait until `found` is empty, at most `seconds`; return at once in a hurry."""
        end = time.monotonic() + seconds
        while (held := found()) and not self._hurry.is_set() and (left_s := end - time.monotonic()) > 0:
            if seconds == math.inf or left_s < seconds - 1:
                _log.warning(saying, running=len(held), jobs=_ids(held))
            say_at = time.monotonic() + min(SAY_EVERY_S, left_s)
            while found() and not self._hurry.is_set() and (wait_s := say_at - time.monotonic()) > 0:
                self._one_ended.clear()
                await self._within(wait_s, self._one_ended)

    def _release_ahead(self) -> None:
        while self._ahead:
            held = self._ahead.popleft()
            self._acks.add(held, outcome.release(held))

    async def _leave(self, claiming: asyncio.Task[None]) -> None:
        """A claim under way, or what is delivered, may still bring jobs: they go back like the others."""
        await self._within(DRAIN_S, claiming)
        await self._post.close()

    async def _end_calls(self, leaving: asyncio.Task[None], acking: asyncio.Task[None]) -> None:
        await self._within(DRAIN_S, leaving)
        if not leaving.done():
            # Also in a hurry: what is handed to us from now on would be lost until its lease is over.
            await asyncio.wait([leaving], timeout=HURRY_S)
        if self._joining:
            await asyncio.wait(self._joining, timeout=DRAIN_S)
        self._acks.close()
        await self._within(DRAIN_S, acking)
        if not acking.done():
            acking.cancel()
            await asyncio.wait([acking])
            with contextlib.suppress(Exception):
                async with asyncio.timeout(HURRY_S):
                    await self._acks.send_once()

    async def _within(self, seconds: float, what: asyncio.Event | asyncio.Task[None]) -> None:
        """Wait for `what`, at most `seconds`; return at once in a hurry."""
        waiting = asyncio.ensure_future(what.wait()) if isinstance(what, asyncio.Event) else what
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait([waiting, hurry], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            if waiting is not what:
                waiting.cancel()

    # Errors and facts ------------------------------------------------------------------------------------------

    def _is_fatal(self, error: Exception) -> bool:
        """Whether trying again is pointless: other data than ours, a feature that is not there."""
        if isinstance(error, AWAY) or not isinstance(error, HoldfastError):
            return False
        self._fatal = error
        self.stop()
        return True

    def _on_error(self, op: str) -> Callable[[BaseException], None]:
        def notify(error: BaseException) -> None:
            if metrics.current is not None:
                metrics.current.store_error(op)
            if isinstance(error, (HoldfastError, *AWAY)):
                _log.warning("the store did not answer", op=op, error=str(error))
            else:
                _log.error("a call of the store failed", op=op, error=repr(error))
            self._callbacks.emit("error", None, error)

        return notify

    def _describe(self) -> WorkerInfo:
        settings = self._settings
        return WorkerInfo(
            settings.worker_id, settings.tenant, socket.gethostname(), os.getpid(), settings.queues,
            settings.concurrency, len(self._held), types=settings.types,
        )  # fmt: skip


def _ids(held: Collection[ActiveJob]) -> str:
    """The first of some jobs, for the log."""
    names = sorted(f"{one.job.envelope.type}/{one.key.id}" for one in held)
    return ",".join(names[:SAID]) + (",..." if len(names) > SAID else "")
