"""Which of the reserved queues is taken care of how."""

from __future__ import annotations

from holdfast.core.names import FLOWS
from holdfast.maintenance import conductor
from holdfast.maintenance.coordinator import Duty

DUTIES = {
    FLOWS: Duty(conductor.conduct, conductor.after),
}
