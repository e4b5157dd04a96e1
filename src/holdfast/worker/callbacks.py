"""Callbacks that were registered with `worker.on`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args

from msgspec import Struct

from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.core.job import AttemptError, Job
from holdfast.maintenance.backoff import AWAY
from holdfast.telemetry import metrics
from holdfast.telemetry.logging import get_logger

EventName = Literal["completed", "failed", "retrying", "canceled", "stalled", "error"]


class WorkerEvent(Struct, frozen=True):
    """An event in a worker. `job` is the job as it was claimed; None for "error"."""

    name: EventName
    job: Job | None = None
    error: AttemptError | BaseException | None = None
    """Why the attempt failed ("failed", "retrying"), or the failure of the store or the worker ("error")."""


Callback = Callable[[WorkerEvent], Any]

_log = get_logger(__name__)


class Callbacks:
    """The registered functions. If one raises, the error is logged."""

    def __init__(self) -> None:
        self._functions: dict[str, list[Callback]] = {name: [] for name in get_args(EventName)}
        self._tasks: set[asyncio.Task[None]] = set()
        self.silent = True
        """No callback is registered, so the hot path makes no events."""

    def on(self, name: EventName, function: Callback) -> None:
        """Call `function(WorkerEvent)` whenever `name` happens."""
        if name not in self._functions:
            known = ", ".join(self._functions)
            raise InvalidOption("event", f"{name!r} is not an event of a worker; the events are {known}")
        self._functions[name].append(function)
        self.silent = False

    def emit(self, name: EventName, job: Job | None = None, error: AttemptError | BaseException | None = None) -> None:
        """Call the functions registered for `name`."""
        for function in self._functions[name]:
            try:
                answer = function(WorkerEvent(name, job, error))
                if inspect.isawaitable(answer):
                    task = asyncio.ensure_future(_guarded(name, answer))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            except Exception:  # noqa: BLE001 - it is the user's code
                _log.exception("a callback raised", name=name)

    def store_failed(self, operation: str, error: BaseException) -> None:
        """Log and count a failed call of the store, and call the functions registered for "error"."""
        if metrics.current is not None:
            metrics.current.store_error(operation)
        if isinstance(error, (HoldfastError, *AWAY)):
            _log.warning("the store did not answer", op=operation, error=str(error))
        else:
            _log.error("a call of the store failed", op=operation, error=repr(error))
        self.emit("error", None, error)

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether this task is a callback."""
        return task in self._tasks

    async def finish(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for the callbacks that still run, then cancel them."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=timeout_s)


async def _guarded(name: str, answer: Any) -> None:
    try:
        await answer
    except Exception:  # noqa: BLE001 - it is the user's code
        _log.exception("a callback raised", name=name)
