"""Canceling a job, or a flow with its steps. [CANCEL-1]"""

from __future__ import annotations

from holdfast.core.job import Cancel, JobKey, JobState
from holdfast.core.names import FLOWS, check_by
from holdfast.extensions import SingleTenant
from holdfast.flows.flow import end_steps
from holdfast.queue.connection import Connection
from holdfast.queue.records import Cancellation


async def cancel_job(connection: Connection, key: JobKey, *, only_waiting: bool, by: str = "") -> Cancellation:
    """Cancel a job. Canceling a flow cancels its steps. `by`: the operator who acts. [CANCEL-1]"""
    connection.check_open()
    is_flow = key.queue == FLOWS and not isinstance(connection.store, SingleTenant)
    # Read the flow first: if canceled jobs are not kept, its steps are unknown afterwards.
    flow = await connection.gets(key) if is_flow else None
    status = await connection.cancels(Cancel(key, only_waiting, by=check_by(by)))
    if is_flow and status == "canceled":
        flow = await connection.gets(key) or flow
        if flow is not None:
            await end_steps(connection.live, flow, JobState.CANCELED, by)
    return Cancellation(status)
