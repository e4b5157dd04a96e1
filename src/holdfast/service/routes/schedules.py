"""Schedules, for operators of one tenant: what is enqueued by the clock."""

from __future__ import annotations

from typing import Any

from holdfast.core import answers, wire
from holdfast.core.errors import JobNotFound
from holdfast.core.names import SCHEDULES
from holdfast.core.schedule import KEPT, Schedule
from holdfast.schedules import scheduling, shown
from holdfast.service import intake, views
from holdfast.service.call import Call, Reply, Route
from holdfast.service.tokens import ADMIN
from holdfast.store import ListQuery


async def list_schedules(call: Call[None, wire.PageQuery]) -> Reply:
    """Those whose jobs go to a queue that the token is for."""
    query = call.query
    wanted = ListQuery(call.tenant, SCHEDULES, KEPT, cursor=query.cursor or None, limit=query.limit)
    page = await call.hub.page(wanted, call.hold)
    only = call.caller.queues
    found = [one for one in shown(page.jobs) if only is None or one.definition.target.queue in only]
    views_of = [views.schedule(call.tenant, one) for one in found]
    return Reply(answers.Schedules(tenant=call.tenant, schedules=views_of, cursor=page.cursor))


async def put_schedule(call: Call[wire.PutSchedule, wire.NoQuery]) -> Reply:
    """The same again changes nothing; another takes the place of the one of that name."""
    name = call.name
    timing, target = await intake.schedule(call.tenant, call.body, call.hub.turns)
    call.caller.need_queue(target.queue)
    kept = scheduling(call.hub.store)
    if call.caller.queues is not None:
        _check_queue(call, await kept.get_schedule(call.tenant, name))
    return Reply(views.schedule(call.tenant, await kept.put_schedule(call.tenant, name, timing, target)))


async def get_schedule(call: Call[None, wire.NoQuery]) -> Reply:
    """Another tenant's answers exactly like none. [TENANT-2]"""
    return Reply(views.schedule(call.tenant, await _found(call)))


async def remove_schedule(call: Call[None, wire.NoQuery]) -> Reply:
    """Jobs that it has enqueued stay as they are."""
    found = await _found(call)
    if not await scheduling(call.hub.store).remove_schedule(call.tenant, found.name):
        raise JobNotFound(SCHEDULES, found.name)
    return Reply(answers.Unscheduled(tenant=call.tenant, name=found.name, status="removed"))


async def _found(call: Call[Any, Any]) -> Schedule:
    name = call.name
    found = await scheduling(call.hub.store).get_schedule(call.tenant, name)
    if found is None:
        raise JobNotFound(SCHEDULES, name)
    _check_queue(call, found)
    return found


def _check_queue(call: Call[Any, Any], found: Schedule | None) -> None:
    """Raise a refusal if the token is for other queues than this schedule's jobs go to."""
    if found is not None:
        call.caller.need_queue(found.definition.target.queue)


_SCHEDULE = "/v1/schedules/{name}"
_NO_SUCH = ("invalid_name", "job_not_found", "queue_forbidden")

ROUTES = (
    Route(
        method="GET", path="/v1/schedules", handler=list_schedules, scope=ADMIN, query=wire.PageQuery,
        summary="A page of schedules", answers={200: answers.Schedules}, refuses=("invalid_option",),
    ),
    Route(
        method="PUT", path=_SCHEDULE, handler=put_schedule, scope=ADMIN, body=wire.PutSchedule,
        summary="Have a job enqueued by the clock", answers={200: answers.Schedule},
        refuses=(
            "invalid_name", "invalid_option", "invalid_payload", "unknown_codec", "payload_too_large",
            "quota_exceeded", "queue_forbidden",
        ),
    ),
    Route(
        method="GET", path=_SCHEDULE, handler=get_schedule, scope=ADMIN, summary="A schedule as it is",
        answers={200: answers.Schedule}, refuses=_NO_SUCH,
    ),
    Route(
        method="DELETE", path=_SCHEDULE, handler=remove_schedule, scope=ADMIN, summary="End a schedule",
        answers={200: answers.Unscheduled}, refuses=_NO_SUCH,
    ),
)  # fmt: skip
