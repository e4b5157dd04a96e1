"""Which of the reserved queues is taken care of how."""

from __future__ import annotations

from holdfast.core.names import FLOWS, SCHEDULES
from holdfast.maintenance import flows, scheduler
from holdfast.maintenance.coordinator import Duty

DUTIES = {
    SCHEDULES: Duty(scheduler.serve),
    FLOWS: Duty(flows.conduct, flows.after),
}
