"""Which of the reserved queues is taken care of how."""

from __future__ import annotations

from holdfast.core.names import FLOWS, SCHEDULES
from holdfast.maintenance.conductor import conduct
from holdfast.maintenance.coordinator import Duty
from holdfast.maintenance.scheduler import tick

DUTIES = {
    SCHEDULES: Duty(tick),
    FLOWS: Duty(conduct),
}
