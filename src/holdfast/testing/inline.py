"""A Queue for tests: a memory store, a clock that only the test moves, and jobs that run on demand."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from holdfast.blobs import Blobs
from holdfast.core.errors import JobFailed
from holdfast.core.job import (
    LEASE_MAX,
    TERMINAL,
    AttemptError,
    ClaimRequest,
    Finish,
    Finished,
    Job,
    JobKey,
    JobState,
    Progress,
    Report,
)
from holdfast.core.names import RESERVED
from holdfast.ids import new_id
from holdfast.jobs.definition import JobDefinition, Message, find
from holdfast.jobs.options import duration_ms, instant_ms
from holdfast.maintenance.handlers import SYSTEM_HANDLERS
from holdfast.maintenance.system_jobs import SystemContext
from holdfast.queue.queue import Queue
from holdfast.worker.active_job import ActiveJob
from holdfast.worker.answers import Answers
from holdfast.worker.callbacks import Callbacks
from holdfast.worker.clients import HandlerQueue, WorkerClients
from holdfast.worker.handlers import Handler, table
from holdfast.worker.runner import Runner
from holdfast.worker.state import RunState

DRAIN_LIMIT = 10_000
REAP_LIMIT = 1000
TICK_LIMIT = 1000


class Failure(Struct, frozen=True):
    """A failed run: its job, the job's state afterwards, and the handler's exception."""

    id: str
    queue: str
    type: str
    attempt: int
    state: JobState
    error: Exception
    """The handler's exception. JobFailed if it raised none, as when its result could not be stored."""

    def __str__(self) -> str:
        what = f"{self.type or 'a job without type'} {self.queue}/{self.id}"
        return f"{what}, attempt {self.attempt}, now {self.state.value}: {type(self.error).__name__}: {self.error}"


class Drained(int):
    """The number of runs in a drain, with the failed ones in `failures`."""

    failures: tuple[Failure, ...]

    def __new__(cls, runs: int, failures: Iterable[Failure] = ()) -> Self:
        made = super().__new__(cls, runs)
        made.failures = tuple(failures)
        return made

    def __repr__(self) -> str:
        said = "".join(f"\n  {failure}" for failure in self.failures)
        return f"<{int(self)} runs, {len(self.failures)} failed{':' if said else ''}{said}>"


class InlineQueue(Queue):
    """A Queue whose jobs run in `drain()`, one after another, with the worker's own code.

    The handler is that of the message that was enqueued here, else the `@job` function of that name in this process.
    `handler` gets the payloads without a job type.
    """

    def __init__(
        self,
        *,
        tenant: str,
        name: str = "default",
        blobs: str | Blobs | None = None,
        handler: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(f"memory:inline-{new_id()}?test_clock=frozen", tenant=tenant, name=name, blobs=blobs)
        self._handlers = table([], handler)
        self._reports: list[Report] = []
        self._producer.on_message = self._learn

    async def drain(self, *, raise_errors: bool = False) -> Drained:
        """Run every job that is claimable now, in claim order, and the jobs they enqueue. Returns the number of runs.

        The `failures` of the result are the failed runs. With `raise_errors` the first one ends the drain, which raises
        the handler's exception after the job's state has changed. Flows advance as far as they can, and due schedules
        fire. A failed job waits for its retry: `advance` the clock and drain again. Raises AssertionError if there
        is no end of jobs.
        """
        runs = 0
        failures: list[Failure] = []
        while job := await self._claim() or await self._coordinate():
            runs += 1
            assert runs <= DRAIN_LIMIT, f"drain() ran {DRAIN_LIMIT} jobs and more are waiting"
            finish, raised = await self._run(job)
            await self.store.report(self._reports)
            self._reports.clear()
            (answer,) = await self.store.finish([finish])
            if finish.error is not None and isinstance(answer, Finished):
                error = raised if isinstance(raised, Exception) else _job_failed(job, answer.state, finish.error)
                failures.append(Failure(job.id, job.queue, job.envelope.type, job.attempts, answer.state, error))
                if raise_errors:
                    raise error
        return Drained(runs, failures)

    async def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move the store's clock forward, end the leases that expire by then, and fire the schedules that become due.

        It stops at each tick on the way, up to 1,000 of them. Of the ticks after that, only the last one fires.
        """
        by = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        now = await self.store.now()
        end = now + duration_ms("advance", by)
        for tick in range(TICK_LIMIT):
            ticks = [instant_ms("next_at", schedule.next_at) for schedule in await self.schedules()]
            stop = min([end, *(at for at in ticks if at > now)]) if tick < TICK_LIMIT - 1 else end
            await self.store.shift_clock(stop - now)
            now = stop
            while len((await self.store.reap(REAP_LIMIT, 0.5)).jobs) == REAP_LIMIT:
                pass
            await self._take_care()
            if stop == end:
                return

    def _learn(self, message: Message[Any]) -> None:
        """Record the handler of the message."""
        if message.definition is not None:
            self._handlers[message.spec.type] = _inline(message.definition)

    async def _claim(self) -> Job | None:
        queues = tuple(stats.queue for stats in await self.queues() if not stats.queue.startswith(RESERVED))
        request = ClaimRequest(self.tenant, queues, 1, LEASE_MAX, "inline")
        claimed = await self.store.claim(request)
        return claimed.jobs[0] if claimed.jobs else None

    async def _coordinate(self) -> Job | None:
        """Serve schedules and flows, and claim the next job if that made one."""
        await self._take_care()
        return await self._claim()

    async def _take_care(self) -> None:
        """Do what a worker's coordinator does, once for each due schedule and flow, without waiting."""
        request = ClaimRequest(self.tenant, tuple(SYSTEM_HANDLERS), DRAIN_LIMIT, LEASE_MAX, "inline")
        for job in (await self.store.claim(request)).jobs:
            handler, context = SYSTEM_HANDLERS[job.queue], _InlineContext(self.store)
            finish = await handler.run(job, context)
            (answer,) = await self.store.finish([replace(finish, delay_ms=None) if context.waits else finish])
            if handler.clean_up is not None and isinstance(answer, Finished) and answer.state in TERMINAL:
                await handler.clean_up(job, context, answer.state)

    async def _run(self, job: Job) -> tuple[Finish, BaseException | None]:
        ended: asyncio.Future[tuple[Finish, BaseException | None]] = asyncio.get_running_loop().create_future()

        def acknowledge(active: ActiveJob, finish: Finish) -> None:
            ended.set_result((finish, active.error))

        def report(active: ActiveJob, progress: Progress) -> None:
            self._reports.append(Report(active.key, active.token, progress))

        known = find(job.envelope.type)
        handlers = ({known.name: _inline(known)} if known is not None else {}) | self._handlers
        clients = _InlineClients(self, self._learn)
        # There is no other worker: a job of an unknown type fails at once.
        state = RunState()
        runner = Runner(
            state, handlers, acknowledge, Answers(state, Callbacks(), None), report,
            concurrency=1, codec=self.codec, blobs=self.blobs, unknown_ms=0, clients=clients,
        )  # fmt: skip
        try:
            runner.add([ActiveJob(job, job.key, job.token, math.inf, math.inf)])
            return await ended
        finally:
            await runner.close()


class _Client(HandlerQueue):
    """A handler's Queue. Its jobs run in the same drain, even if only the message has the handler."""

    def __init__(self, inline: InlineQueue, learn: Callable[[Message[Any]], None]) -> None:
        super().__init__(
            store=inline.store, tenant=inline.tenant, name=inline.name, codec=inline.codec, blobs=inline.blobs
        )
        self._producer.on_message = learn


class _InlineClients(WorkerClients):
    def __init__(self, inline: InlineQueue, learn: Callable[[Message[Any]], None]) -> None:
        super().__init__(inline.store, inline.name, inline.codec, inline.blobs, asyncio.get_running_loop())
        self._inline, self._learn = inline, learn

    def _make(self, tenant: str) -> Queue:
        del tenant  # There is only one.
        return _Client(self._inline, self._learn)


class _InlineContext(SystemContext):
    """The context of a system handler, which never waits here: it releases its job."""

    waits = False

    async def changed(self, timeout_s: float) -> frozenset[JobKey] | None:
        self.waits = True
        return await super().changed(timeout_s)


def inline_queue(
    *,
    tenant: str,
    name: str = "default",
    blobs: str | Blobs | None = None,
    handler: Callable[[Any], Any] | None = None,
) -> InlineQueue:
    """Make a queue for one test. Enter it with `async with`."""
    return InlineQueue(tenant=tenant, name=name, blobs=blobs, handler=handler)


def _job_failed(job: Job, state: JobState, error: AttemptError) -> JobFailed:
    reason = "permanent" if state is JobState.FAILED else "retrying"
    return JobFailed(job.queue, job.id, reason, error.type, error.message)


def _inline(definition: JobDefinition[..., Any, Any]) -> Handler:
    """How to run a job here. A job with `executor="process"` runs in this process."""
    timeout_s = None if definition.timeout is None else definition.timeout.total_seconds()
    executor = "async" if definition.is_async else "thread"
    return Handler(definition.function, definition.load, executor, timeout_s, "")
