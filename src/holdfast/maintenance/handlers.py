"""The handlers of system jobs, by reserved queue."""

from __future__ import annotations

from holdfast.core.names import FLOWS, SCHEDULES
from holdfast.maintenance import flows, scheduler
from holdfast.maintenance.system_jobs import SystemHandler

SYSTEM_HANDLERS = {
    SCHEDULES: SystemHandler(scheduler.serve),
    FLOWS: SystemHandler(flows.serve, flows.clean_up),
}
