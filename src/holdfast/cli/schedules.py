"""Schedules: list, add, remove."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.audit import audited
from holdfast.cli.enqueue import read_payload
from holdfast.cli.options import Json, QueueName, Store, Tenant
from holdfast.cli.output import emit, moment, say, show, span, when
from holdfast.cli.session import with_queue
from holdfast.core.errors import InvalidOption, JobNotFound
from holdfast.jobs.moments import duration

if TYPE_CHECKING:
    from holdfast.queue.queue import Queue
    from holdfast.queue.records import Schedule

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="Schedules: jobs enqueued by the clock.", no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_schedules)
    group.command()(add)
    group.command()(remove)
    app.add_typer(group, name="schedule")


def list_schedules(*, store: Store = None, tenant: Tenant = None, json: Json = False) -> None:
    """List the tenant's schedules by name, each with its next tick."""
    found = with_queue(store, tenant, lambda bound: bound.schedules())
    if json:
        emit({"schedules": [one.as_dict() for one in found]})
        return
    rows = [
        [one.name, _timing(one), one.timezone if one.cron else "", when(one.next_at, 2), one.queue, one.type, one.state]
        for one in found
    ]
    columns = ["name", "when", "time zone", "next", "queue", "type", "state"]
    show(columns, rows, "No schedules yet: add one with `holdfast schedule add`.")


def add(
    name: NameArgument,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The job type, or - for a payload without one.")],
    *,
    store: Store = None,
    tenant: Tenant = None,
    cron: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="A cron expression of five fields, such as '30 2 * * *'.")
    ] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="The interval, instead of --cron.")] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="The time zone of --cron, such as Europe/Berlin.")
    ] = "UTC",
    queue: QueueName = "default",
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="The arguments, as JSON.")] = None,
    payload_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read the arguments from a file; - is standard input.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="From 0 (last) to 9 (first).")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="The most runs of each job. Default: 4; that of its @job is not used.")
    ] = None,
    json: Json = False,
) -> None:
    """Add a schedule, or replace the one of that name.

    Without --payload or --payload-file the payload is read from standard input, as in `holdfast enqueue`.
    """
    from holdfast.jobs.definition import Message

    if (cron is None) == (every is None):
        raise InvalidOption("cron", "give either --cron '30 2 * * *' or --every 10m")
    if every is not None and timezone != "UTC":
        raise InvalidOption("timezone", "--timezone needs --cron; an interval has no time zone")
    message = Message.raw(read_payload(type, payload, payload_file), "" if type == "-" else type)
    interval = duration("every", every)

    async def act(bound: Queue) -> Schedule:
        return await bound.schedule(
            name, message, cron=cron, every=interval, timezone=timezone,
            queue=queue, priority=priority, max_attempts=max_attempts,
        )  # fmt: skip

    with audited("schedule.put", store, tenant, name=name, queue=queue, type=type, cron=cron, every=every):
        made = with_queue(store, tenant, act, create=True)
    if json:
        emit(made.as_dict())
    else:
        say(f"scheduled {made.name}: next {moment(made.next_at)}, to queue {made.queue}")


def remove(name: NameArgument, *, store: Store = None, tenant: Tenant = None, json: Json = False) -> None:
    """Remove a schedule. Jobs that it has enqueued stay."""
    from holdfast.core.names import SCHEDULES

    with audited("schedule.remove", store, tenant, name=name):
        if not with_queue(store, tenant, lambda bound: bound.unschedule(name)):
            raise JobNotFound(SCHEDULES, name)
    if json:
        emit({"name": name, "status": "removed"})
    else:
        say(f"removed {name}")


def _timing(schedule: Schedule) -> str:
    return schedule.cron or f"every {re.sub(' 0[hms]$', '', span(schedule.every))}"
