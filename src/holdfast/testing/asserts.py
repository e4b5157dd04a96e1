"""Assertions on what was enqueued, for queues from `inline_queue`."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast import blocking
from holdfast.core.job import WAITING, Job
from holdfast.jobs.definition import JobDefinition
from holdfast.queue.queue import Queue
from holdfast.store import ListQuery

T = TypeVar("T")

_PAGE = 1000
_SHOWN = 20

Definition = JobDefinition[..., Any, Any]
AnyQueue = Queue | blocking.Queue


def assert_enqueued(queue: AnyQueue, definition: Definition, /, *, count: int | None = None, **arguments: Any) -> None:
    """Assert that jobs of this definition wait, with at least these arguments: one or more, or exactly `count`."""
    found = enqueued(queue, definition, **arguments)
    if found if count is None else len(found) == count:
        return
    wanted = "at least one" if count is None else str(count)
    raise AssertionError(f"{_call(definition, arguments)}: expected {wanted}, found {len(found)}{_listing(queue)}")


def assert_not_enqueued(queue: AnyQueue, definition: Definition, /, **arguments: Any) -> None:
    """Assert that no job of this definition with these arguments waits."""
    if found := enqueued(queue, definition, **arguments):
        raise AssertionError(f"{_call(definition, arguments)}: expected none, found {len(found)}{_listing(queue)}")


def enqueued(queue: AnyQueue, definition: Definition, /, **arguments: Any) -> list[dict[str, Any]]:
    """The arguments of this definition's waiting jobs that have at least these."""
    calls = [_arguments(definition, job) for job in _waiting(queue) if job.envelope.type == definition.name]
    missing = object()
    return [call for call in calls if all(call.get(name, missing) == value for name, value in arguments.items())]


def _arguments(definition: Definition, job: Job) -> dict[str, Any]:
    args, kwargs = definition.load(job.envelope)
    bound = inspect.signature(definition.function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _waiting(queue: AnyQueue) -> list[Job]:
    jobs: list[Job] = []
    for stats in _at_once(queue.store.stats(queue.tenant)):
        cursor: str | None = None
        while True:
            query = ListQuery(queue.tenant, stats.queue, WAITING, cursor=cursor, limit=_PAGE)
            page = _at_once(queue.store.list(query))
            jobs += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
    return jobs


def _at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, like those of a memory store. So asserts need no await."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    call.close()
    raise TypeError("this queue is not in memory; use one from holdfast.testing.inline_queue")


def _call(definition: Definition, arguments: dict[str, Any]) -> str:
    return f"{definition.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _listing(queue: AnyQueue) -> str:
    jobs = _waiting(queue)
    if not jobs:
        return "; nothing is waiting"
    lines = [f"  {job.queue}: {job.envelope.type or '(no type)'} {_payload(job)}" for job in jobs[:_SHOWN]]
    if len(jobs) > _SHOWN:
        lines.append(f"  ... and {len(jobs) - _SHOWN} more")
    return "; waiting are:\n" + "\n".join(lines)


def _payload(job: Job) -> str:
    return job.envelope.payload.decode() if job.envelope.codec == "json" else f"<{job.envelope.codec}>"
