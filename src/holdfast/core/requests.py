"""Checks of calls on named jobs, before anything changes.

A check returns the answer if the call must change nothing. None: make the transition of `core.lifecycle`. `job` is
None if there is no such job.
"""

from __future__ import annotations

from holdfast.core.errors import JobNotFound, NotReplayable
from holdfast.core.job import (
    TERMINAL,
    Cancel,
    CancelStatus,
    Job,
    JobKey,
    JobState,
    Purge,
    PurgeStatus,
    SetResultTtl,
    TtlStatus,
)
from holdfast.core.lifecycle import is_life, shown


def check_cancel(job: Job | None, item: Cancel) -> CancelStatus | None:
    """Check a cancel. [CANCEL-1, CANCEL-2, CANCEL-3]"""
    if job is None or not is_life(job, item.seq):
        return "not_found"
    if job.state is JobState.COMPLETED or job.state is JobState.FAILED or job.state is JobState.CANCELED:
        return job.state.value
    return "processing" if job.state is JobState.LEASED and item.only_waiting else None


def check_replay(job: Job | None, key: JobKey, now: int) -> JobNotFound | NotReplayable | None:
    """Check a replay, except for its idempotency key (`dedup.check_retake`) and its quota. [DEAD-1, STATE-3]"""
    if job is None:
        return JobNotFound(key.queue, key.id)
    if job.state is not JobState.FAILED:
        return NotReplayable(key.queue, key.id, f"it is {shown(job, now)}, not failed")
    return None


def check_purge(job: Job | None, item: Purge) -> PurgeStatus | None:
    """Check a purge. [KEEP-1]"""
    if job is None or not is_life(job, item.seq):
        return "not_found"
    if job.state not in TERMINAL or (item.finished_at is not None and item.finished_at != job.finished_at):
        return "not_terminal"
    return None


def check_result_ttl(job: Job | None, item: SetResultTtl) -> TtlStatus | None:
    """Check a change of how long a finished job is kept. [RESULT-1]"""
    if job is None or not is_life(job, item.seq):
        return "not_found"
    return None if job.state in TERMINAL else "not_terminal"
