"""The handlers of system jobs, by reserved queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.core.names import FLOWS, GAUGES, SCHEDULES
from holdfast.maintenance import flows, gauges, scheduler
from holdfast.maintenance.system_jobs import SystemHandler
from holdfast.telemetry import gauges as exported

if TYPE_CHECKING:
    from holdfast.core.job import Finish, Job
    from holdfast.maintenance.system_jobs import SystemContext

SYSTEM_HANDLERS = {
    SCHEDULES: SystemHandler(scheduler.serve),
    FLOWS: SystemHandler(flows.serve, flows.clean_up),
}


def system_handlers(tenant: str | None) -> Mapping[str, SystemHandler]:
    """The handlers for one tenant or for all: gauges are of all tenants, and only if this process exports them."""
    current = exported.current
    if tenant is not None or current is None:
        return SYSTEM_HANDLERS

    async def serve(_: Job, context: SystemContext) -> Finish:
        return await gauges.serve(current, context)

    return {**SYSTEM_HANDLERS, GAUGES: SystemHandler(serve)}
