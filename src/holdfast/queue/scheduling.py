"""Jobs by the clock: put, look at and remove schedules."""

from __future__ import annotations

from typing import Any, cast

from holdfast.core.schedule import Timing, target_of
from holdfast.extensions import ScheduleKeeper
from holdfast.jobs.options import EnqueueOptions, ScheduleOptions, Seconds
from holdfast.queue.connection import Connection
from holdfast.queue.enqueue import Producer, as_message, options_of
from holdfast.queue.records import Schedule
from holdfast.schedules.schedules import check_plain, scheduling
from holdfast.schedules.ticks import check_name, timing


def check_timing(connection: Connection, name: str, cron: str | None, every: Seconds | None, timezone: str) -> Timing:
    """When a schedule of this name is to fire. Raises InvalidName or InvalidOption."""
    check_name(name)
    return timing(cron, every, timezone, here=not isinstance(connection.live, ScheduleKeeper))


async def put(
    connection: Connection, producer: Producer, name: str, message: Any, when: Timing, options: ScheduleOptions
) -> Schedule:
    """Start or replace a schedule. Raises InvalidOption, InvalidPayload, PayloadTooLarge or QuotaExceeded."""
    item = as_message(message)
    new = producer.new_job(item, check_plain(options_of(item, cast("EnqueueOptions", options))), None)
    stored = scheduling(connection.live).put_schedule(connection.tenant, name, when, target_of(new))
    return Schedule(await connection.counted("schedule", stored))


async def list_all(connection: Connection) -> list[Schedule]:
    """The tenant's schedules, by name."""
    found = scheduling(connection.live).list_schedules(connection.tenant)
    return [Schedule(one) for one in await connection.counted("schedules", found)]


async def get(connection: Connection, name: str) -> Schedule | None:
    """A schedule, or None. [TENANT-2]"""
    got = scheduling(connection.live).get_schedule(connection.tenant, check_name(name))
    found = await connection.counted("schedules", got)
    return None if found is None else Schedule(found)


async def remove(connection: Connection, name: str) -> bool:
    """End a schedule. Returns whether there was one."""
    removed = scheduling(connection.live).remove_schedule(connection.tenant, check_name(name))
    return await connection.counted("schedule", removed)
