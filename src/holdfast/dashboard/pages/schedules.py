"""Schedules: what runs next, how the last run ended, and which schedules have stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.core.errors import InvalidOption
from holdfast.core.job import Job, JobKey, JobState
from holdfast.core.names import SCHEDULES
from holdfast.core.schedule import OPEN, Schedule, tick_text
from holdfast.dashboard.page import Action, Done, Form, Fragment, WebPage, of_tenant
from holdfast.dashboard.view import NotShown, View
from holdfast.schedules.schedules import SchedulePage, over_quota, run_now, schedule_page, scheduling
from holdfast.schedules.ticks import check_name, last_tick
from holdfast.service.tokens import ADMIN, PRODUCE
from holdfast.store import Signal

SHOWN, STOPPED_SHOWN = 50, 10
SEARCHED = 1000
"""The most schedules to read for a token that is limited to some queues."""
LATE_MS = 30_000
"""A tick that is this old and was not fired is late."""
FAILED = frozenset({JobState.FAILED})


class ScheduleRow(Struct, frozen=True):
    """A schedule, and the job of its last tick."""

    schedule: Schedule
    last_at: int | None
    last: Job | None
    paused: bool
    """Whether the queue of its jobs is paused."""
    late: str
    """Why its next tick is late, "" if it is not."""


def concerns(view: View, signal: Signal) -> bool:
    """Hints about schedules, and about jobs with the id of a tick."""
    return of_tenant(view, signal) and (signal.queue in ("", SCHEDULES) or "@" in signal.id)


async def read(view: View) -> dict[str, Any]:
    """A page of waiting schedules, by their next tick. On the first page, stopped schedules come first."""
    only_failed, cursor = view.text("state") == "failed", view.text("cursor") or None
    page = await _page(view, FAILED if only_failed else OPEN, cursor, SHOWN)
    stopped, more_stopped = page.schedules if only_failed else [], None
    if not only_failed and cursor is None:
        failed = await _page(view, FAILED, None, STOPPED_SHOWN)
        stopped, more_stopped = failed.schedules, failed.cursor
    return {
        "rows": [] if only_failed else await rows(view, page.schedules, page.now),
        "stopped": [(one, await why_stopped(view, one)) for one in stopped],
        "more_stopped": bool(more_stopped),
        "cursor": page.cursor,
        "only_failed": only_failed,
        "is_paused": (await view.store.stats(view.tenant, [SCHEDULES]))[0].paused,
    }


async def _page(view: View, states: frozenset[JobState], cursor: str | None, limit: int) -> SchedulePage:
    """A page of the schedules that the viewer may see.

    A token that is limited to some queues gets one page: the store's cursor would reveal other schedules.
    """
    if view.viewer.queues is None:
        return await schedule_page(view.store, view.tenant, states, cursor, limit)
    page = await schedule_page(view.store, view.tenant, states, None, SEARCHED)
    own = [one for one in page.schedules if view.sees(one.definition.target.queue)]
    return SchedulePage(own[:limit], None, page.now)


async def rows(view: View, schedules: Sequence[Schedule], now: int) -> list[ScheduleRow]:
    """What the list shows of schedules: three reads for all of them."""
    ticks = [_last_tick(one, now) for one in schedules]
    keys = [tick_key(view, one, tick) for one, tick in zip(schedules, ticks, strict=True) if tick is not None]
    jobs = {job.key: job for job in await view.store.get(keys) if job is not None} if keys else {}
    queues = sorted({one.definition.target.queue for one in schedules})
    paused = {one.queue for one in await view.store.stats(view.tenant, queues) if one.paused} if queues else set[str]()
    late = ""
    if any(one.next_at < now - LATE_MS for one in schedules):
        refusal = await over_quota(view.store, view.tenant)
        late = str(refusal) if refusal is not None else "No process that does maintenance has fired it."
    return [
        ScheduleRow(
            one, tick, None if tick is None else jobs.get(tick_key(view, one, tick)),
            one.definition.target.queue in paused, late if one.next_at < now - LATE_MS else "",
        )
        for one, tick in zip(schedules, ticks, strict=True)
    ]  # fmt: skip


def tick_key(view: View, schedule: Schedule, tick: int) -> JobKey:
    """The job of a tick."""
    return JobKey(view.tenant, schedule.definition.target.queue, f"{schedule.name}@{tick_text(tick)}")


def _last_tick(schedule: Schedule, now: int) -> int | None:
    try:
        return last_tick(schedule.definition.timing, schedule.definition.anchor, now)
    except InvalidOption:
        return None  # The time zone is not known on this machine.


async def why_stopped(view: View, schedule: Schedule) -> str:
    """Why a schedule has failed."""
    explanation = await view.queue.explain(schedule.name, queue=SCHEDULES)
    cause = explanation.has("failed")
    return "" if cause is None else cause.error or cause.text


async def found(view: View, name: str) -> Schedule:
    """The schedule of that name. One that the viewer may not see answers like one that does not exist."""
    schedule = await scheduling(view.store).get_schedule(view.tenant, check_name(name))
    if schedule is None or not view.sees(schedule.definition.target.queue):
        raise NotShown(404, "There is no such schedule.")
    return schedule


async def run(view: View, form: Form) -> Done:
    """Enqueue its job now, and show it."""
    schedule = await found(view, form.fields.get("name", ""))
    key = await run_now(view.store, view.tenant, schedule)
    to = view.url("/job", queue=key.queue, id=key.id)
    return Done(f"Enqueued {key.id}. The next tick stays as it is.", to, {"queue": key.queue, "id": key.id})


async def restart(view: View, form: Form) -> Done:
    """Make a stopped schedule wait for its next tick again."""
    schedule = await found(view, form.fields.get("name", ""))
    await view.queue.replay(schedule.name, queue=SCHEDULES, by=view.by)
    return Done(f"Started {schedule.name} again.")


async def remove(view: View, form: Form) -> Done:
    """Remove a schedule. Jobs that it has enqueued stay."""
    schedule = await found(view, form.fields.get("name", ""))
    removed = await view.queue.unschedule(schedule.name)
    says = f"Removed {schedule.name}. Its jobs stay." if removed else f"{schedule.name} was removed before."
    return Done(says, view.url("/schedules"))


PAGE = WebPage(
    "/schedules", "Schedules", "schedules.html", {"table": Fragment(read, concerns)}, nav="Schedules", key="c",
    scope=ADMIN,
    actions=(
        Action("/schedules/run", "schedule.run", PRODUCE, run, ("name",)),
        Action("/schedules/restart", "schedule.restart", ADMIN, restart, ("name",)),
        Action("/schedules/remove", "schedule.remove", ADMIN, remove, ("name",)),
    ),
)  # fmt: skip
