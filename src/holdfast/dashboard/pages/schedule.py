"""One schedule: its next ticks in its time zone, its last runs, and the job that it makes."""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import InvalidOption
from holdfast.core.names import SCHEDULES
from holdfast.core.schedule import Schedule
from holdfast.dashboard.page import Fragment, WebPage
from holdfast.dashboard.pages.job import shown
from holdfast.dashboard.pages.schedules import concerns, found, rows, tick_key
from holdfast.dashboard.view import NotShown, View
from holdfast.schedules.ticks import last_tick, local, next_ticks
from holdfast.service.tokens import ADMIN

NEXT, LAST = 5, 5


async def read(view: View) -> dict[str, Any]:
    """The payload, which never changes. 404 if there is no such schedule."""
    target = (await found(view, view.query.get("name", ""))).definition.target
    envelope = target.envelope
    return {
        "payload": shown(envelope.payload, envelope.codec),
        "codec": envelope.codec,
        "commands": [
            ("List the schedules", view.command("schedule", "list")),
            ("Remove it", view.command("schedule", "remove", of=view.query.get("name", ""))),
        ],
    }


async def read_schedule(view: View) -> dict[str, Any]:
    """What changes."""
    try:
        schedule = await found(view, view.query.get("name", ""))
    except NotShown:
        return {"row": None}
    now = await view.store.now()
    (row,) = await rows(view, [schedule], now)
    explanation = await view.queue.explain(schedule.name, queue=SCHEDULES) if schedule.state == "failed" else None
    timing, (next_at, problem) = schedule.definition.timing, _next(schedule, now)
    last = _last(schedule, now)
    jobs = await view.store.get([tick_key(view, schedule, tick) for tick in last]) if last else []
    return {
        "row": row,
        "one": schedule,
        "target": schedule.definition.target,
        "timing": timing,
        "why": None if explanation is None else explanation.causes[0].text,
        "next": [(tick, local(timing, tick)) for tick in next_at],
        "problem": problem,
        "last": list(zip(last, jobs, strict=True)),
    }


def _next(schedule: Schedule, now: int) -> tuple[list[int], str]:
    """The next ticks. The one that it waits for comes first, even if it is late."""
    definition = schedule.definition
    after = min(now, schedule.next_at - 1) if schedule.state != "failed" else now
    try:
        return next_ticks(definition.timing, definition.anchor, after, NEXT), ""
    except InvalidOption as error:
        return [], str(error)


def _last(schedule: Schedule, now: int) -> list[int]:
    """The last ticks, latest first, since the schedule was made or changed."""
    definition, ticks, until = schedule.definition, list[int](), now
    try:
        while len(ticks) < LAST:
            tick = last_tick(definition.timing, definition.anchor, until)
            if tick is None or tick < min(schedule.created_at, definition.anchor):
                break
            ticks.append(tick)
            until = tick - 1
    except InvalidOption:
        return []
    return ticks


PAGE = WebPage(
    "/schedule", "Schedule", "schedule.html", {"schedule": Fragment(read_schedule, concerns)}, read=read,
    scope=ADMIN, parent="/schedules",
)  # fmt: skip
