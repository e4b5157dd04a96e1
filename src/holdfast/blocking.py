"""The Queue for code without an event loop: the same methods without await, made from the same code.

One background thread with an event loop serves all blocking queues of a process. The methods are found on the
async classes when they are called; `blocking.pyi`, which type checkers and editors read, is generated from them
by scripts/make_blocking_stub.py. `current_job` is that of holdfast, typed for handlers that are plain functions: there
`client` and `enqueue` work without await.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from functools import partial, wraps
from itertools import islice
from types import GenericAlias
from typing import Any, Self, TypeVar, cast

from holdfast.core.errors import InvalidOption, PartlyRefused
from holdfast.jobs.context import current_job
from holdfast.queue.coalesce import BATCH_LIMIT
from holdfast.queue.enqueue import OnRefused, note_answered, raises_refusals
from holdfast.queue.queue import Queue as AsyncQueue
from holdfast.queue.ticket import Ticket as AsyncTicket

__all__ = ["Queue", "Ticket", "current_job"]

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine in another thread's event loop and returns its result or raises its error."""

_END = object()


class _Background:
    """An event loop in a thread of its own. Both are started when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop and return its result. An interrupt (Ctrl-C) cancels it and is raised."""
        loop = self.started()
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidOption("holdfast.blocking", "cannot be called from its own event loop; use await")
        return _run_on(loop, work)

    def started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-blocking", daemon=True)
                self._thread.start()
            return self._loop

    def forget(self) -> None:
        """After a fork: the thread stayed with the parent, so the child starts its own."""
        self.__init__()


def _run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    future = _submit(loop, work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _submit(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> Future[T]:
    if loop.is_closed():
        work.close()
        raise InvalidOption("client", "the worker that it belongs to has ended")
    return asyncio.run_coroutine_threadsafe(work, loop)


_background = _Background()
os.register_at_fork(after_in_child=_background.forget)


class _Blocking:
    """An async object for blocking code: its coroutine methods block, its async generators are iterators."""

    _run: Run

    def _target(self) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._target(), name)
        if inspect.iscoroutinefunction(value):
            return _waiting(value, self._run)
        if inspect.isasyncgenfunction(value):
            return _iterating(value, self._run)
        return value

    def __repr__(self) -> str:
        return f"<blocking {self._target()!r}>"


class Ticket(_Blocking):
    """A handle on a job, as holdfast.Ticket, without await."""

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        return GenericAlias(cls, item)

    def __init__(self, ticket: AsyncTicket[Any], run: Run = _background.run) -> None:
        self._ticket = ticket
        self._run = run

    def _target(self) -> AsyncTicket[Any]:
        return self._ticket

    def __reduce__(self) -> tuple[object, ...]:
        return Ticket, (self._ticket,)


class Queue(_Blocking):
    """A store bound to one tenant, as holdfast.Queue, without await. Safe to share between threads.

    In a forked child a Queue with a URL connects again when it is next used.
    """

    _kind: type[AsyncQueue] = AsyncQueue

    def __init__(self, *args: Any, **options: Any) -> None:
        self._run = _background.run
        self._make = lambda: self._kind(*args, **options)
        self._queue = self._run(self._made())
        self._pid = os.getpid()
        self._opened = False

    def open(self) -> Self:
        """Connect to the store. Calling it twice is harmless."""
        self._run(self._target().open())
        self._opened = True
        return self

    def close(self) -> None:
        """Finish calls in flight and close the connection to the store. Calling it twice is harmless."""
        self._opened = False
        self._run(self._target().close())

    def enqueue_many(
        self, messages: Iterable[Any], *, on_refused: OnRefused | None = None, **options: Any
    ) -> list[Ticket]:
        """As on holdfast.Queue. The iterable of messages is read in the caller's thread."""
        raising = raises_refusals(on_refused, options.get("connection"))
        source = iter(messages)
        tickets: list[Ticket] = []
        try:
            while chunk := list(islice(source, BATCH_LIMIT)):
                sending = self._target().enqueue_many(chunk, on_refused="return", **options)
                tickets += _outward(self._run(sending), self._run)
        except BaseException as error:
            note_answered(error, tickets)
            raise
        if raising and any(ticket.error is not None for ticket in tickets):
            raise PartlyRefused(tickets)
        return tickets

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def _made(self) -> AsyncQueue:
        return self._make()

    def _target(self) -> AsyncQueue:
        if self._pid != os.getpid():
            self._queue = self._run(self._made())
            self._pid = os.getpid()
            if self._opened:
                self._run(self._queue.open())
        return self._queue


class _ThreadQueue(Queue):
    """A Queue of a worker's event loop, without await, for a handler in a thread."""

    def __init__(self, queue: AsyncQueue, home: asyncio.AbstractEventLoop) -> None:
        self._queue, self._pid, self._opened = queue, os.getpid(), True
        self._run = partial(_run_on, home)

    async def _made(self) -> AsyncQueue:
        raise InvalidOption("client", "the handler has forked; make a Queue of its own in the child")


class _OtherLoopQueue:
    """A Queue of a worker's event loop, for a handler that awaits in another one."""

    def __init__(self, queue: AsyncQueue, home: asyncio.AbstractEventLoop) -> None:
        self._queue, self._home = queue, home

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._queue, name)
        if inspect.iscoroutinefunction(value):
            return wraps(value)(partial(self._call, value))
        if inspect.isasyncgenfunction(value):
            return wraps(value)(partial(self._iterate, value))
        return value

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """It ends with the worker."""

    async def enqueue_many(self, messages: Any, **options: Any) -> Any:
        """As on holdfast.Queue. The iterable of messages is read in the caller's event loop."""
        if isinstance(messages, AsyncIterable):
            messages = [message async for message in cast("AsyncIterable[Any]", messages)]
        return await self._call(self._queue.enqueue_many, list(messages), **options)

    async def _call(self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:
        try:
            answer: Any = await asyncio.wrap_future(_submit(self._home, method(*args, **options)))
        except PartlyRefused as error:
            self._own(error.tickets)
            raise
        self._own(cast("list[Any]", answer) if isinstance(answer, list) else [answer])
        return cast("Any", answer)

    async def _iterate(self, method: Callable[..., AsyncGenerator[Any]], *args: Any, **options: Any) -> Any:
        source = method(*args, **options)
        try:
            while (value := await self._call(_next, source)) is not _END:
                yield value
        finally:
            await asyncio.wrap_future(_submit(self._home, source.aclose()))

    def _own(self, answers: Iterable[Any]) -> None:
        for answer in answers:
            if isinstance(answer, AsyncTicket):
                answer.owner = cast("Any", self)


def for_caller(queue: Any, home: Any) -> Any:
    """Return a Queue of the event loop `home` in a form that the caller can use.

    In that loop: the Queue itself. In a thread without an event loop: a blocking one. In another loop: one to await.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return _ThreadQueue(queue, home)
    return queue if running is home else _OtherLoopQueue(queue, home)


def open_in_background(queue: Any) -> Any:
    """Open an async Queue in the event loop of blocking queues. Returns that loop."""
    _background.run(queue.open())
    return _background.started()


def _waiting(method: Callable[..., Coroutine[Any, Any, Any]], run: Run) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        return _outward(run(method(*args, **options)), run)

    return call


def _iterating(method: Callable[..., AsyncGenerator[Any]], run: Run) -> Callable[..., Generator[Any]]:
    @wraps(method)
    def iterate(*args: Any, **options: Any) -> Generator[Any]:
        source = method(*args, **options)
        try:
            while (value := run(_next(source))) is not _END:
                yield value
        finally:
            run(source.aclose())

    return iterate


async def _next(source: AsyncGenerator[Any]) -> Any:
    return await anext(source, _END)


def _outward(value: Any, run: Run) -> Any:
    if isinstance(value, AsyncTicket):
        return Ticket(cast("AsyncTicket[Any]", value), run)
    if type(value) is list:
        return [_outward(item, run) for item in cast("list[Any]", value)]
    return value
