"""Schedules of one tenant: jobs that are enqueued by the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from functools import wraps
from heapq import nsmallest
from typing import Any

from holdfast.core.errors import InvalidName, JobNotFound
from holdfast.core.job import PAYLOAD_LIMIT
from holdfast.core.names import SCHEDULES
from holdfast.core.schedule import KEPT, Schedule
from holdfast.protocol import answers, requests
from holdfast.schedules.schedules import scheduling, shown
from holdfast.service import parsing, views
from holdfast.service.answer_size import ANSWER_BYTES
from holdfast.service.call import Reply, Route, ServiceCall
from holdfast.service.tokens import ADMIN
from holdfast.store import ListQuery

EVEN_S = 0.05
"""Requests with a token for some queues take a multiple of this, so that their time does not reveal other schedules."""

Handler = Callable[[ServiceCall[Any, Any]], Awaitable[Reply]]


def _evenly(handler: Handler) -> Handler:
    """Pad the time of a route, so that it reveals nothing to a token for some queues."""

    @wraps(handler)
    async def handle(call: ServiceCall[Any, Any]) -> Reply:
        began = time.monotonic()
        try:
            return await handler(call)
        finally:
            if call.caller.queues is not None:
                await asyncio.sleep(EVEN_S - (time.monotonic() - began) % EVEN_S)

    return handle


@_evenly
async def list_schedules(call: ServiceCall[None, requests.PageQuery]) -> Reply:
    """Only schedules for queues that the token is for."""
    query = call.query
    only = call.caller.queues
    if only is None:
        query_all = ListQuery(call.tenant, SCHEDULES, KEPT, cursor=query.cursor or None, limit=query.limit)
        page = await call.context.page(query_all, call.hold)
        found, cursor = shown(page.jobs), page.cursor
    else:
        found, cursor = await _own(call, only)
    views_of = [views.schedule(call.tenant, one) for one in found]
    return Reply(answers.Schedules(tenant=call.tenant, schedules=views_of, cursor=cursor))


async def _own(call: ServiceCall[None, requests.PageQuery], only: Collection[str]) -> tuple[list[Schedule], str | None]:
    """A page of the schedules for these queues. Its cursor is a name: the store's cursor would count other schedules.

    It reads all schedules of the tenant, page by page, and keeps only names until it knows which ones to show.
    """
    context, query = call.context, call.query
    names: set[str] = set()
    cursor: str | None = None
    while True:
        every = ListQuery(call.tenant, SCHEDULES, KEPT, cursor=cursor, limit=requests.PAGE_LIMIT)
        page = await context.page(every, call.hold)
        here = {one.name for one in shown(page.jobs) if one.definition.target.queue in only}
        names = {*nsmallest(query.limit + 1, names | {name for name in here if name > (query.cursor or "")})}
        cursor = page.cursor
        if cursor is None:
            break
    found: list[Schedule] = []
    size, following = 0, None
    for name in sorted(names):
        if len(found) == query.limit or size > ANSWER_BYTES - PAYLOAD_LIMIT:
            following = found[-1].name
            break
        one = await scheduling(context.store).get_schedule(call.tenant, name)
        if one is not None and one.definition.target.queue in only:
            found.append(one)
            size += len(one.definition.target.envelope.payload)
            call.hold.resize(size)
    return found, following


@_evenly
async def put_schedule(call: ServiceCall[requests.PutSchedule, requests.NoQuery]) -> Reply:
    """Creates or replaces the schedule of that name. An identical one changes nothing."""
    name = call.name
    timing, target = await parsing.schedule(call.tenant, call.body, call.context.turns)
    call.caller.need_queue(target.queue)
    kept = scheduling(call.context.store)
    if call.caller.queues is not None:
        await _check_free(call, name, target.queue)
    return Reply(views.schedule(call.tenant, await kept.put_schedule(call.tenant, name, timing, target)))


@_evenly
async def get_schedule(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """Another tenant's schedule, or one for other queues, answers exactly like a missing one. [TENANT-2]"""
    return Reply(views.schedule(call.tenant, await _found(call)))


@_evenly
async def remove_schedule(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """Jobs that it has enqueued stay."""
    found = await _found(call)
    if not await scheduling(call.context.store).remove_schedule(call.tenant, found.name):
        raise JobNotFound(SCHEDULES, found.name)
    return Reply(answers.Unscheduled(tenant=call.tenant, name=found.name, status="removed"))


async def _found(call: ServiceCall[Any, Any]) -> Schedule:
    name = call.name
    found = await scheduling(call.context.store).get_schedule(call.tenant, name)
    only = call.caller.queues
    if found is None or (only is not None and found.definition.target.queue not in only):
        raise JobNotFound(SCHEDULES, name)
    return found


async def _check_free(call: ServiceCall[Any, Any], name: str, queue: str) -> None:
    """Raise unless a token for some queues may use this name. It must end in `@QUEUE`.

    Any other name is refused whether it exists or not, so that the answer reveals nothing.
    """
    if not name.removesuffix(f"@{queue}") or not name.endswith(f"@{queue}"):
        reason = f"a token for some queues names its schedules by queue: {name.partition('@')[0][:80]}@{queue}"
        raise InvalidName("schedule", name, reason)
    found = await scheduling(call.context.store).get_schedule(call.tenant, name)
    if found is not None:
        # An operator may have used this name for another queue.
        call.caller.need_queue(found.definition.target.queue)


_SCHEDULE = "/v1/schedules/{name}"
_NO_SUCH = ("invalid_name", "job_not_found")

ROUTES = (
    Route(
        method="GET", path="/v1/schedules", handler=list_schedules, scope=ADMIN, query=requests.PageQuery,
        summary="A page of schedules", answers={200: answers.Schedules}, refuses=("invalid_option",),
    ),
    Route(
        method="PUT", path=_SCHEDULE, handler=put_schedule, action="schedule.put", scope=ADMIN,
        body=requests.PutSchedule, summary="Create or replace a schedule", answers={200: answers.Schedule},
        refuses=(
            "invalid_name", "invalid_option", "invalid_payload", "unknown_codec", "payload_too_large",
            "quota_exceeded", "queue_forbidden",
        ),
    ),
    Route(
        method="GET", path=_SCHEDULE, handler=get_schedule, scope=ADMIN, summary="A schedule",
        answers={200: answers.Schedule}, refuses=_NO_SUCH,
    ),
    Route(
        method="DELETE", path=_SCHEDULE, handler=remove_schedule, scope=ADMIN,
        action="schedule.remove", summary="Remove a schedule",
        answers={200: answers.Unscheduled}, refuses=_NO_SUCH,
    ),
)  # fmt: skip
