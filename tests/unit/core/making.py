"""Jobs in any state, made without a store."""

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.job import AttemptError, Backoff, Envelope, Finish, Job, JobKey, JobState, NewJob, Result

KEY = JobKey("acme", "emails", "job-1")
NOW = 1_000_000
LEASE = 30_000
BOOM = AttemptError("Boom", "it broke", "trace")
NO_JITTER = Backoff(base_ms=1000, factor=2.0, cap_ms=60_000, jitter="none")


def new(delay_ms=0, run_at=None, replace_failed=False, **fields):
    fields = {"backoff": NO_JITTER, **fields}
    return NewJob(KEY, Envelope("mail", b"{}", **fields), delay_ms, run_at, replace_failed)


def finish(outcome, token=7, **fields):
    return Finish(KEY, token, outcome, error=fields.pop("error", BOOM), **fields)


def job_in(state: JobState, token=7, **fields) -> Job:
    """A job in this state, made by the transitions themselves; blocked ones are made by hand."""
    job, _ = lifecycle.enqueue(new(delay_ms=500 if state is JobState.SCHEDULED else 0, **fields), 1, NOW)
    if state is JobState.BLOCKED:
        return replace(job, state=state)
    if state in (JobState.SCHEDULED, JobState.READY):
        return job
    lifecycle.claim(job, token, NOW + LEASE, "worker-1", NOW)
    if state is JobState.COMPLETED:
        lifecycle.finish(job, finish("complete", token, error=None, result=Result(b"1")), NOW)
    elif state is JobState.FAILED:
        lifecycle.finish(job, finish("fail", token), NOW)
    elif state is JobState.RETRYING:
        lifecycle.finish(job, finish("retry", token), NOW)
    elif state is JobState.CANCELED:
        lifecycle.cancel(job, NOW)
    assert job.state is state
    return job
