"""Runs the handlers of leased jobs, each in a slot: on the event loop, in a thread or in a child process.

The middle of a job's life in a worker: `add` puts it into a free slot, one of the three `_run` methods calls its
handler, `_end` makes an outcome of the ending, passes it to the acknowledger and frees the slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.clock import boot_time
from holdfast.core.errors import UnknownJobType
from holdfast.core.failpoint import hit
from holdfast.core.job import HOUR, RESULT_LIMIT, Finish, Progress, Result
from holdfast.jobs import codec as codecs
from holdfast.jobs.context import JobContext, activate
from holdfast.telemetry import metrics, tracing
from holdfast.telemetry.logging import SeldomLogger
from holdfast.telemetry.tracing import job_span
from holdfast.worker import outcome
from holdfast.worker.messages import Raised
from holdfast.worker.processes import Processes
from holdfast.worker.results import store_large_result
from holdfast.worker.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.blobs import Blobs
    from holdfast.jobs.context import Clients, Completer
    from holdfast.queue.connection import Address
    from holdfast.worker.active_job import ActiveJob
    from holdfast.worker.answers import Answers
    from holdfast.worker.handlers import Handler
    from holdfast.worker.state import RunState

TIMEOUT_GRACE_S = 5.0
"""How long a handler that timed out may take to stop, before its job is acknowledged without it."""
UNKNOWN_MS = 24 * HOUR
"""A job whose type no worker has known for this long fails. [RETRY-6]"""

_seldom = SeldomLogger(__name__, every_s=60.0)


class Runner:
    """Runs up to `concurrency` jobs at once. Made inside the event loop it belongs to.

    `acknowledge(active, finish)` gets the outcome of each job, at most once; `report(active, progress)` gets a
    handler's progress.
    """

    def __init__(
        self,
        state: RunState,
        handlers: dict[str, Handler],
        acknowledge: Callable[[ActiveJob, Finish], None],
        answers: Answers,
        report: Callable[[ActiveJob, Progress], None],
        *,
        concurrency: int,
        codec: str,
        blobs: Blobs | None,
        completer: Completer | None = None,
        unknown_ms: int = UNKNOWN_MS,
        clients: Clients | None = None,
        address: Address | None = None,
    ) -> None:
        self._state = state
        self._handlers = handlers
        self._concurrency = concurrency
        self._codec = codec
        self._blobs = blobs
        self._acknowledge = acknowledge
        self._answers = answers
        self._report = report
        self._completer = completer
        self._unknown_ms = unknown_ms
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        # Each job starts from this context, not from that of the job that ended before it.
        self._context = contextvars.copy_context()
        self._threads = Threads(concurrency)
        self._processes = Processes(address)
        self._none = codecs.encode(None, codec)
        self._refilling = False
        self.tracing = tracing.active()
        """Whether jobs that start from now on get a span."""

    # Slots -----------------------------------------------------------------------------------------------------

    def add(self, jobs: Iterable[ActiveJob]) -> None:
        """Start these jobs when slots are free. If the run is stopping, release them."""
        self._state.prefetched.extend(jobs)
        if self._state.stopping:
            self.release_prefetched()
        else:
            self._fill_slots()

    def release_prefetched(self) -> None:
        """Release the jobs that wait for a slot. [RETRY-5]"""
        prefetched = self._state.prefetched
        while prefetched:
            active = prefetched.popleft()
            self._acknowledge(active, outcome.release(active))

    def _fill_slots(self) -> None:
        prefetched, running = self._state.prefetched, self._state.running
        now = boot_time()
        while prefetched and len(running) < self._concurrency:
            active = prefetched.popleft()
            if active.until > now:
                self._start(active)
            else:
                # The heartbeat may report the same lease as lost: this reason makes it skip the job.
                active.interruption = "stalled"
                self._answers.answered([active], [None])

    def _free_slot(self, active: ActiveJob) -> None:
        # Each of these refers to the active job (an error by its traceback): break the cycles, which cost collections.
        active.context = active.task = active.error = None
        self._state.running.discard(active)
        self._state.ended += 1
        if not self._refilling:
            self._refilling = True
            self._loop.call_soon(self._refill_slots)

    def _refill_slots(self) -> None:
        """Runs once for all slots that became free in one turn of the event loop."""
        self._refilling = False
        self._fill_slots()
        self._state.changed.set()

    # Starting --------------------------------------------------------------------------------------------------

    def _start(self, active: ActiveJob) -> None:
        envelope = active.job.envelope
        handler = self._handlers.get(envelope.type)
        if handler is None:
            self._acknowledge(active, self._finish(active, outcome.unreadable(UnknownJobType(envelope.type))))
            return
        self._state.running.add(active)
        active.context = JobContext(
            active.job, on_progress=partial(self._report, active), blobs=self._blobs, completer=self._completer,
            clients=self._clients,
        )  # fmt: skip
        timeout_s = handler.timeout_s if envelope.timeout_ms is None else envelope.timeout_ms / 1000
        if timeout_s is not None:
            active.timeout_s = timeout_s
            active.timer = self._loop.call_later(timeout_s, self._time_out, active, handler)
            active.give_up_at = boot_time() + timeout_s + TIMEOUT_GRACE_S
        if handler.executor == "async":
            run = self._run_async(active, active.context, handler)
            active.task = self._loop.create_task(run, context=self._context.copy())
        elif handler.executor == "thread":
            call = partial(self._run_in_thread, active, active.context, handler)
            self._threads.submit(partial(self._context.copy().run, call))
        else:
            run = self._run_in_process(active, handler)
            active.task = self._loop.create_task(run, context=self._context.copy())

    def _time_out(self, active: ActiveJob, handler: Handler) -> None:
        if active.interruption:
            return
        active.interrupt("timeout")
        if handler.executor == "thread":
            # A thread cannot be stopped from outside: the job runs again elsewhere, and the slot stays occupied.
            self._acknowledge_interruption(active)
        else:
            active.timer = self._loop.call_later(TIMEOUT_GRACE_S, self._acknowledge_interruption, active)

    # The three executors ---------------------------------------------------------------------------------------

    async def _run_async(self, active: ActiveJob, context: JobContext, handler: Handler) -> None:
        active.started_at = time.monotonic()
        if active.interruption:
            return self._end(active, None)
        # The task has its own contextvars context, so nothing needs to be reset.
        activate(context)
        try:
            hit("worker.before_run")
            args, kwargs = handler.load(active.job.envelope)
        except Exception as error:  # noqa: BLE001 - any error means that the payload cannot be read here
            active.error = error
            return self._end(active, outcome.unreadable(error))
        try:
            if self.tracing:
                with job_span(active.job):
                    value = await handler.function(*args, **kwargs)
            else:
                value = await handler.function(*args, **kwargs)
            hit("worker.after_effect")
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler's SystemExit must not end the worker
            active.error = error
            return self._end(active, outcome.raised(error))
        return self._end(active, self._encode(value))

    def _run_in_thread(self, active: ActiveJob, context: JobContext, handler: Handler) -> None:
        active.started_at = time.monotonic()
        ending = None if active.interruption else self._call(active, context, handler)
        # The loop is closed if the worker has ended before this handler.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, active, ending)

    def _call(self, active: ActiveJob, context: JobContext, handler: Handler) -> bytes | Raised:
        activate(context)
        try:
            hit("worker.before_run")
            args, kwargs = handler.load(active.job.envelope)
        except Exception as error:  # noqa: BLE001 - any error means that the payload cannot be read here
            active.error = error
            return outcome.unreadable(error)
        try:
            with job_span(active.job):
                value = handler.function(*args, **kwargs)
            hit("worker.after_effect")
        except BaseException as error:  # noqa: BLE001 - SystemExit is a failed attempt
            active.error = error
            return outcome.raised(error)
        return self._encode(value)

    async def _run_in_process(self, active: ActiveJob, handler: Handler) -> None:
        active.started_at = time.monotonic()
        if active.interruption:
            return self._end(active, None)
        try:
            hit("worker.before_run")
            with job_span(active.job):
                on_progress = partial(self._report, active)
                ending = await self._processes.run(active.job, handler.reference, self._codec, on_progress)
            hit("worker.after_effect")
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the child did not start, or was killed
            ending = outcome.raised(error)
        return self._end(active, ending)

    def _encode(self, value: Any) -> bytes | Raised:
        if value is None:
            return self._none
        try:
            return codecs.encode(value, self._codec)
        except Exception as error:  # noqa: BLE001 - any error of a codec means that the result cannot be stored
            return outcome.unstorable(error)

    # Ending ----------------------------------------------------------------------------------------------------

    def _end(self, active: ActiveJob, ending: bytes | Raised | None) -> None:
        """Acknowledge the outcome of a handler that has ended, and free its slot. None: it was never called."""
        if active.timer is not None:
            active.timer.cancel()
            active.give_up_at = math.inf
        if metrics.current is not None:
            active.run_s = time.monotonic() - active.started_at
        if ending is None or (active.interruption and not outcome.counts(active, ending)):
            self._acknowledge_interruption(active)
        elif isinstance(ending, Raised):
            self._acknowledge(active, self._finish(active, ending))
        elif len(ending) <= RESULT_LIMIT:
            self._acknowledge(active, Finish(active.key, active.token, "complete", Result(ending, self._codec)))
        else:
            # The slot stays occupied: the large result is in memory until it is stored.
            active.task = self._loop.create_task(self._store_and_end(active, ending))
            return
        self._free_slot(active)

    async def _store_and_end(self, active: ActiveJob, data: bytes) -> None:
        try:
            finish = await store_large_result(self._blobs, active, data, self._codec)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the blob store is away, or the worker ends
            finish = outcome.finish(active, outcome.raised(error))
        if active.interruption and active.interruption != "released":
            self._acknowledge_interruption(active)
        elif active.finish is None:
            self._acknowledge(active, finish)
        self._free_slot(active)

    def _finish(self, active: ActiveJob, ending: Raised) -> Finish:
        if not ending.reason:
            return outcome.finish(active, ending)
        finish = outcome.for_another(active, ending, self._unknown_ms)
        if finish.outcome == "release" and ending.error is not None:
            envelope = active.job.envelope
            _seldom.warning(
                (ending.reason, envelope.type), "a job is left to another worker",
                reason=ending.reason, type=envelope.type, queue=active.key.queue, id=active.key.id,
                error=ending.error.message,
            )  # fmt: skip
        return finish

    def _acknowledge_interruption(self, active: ActiveJob) -> None:
        """Acknowledge an interrupted job, unless that is done or its lease is gone (canceled, stalled)."""
        if active.finish is None and active.interruption == "released":
            self._acknowledge(active, outcome.release(active))
        elif active.finish is None and active.interruption == "timeout":
            self._acknowledge(active, outcome.timed_out(active))

    # Stopping --------------------------------------------------------------------------------------------------

    def interrupt_all(self) -> None:
        """Ask every running handler to stop, and release its job. A handler interrupted earlier keeps its reason."""
        for active in tuple(self._state.running):
            active.interrupt(active.interruption or "released")

    def unstoppable(self) -> list[ActiveJob]:
        """The jobs that are to be released, but whose handlers still run after being asked to stop: usually threads."""
        return [active for active in self._state.running if active.interruption == "released" and active.finish is None]

    def abandon_timed_out(self) -> None:
        """Acknowledge attempts that timed out and have not ended."""
        for active in tuple(self._state.running):
            if active.interruption == "timeout":
                self._acknowledge_interruption(active)

    async def close(self) -> None:
        """End the threads and child processes. Threads that ignore the request continue to run."""
        await self._processes.close()
        self._threads.close(0.0 if self._state.running else 5.0)
