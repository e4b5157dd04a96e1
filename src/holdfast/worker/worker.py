"""Worker: claims jobs from a store and runs them."""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from typing import Any, Self, TypedDict, Unpack
from weakref import WeakSet

from holdfast.blobs import Blobs
from holdfast.core.errors import InvalidOption
from holdfast.core.lease import check_lease_ms
from holdfast.core.names import check_id
from holdfast.core.policy import TypeInfo
from holdfast.jobs import codec as codecs
from holdfast.jobs.definition import JobDefinition
from holdfast.jobs.options import Seconds, check_own_queue, duration_ms
from holdfast.opening import make_store
from holdfast.queue.connection import Address
from holdfast.queue.queue import Queue
from holdfast.store import Store
from holdfast.worker.callbacks import Callback, Callbacks, EventName
from holdfast.worker.handlers import Handler, table
from holdfast.worker.health import WorkerHealth
from holdfast.worker.loop import Loop
from holdfast.worker.runner import UNKNOWN_MS
from holdfast.worker.settings import Settings
from holdfast.worker.signals import on_signal

CONCURRENCY = range(1, 10_001)
LEASE = timedelta(seconds=30)
GRACE = timedelta(seconds=20)
FAIL_UNKNOWN_AFTER = timedelta(milliseconds=UNKNOWN_MS)


Lifespan = Callable[["Worker"], AbstractAsyncContextManager[object]]
"""The context of a worker: entered before the first claim, left after the last job."""


class WorkerOptions(TypedDict, total=False):
    """The options of every worker; see `Worker`."""

    handler: Callable[[Any], Any] | None
    queues: Iterable[str] | None
    concurrency: int
    worker_id: str | None
    prefetch: int | None
    lease: Seconds
    shutdown_grace: Seconds
    fail_unknown_after: Seconds
    lifespan: Lifespan | None


def check_lifespan(lifespan: Lifespan) -> Lifespan:
    """Return `lifespan` if it can be called with a worker. Raises InvalidOption."""
    if not callable(lifespan):
        raise InvalidOption("lifespan", f"{lifespan!r} is not a function; put @asynccontextmanager on one")
    try:
        inspect.signature(lifespan).bind(None)
    except TypeError:
        name = getattr(lifespan, "__name__", "lifespan")
        raise InvalidOption("lifespan", f"it is called with the worker: write `async def {name}(worker)`") from None
    except ValueError:
        pass  # A builtin, whose signature cannot be read.
    return lifespan


class _Asked:
    """A call of `run` that has not begun."""

    stopped = False


class AllTenants:
    """A store for all tenants, used instead of a Queue by an operator's workers."""

    tenant = None

    def __init__(self, store: str | Store, name: str, codec: str, blobs: str | Blobs | None) -> None:
        self.name = check_own_queue(name)
        self.codec = codecs.get(codec).name
        self.blobs = Blobs.open(blobs) if isinstance(blobs, str) else blobs
        self._url = store if isinstance(store, str) else None
        self.store = make_store(store) if isinstance(store, str) else store

    def address(self) -> Address | None:
        """How another process opens the store; see `Queue.address`."""
        found = self._url if self.store.capabilities.many_processes else None
        return None if found is None else Address(found, None, self.name, self.codec)

    async def open(self) -> None:
        """Connect, if the store was given by its URL."""
        if self._url is not None:
            self.store = make_store(self._url)
            await self.store.open()

    async def close(self) -> None:
        """Close what `open` made."""
        if self._url is not None:
            await self.store.close()


class Worker:
    """Runs the jobs of some queues, up to `concurrency` at once.

        worker = Worker(queue, jobs=[send_email])
        await worker.run()

    Without `queues` it serves those of its jobs, plus the Queue's own if there is a catch-all `handler`, which gets
    the payload of jobs without a type. `prefetch` is the number of jobs claimed beyond the free slots; by default as
    many as run in a quarter of a second, up to `concurrency`. `lease` is how long a job stays leased if the worker
    dies; `shutdown_grace` is how long running handlers may continue after a signal. A job whose type or payload version
    is unknown here is left to other workers; it fails if none knows it for `fail_unknown_after`. [RETRY-6]
    `lifespan(worker)` returns an async context manager, entered before the first claim and left after the last job.
    An exception from it ends `run`. Raises InvalidOption.
    """

    def __init__(
        self,
        queue: Queue | AllTenants,
        jobs: Iterable[JobDefinition[..., Any, Any]] = (),
        *,
        handler: Callable[[Any], Any] | None = None,
        queues: Iterable[str] | None = None,
        concurrency: int = 10,
        worker_id: str | None = None,
        prefetch: int | None = None,
        lease: Seconds = LEASE,
        shutdown_grace: Seconds = GRACE,
        fail_unknown_after: Seconds = FAIL_UNKNOWN_AFTER,
        lifespan: Lifespan | None = None,
    ) -> None:
        if not isinstance(queue, (Queue, AllTenants)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                "queue", f"{queue!r} is not a holdfast.Queue; for all tenants use Worker.for_all_tenants"
            )
        if isinstance(jobs, JobDefinition):
            raise InvalidOption("jobs", f"{jobs!r} is one job; write jobs=[{jobs.name}]")
        jobs = list(jobs)
        self._source = queue
        self._handlers: dict[str, Handler] = table(jobs, handler)
        self._callbacks = Callbacks()
        self._health = WorkerHealth()
        self._lifespan = None if lifespan is None else check_lifespan(lifespan)
        if type(concurrency) is not int or concurrency not in CONCURRENCY:
            raise InvalidOption("concurrency", f"{concurrency!r} is not a whole number from 1 to 10000")
        if prefetch is not None and (type(prefetch) is not int or prefetch not in range(10_001)):
            raise InvalidOption("prefetch", f"{prefetch!r} is not a whole number from 0 to 10000")
        self.settings = Settings(
            tenant=queue.tenant,
            queues=_queues(queue, jobs, handler, queues),
            worker_id=check_id(worker_id, "worker id")
            if worker_id
            else f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
            concurrency=concurrency,
            prefetch=prefetch,
            lease_ms=check_lease_ms(duration_ms("lease", lease)),
            grace_s=duration_ms("shutdown_grace", shutdown_grace) / 1000,
            codec=queue.codec,
            blobs=queue.blobs,
            unknown_ms=duration_ms("fail_unknown_after", fail_unknown_after),
            types=_types(queue, jobs, handler),
            name=queue.name,
        )
        self._loop: Loop | None = None
        self._done: asyncio.Event | None = None
        self._stop_asked = False
        self._asked: WeakSet[_Asked] = WeakSet()

    @classmethod
    def for_all_tenants(
        cls,
        store: str | Store,
        jobs: Iterable[JobDefinition[..., Any, Any]] = (),
        *,
        name: str = "default",
        codec: str = "json",
        blobs: str | Blobs | None = None,
        **options: Unpack[WorkerOptions],
    ) -> Self:
        """A worker that serves every tenant in fair turns. It is for operators: it sees all payloads. [TENANT-4]

        `run` opens and closes a store given as a URL. `name` is the queue for jobs that name none.
        """
        return cls(AllTenants(store, name, codec, blobs), jobs, **options)

    @property
    def id(self) -> str:
        """The name under which the store knows this worker."""
        return self.settings.worker_id

    @property
    def health(self) -> WorkerHealth:
        """Whether it lives and is ready, for probes: `why_not_live()`, `why_not_ready()`, in any thread."""
        return self._health

    def on(self, event: EventName, callback: Callback) -> None:
        """Call `callback(WorkerEvent)`, sync or async, at each `event`.

        completed, failed, retrying: the store's answer to an outcome. canceled, stalled: the lease is lost, so the
        outcome does not count. error: the store did not answer. If a callback raises, the error is logged.
        """
        self._callbacks.on(event, callback)

    def run(self, *, signals: bool = True) -> Coroutine[Any, Any, None]:
        """Run jobs until SIGTERM, SIGINT or `stop`; then finish or release the leased jobs. Await it. [RETRY-5]

        A second signal ends it at once, as does cancelling the task. A handler that does not stop when
        asked, such as a thread, keeps its lease, and `run` waits for it. After a second signal `run` does not wait: the
        lease expires.
        Signals are watched only in the main thread, and not with `signals=False`. The program's own signal handler is
        called after the worker's. A handler that was set through the event loop is not replaced: then only `stop` or a
        cancel ends the worker. A second call while it runs waits for the end of the first; after that it can run again.
        """
        # Not a coroutine function: `stop` must also find a call that has not begun, as in a task just created.
        asked = _Asked()
        self._asked.add(asked)
        return self._run(asked, signals=signals)

    async def _run(self, asked: _Asked, *, signals: bool) -> None:
        self._asked.discard(asked)
        if asked.stopped:
            return
        if self._done is not None:
            await self._done.wait()
            return
        self._done = asyncio.Event()
        self._stop_asked = False
        try:
            # Before the store is opened: a signal during the opening stops the worker gracefully, too.
            with on_signal(self._on_signal) if signals else nullcontext():
                await self._source.open()
                async with nullcontext() if self._lifespan is None else self._lifespan(self):
                    await self._work()
        finally:
            done, self._done, self._loop = self._done, None, None
            if isinstance(self._source, AllTenants):
                await self._source.close()
            done.set()

    async def stop(self) -> None:
        """Stop claiming, let running handlers finish within the grace, and wait for the end of `run`.

        In a handler or a callback it does not wait. A `run` that was called and has not begun never begins. Without a
        `run`, it does nothing.
        """
        for asked in self._asked:
            asked.stopped = True
        done, loop = self._done, self._loop
        if done is None:
            return
        self._stop_asked = True
        if loop is not None:
            loop.stop()
            task = asyncio.current_task()
            if loop.runs(task) or self._callbacks.has(task):
                return
        await done.wait()

    async def _work(self) -> None:
        loop = self._loop = Loop(
            self._source.store, self.settings, self._handlers, self._callbacks, self._health, self._source.address()
        )
        if self._stop_asked:
            loop.stop()
        # A task of its own: the shutdown finishes even if `run` is canceled.
        working = asyncio.create_task(loop.run())
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            loop.stop_now()
            await asyncio.wait([working])
            raise

    def _on_signal(self) -> None:
        if self._loop is None or self._stop_asked:
            self._stop_asked = True
            if self._loop is not None:
                self._loop.stop_now()
        else:
            self._stop_asked = True
            self._loop.stop()


def _queues(
    source: Queue | AllTenants,
    jobs: list[JobDefinition[..., Any, Any]],
    handler: Callable[[Any], Any] | None,
    queues: Iterable[str] | None,
) -> tuple[str, ...]:
    if not jobs and handler is None:
        raise InvalidOption("jobs", "is empty and there is no handler: nothing to run")
    if isinstance(queues, str):
        raise InvalidOption("queues", f"is one string; write [{queues!r}]")
    names = list(queues) if queues is not None else [job.queue or source.name for job in jobs]
    if queues is None and handler is not None:
        names.append(source.name)
    if not names:
        raise InvalidOption("queues", "is empty: name at least one, or leave it out")
    return tuple(dict.fromkeys(check_own_queue(name) for name in names))


def _types(
    source: Queue | AllTenants, jobs: list[JobDefinition[..., Any, Any]], handler: Callable[[Any], Any] | None
) -> tuple[TypeInfo, ...]:
    """The job types that the worker reports, for producers without the `@job` definition."""
    types = [
        TypeInfo(
            job.name, job.queue or source.name, spec.max_attempts, spec.backoff, spec.timeout_ms, spec.priority,
            spec.result_ttl_ms,
        )
        for job in jobs
        for spec in (job.spec,)
    ]  # fmt: skip
    return tuple(types if handler is None else [*types, TypeInfo("", source.name)])
