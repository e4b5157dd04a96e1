"""Leads flows through their steps."""

from __future__ import annotations

from holdfast.core.job import Finish, Job, Result
from holdfast.maintenance.coordinator import Place


async def conduct(job: Job, at: Place) -> Finish:
    """See a flow through to its end."""
    at.watch([])
    return Finish(job.key, job.token, "complete", Result(b"null"))
