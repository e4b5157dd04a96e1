"""Runs handlers, on the event loop, in a thread or in a child process, and reports how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.blobs import Blobs, result_name
from holdfast.clock import boot_time
from holdfast.core.errors import ResultTooLarge, UnknownJobType
from holdfast.core.failpoint import hit
from holdfast.core.job import HOUR, RESULT_LIMIT, Finish, Progress, Result
from holdfast.jobs import codec as codecs
from holdfast.jobs.context import JobContext, activate
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.telemetry import metrics
from holdfast.telemetry.logging import SeldomLogger
from holdfast.telemetry.tracing import active, job_span
from holdfast.worker import outcome
from holdfast.worker.messages import Raised
from holdfast.worker.processes import Processes
from holdfast.worker.threads import Threads

if TYPE_CHECKING:
    from holdfast.jobs.context import Clients, Completer
    from holdfast.queue.connection import Address
    from holdfast.worker.active_job import ActiveJob, Verdict
    from holdfast.worker.handlers import Handler

TIMEOUT_GRACE_S = 5.0
BLOB_TRIES = 5
UNKNOWN_MS = 24 * HOUR
"""A job whose type no worker has known for this long fails. [RETRY-6]"""

_seldom = SeldomLogger(__name__, every_s=60.0)


class Runner:
    """Runs held jobs. Made inside the event loop it belongs to.

    `on_ack(held, finish)` gets the outcome to acknowledge, at most once for each job. `on_free()` says that a slot is
    free again, which can be later.
    """

    def __init__(
        self,
        handlers: dict[str, Handler],
        concurrency: int,
        codec: str,
        blobs: Blobs | None,
        on_ack: Callable[[ActiveJob, Finish], None],
        on_free: Callable[[], None],
        on_progress: Callable[[ActiveJob, Progress], None],
        *,
        completer: Completer | None = None,
        unknown_ms: int = UNKNOWN_MS,
        clients: Clients | None = None,
        address: Address | None = None,
    ) -> None:
        self._handlers = handlers
        self._codec = codec
        self._blobs = blobs
        self._on_ack = on_ack
        self._on_free = on_free
        self._on_progress = on_progress
        self._completer = completer
        self._unknown_ms = unknown_ms
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        # Each job starts from this, not from the context of the job whose end made room for it.
        self._context = contextvars.copy_context()
        self._threads = Threads(concurrency)
        self._processes = Processes(address)
        self._nothing = codecs.encode(None, codec)
        self.running: set[ActiveJob] = set()
        self.tracing = active()
        """Whether jobs that start from now on get a span."""

    def start(self, held: ActiveJob) -> None:
        """Start the handler. Its slot is taken until `on_free`."""
        envelope = held.job.envelope
        handler = self._handlers.get(envelope.type)
        if handler is None:
            self._on_ack(held, self._finish(held, outcome.unreadable(UnknownJobType(envelope.type))))
            return
        self.running.add(held)
        on_progress = partial(self._on_progress, held)
        held.context = JobContext(
            held.job, on_progress=on_progress, blobs=self._blobs, completer=self._completer, clients=self._clients
        )
        timeout_s = handler.timeout_s if envelope.timeout_ms is None else envelope.timeout_ms / 1000
        if timeout_s is not None:
            held.timeout_s = timeout_s
            held.timer = self._loop.call_later(timeout_s, self._time_out, held, handler)
            held.give_up_at = boot_time() + timeout_s + TIMEOUT_GRACE_S
        if handler.executor == "async":
            run = self._run_async(held, held.context, handler)
            held.task = self._loop.create_task(run, context=self._context.copy())
        elif handler.executor == "thread":
            call = partial(self._run_in_thread, held, held.context, handler)
            self._threads.submit(partial(self._context.copy().run, call))
        else:
            run = self._run_in_process(held, handler)
            held.task = self._loop.create_task(run, context=self._context.copy())

    def notify(self, held: ActiveJob, verdict: Verdict) -> None:
        """Notify a running handler that its outcome no longer counts, and ask it to stop. [CANCEL-2]"""
        held.verdict = verdict
        if held.context is not None:
            held.context.canceled.set()
        # A task that is canceled before its first step never runs, not even the lines that free its slot.
        if held.started_at and held.task is not None:
            held.task.cancel()

    def notify_all(self, verdict: Verdict) -> None:
        """Notify every running handler; one that already has a verdict keeps it and is only asked to stop."""
        for held in tuple(self.running):
            self.notify(held, held.verdict or verdict)

    def unstoppable(self) -> list[ActiveJob]:
        """The jobs whose handlers were asked to give them back and still run: usually threads."""
        return [held for held in self.running if held.verdict == "released" and held.finish is None]

    def abandon(self) -> None:
        """Acknowledge attempts that timed out and whose handlers have not ended."""
        for held in tuple(self.running):
            if held.verdict == "timeout":
                self._acknowledge_verdict(held)

    async def close(self) -> None:
        """End the threads and children. Only threads that ignore the request still run."""
        await self._processes.close()
        self._threads.close(0.0 if self.running else 5.0)

    # The three ways to run -----------------------------------------------------------------------------------

    async def _run_async(self, held: ActiveJob, context: JobContext, handler: Handler) -> None:
        held.started_at = time.monotonic()
        if held.verdict:
            return self._end(held, None)
        # The task has a context of its own: nothing is to be put back afterwards.
        activate(context)
        try:
            hit("worker.before_run")
            args, kwargs = handler.load(held.job.envelope)
        except Exception as error:  # noqa: BLE001 - whatever it is, the payload cannot be read here
            held.error = error
            return self._end(held, outcome.unreadable(error))
        try:
            if self.tracing:
                with job_span(held.job):
                    value = await handler.function(*args, **kwargs)
            else:
                value = await handler.function(*args, **kwargs)
            hit("worker.after_effect")
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit of a handler must not end the worker
            held.error = error
            return self._end(held, outcome.raised(error))
        return self._end(held, self._encode(value))

    def _run_in_thread(self, held: ActiveJob, context: JobContext, handler: Handler) -> None:
        held.started_at = time.monotonic()
        ending = None if held.verdict else self._call(held, context, handler)
        # The loop is closed if the worker has ended while this handler would not listen.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, held, ending)

    def _call(self, held: ActiveJob, context: JobContext, handler: Handler) -> bytes | Raised:
        activate(context)
        try:
            hit("worker.before_run")
            args, kwargs = handler.load(held.job.envelope)
        except Exception as error:  # noqa: BLE001 - whatever it is, the payload cannot be read here
            held.error = error
            return outcome.unreadable(error)
        try:
            with job_span(held.job):
                value = handler.function(*args, **kwargs)
            hit("worker.after_effect")
        except BaseException as error:  # noqa: BLE001 - SystemExit is just a failed attempt
            held.error = error
            return outcome.raised(error)
        return self._encode(value)

    async def _run_in_process(self, held: ActiveJob, handler: Handler) -> None:
        held.started_at = time.monotonic()
        if held.verdict:
            return self._end(held, None)
        try:
            hit("worker.before_run")
            with job_span(held.job):
                on_progress = partial(self._on_progress, held)
                ending = await self._processes.run(held.job, handler.reference, self._codec, on_progress)
            hit("worker.after_effect")
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - no child could be started, or it was ended
            ending = outcome.raised(error)
        return self._end(held, ending)

    def _encode(self, value: Any) -> bytes | Raised:
        if value is None:
            return self._nothing
        try:
            return codecs.encode(value, self._codec)
        except Exception as error:  # noqa: BLE001 - whatever a codec raises, the result cannot be kept
            return outcome.unkeepable(error)

    # The end ---------------------------------------------------------------------------------------------------

    def _end(self, held: ActiveJob, ending: bytes | Raised | None) -> None:
        if held.timer is not None:
            held.timer.cancel()
            held.give_up_at = math.inf
        if metrics.current is not None:
            held.run_s = time.monotonic() - held.started_at
        if ending is None or (held.verdict and not _came_to_its_end(held, ending)):
            self._acknowledge_verdict(held)
        elif isinstance(ending, Raised):
            self._on_ack(held, self._finish(held, ending))
        elif len(ending) <= RESULT_LIMIT:
            self._on_ack(held, Finish(held.key, held.token, "complete", Result(ending, self._codec)))
        else:
            # The slot stays taken: what is to be kept elsewhere is in memory here until then.
            held.task = self._loop.create_task(self._keep_large(held, ending))
            return
        self._free(held)

    def _finish(self, held: ActiveJob, ending: Raised) -> Finish:
        if not ending.reason:
            return outcome.finish(held, ending)
        finish = outcome.for_another(held, ending, self._unknown_ms)
        if finish.outcome == "release" and ending.error is not None:
            envelope = held.job.envelope
            _seldom.warning(
                (ending.reason, envelope.type), "a job is left to another worker",
                reason=ending.reason, type=envelope.type, queue=held.key.queue, id=held.key.id,
                error=ending.error.message,
            )  # fmt: skip
        return finish

    def _free(self, held: ActiveJob) -> None:
        # All know the held job, an error by its traceback: as cycles they would keep the garbage collector busy.
        held.context = held.task = held.error = None
        self.running.discard(held)
        self._on_free()

    def _acknowledge_verdict(self, held: ActiveJob) -> None:
        if held.finish is None and held.verdict == "released":
            self._on_ack(held, outcome.release(held))
        elif held.finish is None and held.verdict == "timeout":
            self._on_ack(held, outcome.timed_out(held))

    def _time_out(self, held: ActiveJob, handler: Handler) -> None:
        if held.verdict:
            return
        self.notify(held, "timeout")
        if handler.executor == "thread":
            # Nothing ends a thread from outside: the job goes on elsewhere, the slot stays taken.
            self._acknowledge_verdict(held)
        else:
            held.timer = self._loop.call_later(TIMEOUT_GRACE_S, self._acknowledge_verdict, held)

    async def _keep_large(self, held: ActiveJob, data: bytes) -> None:
        """Keep a large result as a blob; without a place for it the job fails. [RESULT-1]"""
        try:
            finish = await self._put(held, data)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the blob store is away, or the worker ends
            finish = outcome.finish(held, outcome.raised(error))
        if held.verdict and held.verdict != "released":
            self._acknowledge_verdict(held)
        elif held.finish is None:
            self._on_ack(held, finish)
        self._free(held)

    async def _put(self, held: ActiveJob, data: bytes) -> Finish:
        if self._blobs is None:
            error = outcome.describe(ResultTooLarge(len(data), RESULT_LIMIT))
            return outcome.finish(held, Raised("fail", error))
        name = result_name(held.key, held.token)
        pause = Pause()
        for tries_left in reversed(range(BLOB_TRIES)):
            try:
                await self._blobs.put(name, data)
                break
            except AWAY:
                if not tries_left:
                    raise
                await asyncio.sleep(pause.next_s())
        return Finish(held.key, held.token, "complete", Result(b"", self._codec, name))


def _came_to_its_end(held: ActiveJob, ending: bytes | Raised) -> bool:
    """Whether a handler that was asked to give its job back has finished it instead, while its lease is still good.

    One that was interrupted, or that saw that it should stop and returned, is given back: its work may be half done.
    One that never looked is done, and is not run again.
    """
    if held.verdict != "released" or held.finish is not None:
        return False
    if isinstance(ending, bytes):
        return held.context is not None and not held.context.canceled.noticed
    return ending.outcome == "fail"
