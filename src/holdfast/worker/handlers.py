"""The handlers of a worker: its job definitions and its catch-all, by job type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal

from holdfast.core.errors import InvalidOption
from holdfast.core.job import Envelope
from holdfast.jobs import codec as codecs
from holdfast.jobs.definition import JobDefinition

Executor = Literal["async", "thread", "process"]
Load = Callable[[Envelope], tuple[Iterable[Any], dict[str, Any]]]


class Handler:
    """How to run one job type. By `reference`, another process imports the definition."""

    __slots__ = ("executor", "function", "load", "reference", "timeout_s")

    def __init__(
        self, function: Callable[..., Any], load: Load, executor: Executor, timeout_s: float | None, reference: str
    ) -> None:
        self.function = function
        self.load = load
        self.executor = executor
        self.timeout_s = timeout_s
        self.reference = reference


def table(jobs: Iterable[JobDefinition[..., Any, Any]], catch_all: Callable[[Any], Any] | None) -> dict[str, Handler]:
    """The handlers by job type. "" is the catch-all: it gets the jobs that have no type.

    Raises InvalidOption for two definitions of one name, or for one that its child process could not import.
    """
    handlers: dict[str, Handler] = {}
    for definition in jobs:
        if not isinstance(definition, JobDefinition):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption("jobs", f"{definition!r} is not a job; put @job on the function")
        if definition.name in handlers:
            raise InvalidOption("jobs", f"two of them are named {definition.name!r}; give one another name=")
        handlers[definition.name] = _of_definition(definition)
    if catch_all is not None:
        if isinstance(catch_all, JobDefinition):
            raise InvalidOption("handler", f"{catch_all!r} is a job; put it into jobs=[...]")
        executor = "async" if _is_async(catch_all) else "thread"
        handlers[""] = Handler(catch_all, _load_payload, executor, None, "")
    return handlers


def _of_definition(definition: JobDefinition[..., Any, Any]) -> Handler:
    timeout_s = None if definition.timeout is None else definition.timeout.total_seconds()
    function = definition.function
    reference = f"{function.__module__}:{function.__qualname__}"
    if definition.executor == "process" and "<" in function.__qualname__:
        reason = f"{definition.name} is defined inside a function, where a child process cannot find it"
        raise InvalidOption("executor", reason)
    return Handler(function, definition.load, definition.executor, timeout_s, reference)


def _load_payload(envelope: Envelope) -> tuple[Iterable[Any], dict[str, Any]]:
    return (codecs.decode(envelope.payload, envelope.codec),), {}


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
