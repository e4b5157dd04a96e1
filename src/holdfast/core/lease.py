"""Whether a lease is still valid. [LEASE-1]"""

from __future__ import annotations

from holdfast.core.errors import InvalidOption, JobCanceled, JobNotFound, LeaseExpired, LeaseLost
from holdfast.core.job import LEASE_MAX, LEASE_MIN, Finished, Job, JobKey, JobState, Lease

Refusal = JobNotFound | LeaseLost | JobCanceled | LeaseExpired


def check(job: Job | None, key: JobKey, token: int, outcome: str, now: int) -> Finished | Refusal | None:
    """Check an acknowledgement. The first rule that applies refuses it. None: accept it."""
    if job is not None and token == job.token and job.spent and job.spent == outcome:
        return Finished(JobState(job.spent_state))
    return check_live(job, key, token, now)


def check_live(job: Job | None, key: JobKey, token: int, now: int) -> Refusal | None:
    """Check an extend or a progress report, which do not use up the token. None: accept it."""
    if job is None:
        return JobNotFound(key.queue, key.id)
    if token != job.token or token <= 0:
        return LeaseLost(key.queue, key.id)
    if job.state is JobState.CANCELED:
        return JobCanceled(key.queue, key.id)
    if job.spent:
        return LeaseLost(key.queue, key.id)
    if job.state is not JobState.LEASED or now >= job.deadline:
        return LeaseExpired(key.queue, key.id)
    return None


def check_under(job: Job | None, under: Lease, now: int) -> None:
    """Raise the refusal unless the lease of a call is live."""
    refusal = check_live(job, under.key, under.token, now)
    if refusal is not None:
        raise refusal


def check_lease_ms(lease_ms: int) -> int:
    """Return `lease_ms` if it is 1 s to 12 h. Raises InvalidOption."""
    if not LEASE_MIN <= lease_ms <= LEASE_MAX:
        raise InvalidOption("lease", f"{lease_ms / 1000:g} s is not from 1 second to 12 hours")
    return lease_ms
