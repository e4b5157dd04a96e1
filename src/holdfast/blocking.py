"""The Queue for code without an event loop: the same methods without await, made from the same code.

One background thread with an event loop serves all blocking queues of a process. The methods are found on the
async classes when they are called; `blocking.pyi`, which type checkers and editors read, is generated from them
by scripts/make_blocking_stub.py.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from functools import wraps
from itertools import islice
from types import GenericAlias
from typing import Any, Self, TypeVar, cast

from holdfast.coalesce import BATCH_LIMIT
from holdfast.core.errors import InvalidOption
from holdfast.queue import Queue as AsyncQueue
from holdfast.ticket import Ticket as AsyncTicket

__all__ = ["Queue", "Ticket"]

T = TypeVar("T")

_END = object()


class _Background:
    """The event loop that does the work, in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises. An interrupt (Ctrl-C) cancels it and goes on to the caller."""
        loop = self._started()
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidOption("holdfast.blocking", "cannot be called from its own event loop; use await")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-blocking", daemon=True)
                self._thread.start()
            return self._loop

    def forget(self) -> None:
        """After a fork: the thread stayed with the parent, so the child starts its own."""
        self.__init__()


_background = _Background()
os.register_at_fork(after_in_child=_background.forget)


class _Blocking:
    """Stands for an async object: its coroutine methods block, its async generators are iterators."""

    def _target(self) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._target(), name)
        if inspect.iscoroutinefunction(value):
            return _waiting(value)
        if inspect.isasyncgenfunction(value):
            return _iterating(value)
        return value

    def __repr__(self) -> str:
        return f"<blocking {self._target()!r}>"


class Ticket(_Blocking):
    """A handle on a job, as holdfast.Ticket, without await."""

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        return GenericAlias(cls, item)

    def __init__(self, ticket: AsyncTicket[Any]) -> None:
        self._ticket = ticket

    def _target(self) -> AsyncTicket[Any]:
        return self._ticket


class Queue(_Blocking):
    """A store bound to one tenant, as holdfast.Queue, without await. Safe to share between threads.

    In a forked child a Queue with a URL connects anew when it is next used.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._make = lambda: AsyncQueue(*args, **options)
        self._queue = _background.run(self._made())
        self._pid = os.getpid()
        self._opened = False

    def open(self) -> Self:
        """Connect to the store. Twice is harmless."""
        _background.run(self._target().open())
        self._opened = True
        return self

    def close(self) -> None:
        """Finish what is under way and let go of the store. Twice is harmless."""
        self._opened = False
        _background.run(self._target().close())

    def enqueue_many(self, messages: Iterable[Any], **options: Any) -> list[Ticket]:
        """As on holdfast.Queue. The messages are taken in the caller's thread, where their source may live."""
        source = iter(messages)
        tickets: list[Ticket] = []
        while chunk := list(islice(source, BATCH_LIMIT)):
            tickets += _outward(_background.run(self._target().enqueue_many(chunk, **options)))
        return tickets

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def _made(self) -> AsyncQueue:
        return self._make()

    def _target(self) -> AsyncQueue:
        if self._pid != os.getpid():
            self._queue = _background.run(self._made())
            self._pid = os.getpid()
            if self._opened:
                _background.run(self._queue.open())
        return self._queue


def _waiting(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        return _outward(_background.run(method(*args, **options)))

    return call


def _iterating(method: Callable[..., AsyncGenerator[Any]]) -> Callable[..., Generator[Any]]:
    @wraps(method)
    def iterate(*args: Any, **options: Any) -> Generator[Any]:
        source = method(*args, **options)
        try:
            while (value := _background.run(_next(source))) is not _END:
                yield value
        finally:
            _background.run(source.aclose())

    return iterate


async def _next(source: AsyncGenerator[Any]) -> Any:
    return await anext(source, _END)


def _outward(value: Any) -> Any:
    if isinstance(value, AsyncTicket):
        return Ticket(cast("AsyncTicket[Any]", value))
    if type(value) is list:
        return [_outward(item) for item in cast("list[Any]", value)]
    return value
