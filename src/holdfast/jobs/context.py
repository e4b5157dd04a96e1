"""`current_job()`: the job that a handler is running. It reports progress and can enqueue more jobs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from holdfast.blobs import BlobRef, Blobs, check_owner
from holdfast.core.errors import InvalidOption
from holdfast.core.flow import steps_before
from holdfast.core.job import FLOW_HEADER, Envelope, Job, JobState, Progress
from holdfast.core.times import EPOCH
from holdfast.jobs.fields import JobFields
from holdfast.jobs.options import EnqueueOptions
from holdfast.telemetry.logging import Logger, NullLogger, get_logger

if TYPE_CHECKING:
    import asyncio

    from holdfast.jobs.definition import Message
    from holdfast.queue.queue import Queue
    from holdfast.queue.ticket import Ticket

R = TypeVar("R")

PROGRESS_TEXT_LIMIT = 1024

_logger = get_logger("holdfast.job")
# One lock for all flags: it is held for an instant, and a lock for each job would cost more than it saves.
_flags = threading.Lock()


class CancelFlag:
    """Set when the running job was canceled. It works in async code and in threads. [CANCEL-2]

    `is_set()` reads it, `await flag` waits on the event loop, `flag.wait(timeout)` blocks a thread.
    """

    __slots__ = ("_event", "_set", "_waiters", "noticed")

    def __init__(self) -> None:
        self._set = False
        self.noticed = False
        """Whether the handler has seen it set. Its return value may then be incomplete."""
        self._event: threading.Event | None = None
        self._waiters: set[asyncio.Future[None]] | None = None  # Made when needed: every job has a flag.

    def is_set(self) -> bool:
        self.noticed = self.noticed or self._set
        return self._set

    def set(self) -> None:
        """Set the flag. It can be called from any thread, and more than once."""
        with _flags:
            self._set = True
            event, waiters = self._event, list(self._waiters or ())
        if event is not None:
            event.set()
        for waiter in waiters:
            loop = waiter.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the job is canceled or the time is over. Returns whether it was canceled."""
        with _flags:
            event = self._event = self._event or threading.Event()
        return self.is_set() or (event.wait(timeout) and self.is_set())

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._wait().__await__()
        self.noticed = True

    async def _wait(self) -> None:
        from asyncio import get_running_loop

        waiter: asyncio.Future[None] = get_running_loop().create_future()
        with _flags:
            if self._set:
                return
            waiters = self._waiters = self._waiters or set()
            waiters.add(waiter)
        try:
            await waiter
        finally:
            with _flags:
                waiters.discard(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Completer(Protocol):
    """The part of a worker that completes a job inside its handler's own transaction."""

    async def complete(self, context: JobContext, connection: Any, result: Any) -> None: ...
    def complete_sync(self, context: JobContext, connection: Any, result: Any) -> None: ...


class Clients(Protocol):
    """The part of a worker that gives a handler the Queue of its job's tenant."""

    def of(self, tenant: str) -> Any: ...


class JobContext(JobFields):
    """The job that a handler is running. The worker makes it; a handler gets it from `current_job()`."""

    __slots__ = ("_blobs", "_clients", "_completer", "_deadline_ms", "_log", "_on_progress", "canceled")

    canceled: CancelFlag
    """Set when the job was canceled, or when its handler must end for another reason. [CANCEL-2]"""

    def __init__(
        self,
        job: Job,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        blobs: Blobs | None = None,
        completer: Completer | None = None,
        clients: Clients | None = None,
    ) -> None:
        super().__init__(job)
        self._clients = clients
        self._completer = completer
        self._on_progress = on_progress
        self._blobs = blobs
        self._deadline_ms = job.deadline
        self._log: Logger | None = None
        self.canceled = CancelFlag()

    @property
    def cancelled(self) -> CancelFlag:
        """The same as `canceled`, spelt as asyncio spells it."""
        return self.canceled

    @property
    def attempt(self) -> int:
        """The number of this run, from 1. [RETRY-1]"""
        return self._job.attempts

    @property
    def fence(self) -> int:
        """Grows with every lease of the job. Pass it to systems that must reject an older run. [LEASE-5]"""
        return int(self._job.token)

    @property
    def deadline(self) -> datetime:
        """When the lease ends, by the store's clock. The worker extends it while the handler runs."""
        return EPOCH + timedelta(milliseconds=self._deadline_ms)

    @property
    def payload_version(self) -> int:
        return self._job.envelope.version

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that the producer set, such as its trace."""
        return self._job.envelope.headers or {}

    @property
    def flow(self) -> str | None:
        """The id of the flow if this job is a step of one, else None."""
        return self.headers.get(FLOW_HEADER)

    @property
    def log(self) -> Logger:
        """A logger that names the job in every line."""
        if self._log is None:
            job = self._job
            self._log = _logger.bind(
                tenant=job.tenant, queue=job.queue, job_id=job.id, type=job.envelope.type, attempt=job.attempts
            )
        return self._log

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how much of the job is done, from 0 to 1. Cheap; from any thread. The newest report wins.

        Raises InvalidOption for anything but a number from 0 to 1.
        """
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption("progress", f"{fraction!r} is not a number from 0 to 1")
        if self._on_progress is not None:
            text = message.replace("\x00", "").encode(errors="replace").decode()
            self._on_progress(Progress(float(fraction), text[:PROGRESS_TEXT_LIMIT]))

    @property
    def client(self) -> Queue:
        """The Queue of this job's tenant, on the store of the worker. The worker keeps it open: do not close it.

        In a plain `def` it is a `holdfast.blocking.Queue`, whose methods need no await; import `current_job` from
        `holdfast.blocking` to get the right types. Raises InvalidOption outside a worker.
        """
        if self._clients is None:
            reason = "the handler was called as a plain function, so there is no queue; run it with holdfast.testing"
            raise InvalidOption("client", f"{reason}.inline_queue or in a worker")
        return self._clients.of(self.tenant)

    def results(self) -> Awaitable[dict[str, Any]]:
        """In a flow: the results of the steps that this one waited for, by step name, in one read. Await it.

        In a plain `def` it needs no await, as with `client`. Empty for a step that waited for none. Raises
        InvalidOption for a job that is not a step of a flow, ResultExpired if a result is no longer kept.
        """
        if self.flow is None:
            raise InvalidOption("results", "this job is no step of a flow; read a job's result with client.result(id)")
        return self.client.results_of(steps_before(self.tenant, self.headers))

    @overload
    async def enqueue(
        self, message: Message[R], *, connection: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Ticket[R]: ...
    @overload
    async def enqueue(
        self, message: Any, *, connection: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Ticket[Any]: ...
    def enqueue(self, message: Any, *, connection: Any = None, **options: Unpack[EnqueueOptions]) -> Any:
        """Enqueue another job of this tenant: `client.enqueue`. In a plain `def` it needs no await.

        A handler may run again. To enqueue the other job once, give it an `id` or an `idempotency_key` that is made
        from this job's.
        """
        return self.client.enqueue(message, connection=connection, **options)

    async def complete_in(self, connection: Any, result: Any = None) -> None:
        """Complete this job with the commit of the transaction that is open on `connection`. [ENQ-7]

        Call it last before the commit. After a commit the job is completed with `result`, whatever the handler does
        or returns afterwards. After a rollback the handler's outcome counts, as usual. Raises LeaseLost, LeaseExpired
        or JobCanceled if this run may no longer complete the job: do not catch it, so that the transaction is rolled
        back. Raises Unsupported on a store that joins no transaction, InvalidOption for a connection it cannot join.
        """
        await self._joining().complete(self, connection, result)

    def complete_in_sync(self, connection: Any, result: Any = None) -> None:
        """The same for handlers that run in a thread, with their own, blocking connection."""
        self._joining().complete_sync(self, connection, result)

    def _joining(self) -> Completer:
        if self._completer is None:
            reason = "this handler runs where no transaction can be joined: with executor='process', or in inline_queue"
            raise InvalidOption("complete_in", reason)
        return self._completer

    async def read_blob(self, ref: BlobRef) -> bytes:
        """The bytes of a payload's blob. A blob of another tenant is refused. [TENANT-1]"""
        check_owner(ref, self.tenant)
        if self._blobs is None:
            raise InvalidOption("blobs", "this worker's queue has no blob store; open it with blobs=URL")
        return await self._blobs.read(ref)

    def read_blob_sync(self, ref: BlobRef) -> bytes:
        """The same for handlers that run in a thread."""
        check_owner(ref, self.tenant)
        if self._blobs is None:
            raise InvalidOption("blobs", "this worker's queue has no blob store; open it with blobs=URL")
        return self._blobs.read_sync(ref)

    def renewed(self, deadline_ms: int) -> None:
        """Called by the worker: the lease now holds until then."""
        self._deadline_ms = deadline_ms


class _StandIn(JobContext):
    """What `current_job()` returns in a handler that is called as a plain function."""

    __slots__ = ()

    @property
    def log(self) -> Logger:
        return NullLogger()

    async def complete_in(self, connection: Any, result: Any = None) -> None:
        """There is nothing to complete."""

    def complete_in_sync(self, connection: Any, result: Any = None) -> None:
        """There is nothing to complete."""


_current: ContextVar[JobContext] = ContextVar("holdfast_job")
_NO_JOB = Job("", "", "", 0, Envelope("", b""), JobState.LEASED, 0, 0, attempts=1)


def current_job() -> JobContext:
    """The job that is running. Outside a worker, a stand-in whose progress and log do nothing."""
    running = _current.get(None)
    return running if running is not None else _StandIn(_NO_JOB)


def activate(context: JobContext) -> None:
    """Make `context` the current job of this task or thread, which ends together with the job."""
    _current.set(context)


@contextmanager
def active(context: JobContext) -> Generator[None]:
    """Make `context` the current job inside the `with` block."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
