"""Which jobs a list by time shows, and which jobs a change by filter changes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypedDict

from holdfast.core.errors import InvalidOption
from holdfast.core.job import JobState
from holdfast.core.listing import ListQuery
from holdfast.jobs.options import duration_ms, instant_ms
from holdfast.queue.connection import Connection
from holdfast.queue.inspect import check_page

Moment = datetime | timedelta
"""An instant, or how long ago."""


class JobFilter(TypedDict, total=False):
    """Which jobs. What is not given, or None, does not matter.

    The time of a job is when it is due, when its lease ends, or when it ended.
    """

    queue: str | None
    state: JobState | str | Iterable[JobState | str] | None
    type: str | None
    error: str | None
    """The last error's type or fingerprint, or a part of its message."""
    id: str | None
    """The beginning of the id."""
    since: Moment | None
    """A time of the job that is not before this instant, or not longer ago."""
    until: Moment | None
    """A time of the job before this instant, or longer ago."""


class DeadFilter(TypedDict, total=False):
    """Which dead letters of one queue."""

    queue: str | None
    type: str | None
    error: str | None
    """The last error's type or fingerprint, or a part of its message."""


async def query_of(
    connection: Connection, chosen: JobFilter, *, newest: bool, cursor: str | None, limit: int
) -> ListQuery:
    """The list that these options ask for. Raises InvalidOption."""
    unknown = chosen.keys() - JobFilter.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {min(unknown)!r}")
    check_page(cursor, limit)
    queue, error, id = chosen.get("queue"), chosen.get("error"), chosen.get("id")
    since, until = [await _instant(connection, name, chosen.get(name)) for name in ("since", "until")]
    if not newest and any(value is not None for value in (error, id, since, until)):
        raise InvalidOption("newest", "filters by error, id and time need newest=True")
    name = "" if newest and queue is None else connection.queue(queue)
    return ListQuery(
        connection.tenant, name, states_of(chosen.get("state")), chosen.get("type"), error, cursor, limit, newest, id,
        since, until,
    )  # fmt: skip


async def _instant(connection: Connection, option: str, value: Moment | None) -> int | None:
    if isinstance(value, timedelta):
        return max(0, await connection.live.now() - duration_ms(option, value))
    return None if value is None else max(0, instant_ms(option, value))


def states_of(state: JobState | str | Iterable[JobState | str] | None) -> frozenset[JobState]:
    """The states that a caller asks for; None asks for all. Raises InvalidOption."""
    if state is None:
        return frozenset(JobState)
    wanted = [state] if isinstance(state, str) else list(state)
    try:
        return frozenset(JobState(one) for one in wanted)
    except ValueError as error:
        known = ", ".join(JobState)
        raise InvalidOption("state", f"{error}; there are {known}") from None
