"""The answer to a second enqueue of the same id or idempotency key. [ENQ-2, ENQ-3, ENQ-8]

The id is checked first, then the key.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.errors import NotReplayable
from holdfast.core.job import AlreadyCompleted, Duplicate, Envelope, Job, JobState, NewJob, Queued, Result
from holdfast.core.lifecycle import forgotten, is_terminal, shown

Answer = Queued | Duplicate | AlreadyCompleted

_NOTHING = Result(b"null")


class Binding(Struct, frozen=True):
    """Which job holds an idempotency key, and until when (None: see `policy`)."""

    job_id: str
    policy: str
    expires_at: int | None = None


LASTING = ("ttl", "forever")
"""The policies of keys that outlive their job. [ENQ-3]"""


def decide(new: NewJob, existing: Job | None, binding: Binding | None, holder: Job | None, now: int) -> Answer | None:
    """Answer an enqueue from the job that has its id and the job that holds its key. None: make a new job."""
    answer = by_id(existing, new, now)
    if answer is not None:
        return answer
    if existing is not None and binding is not None and binding.job_id == existing.id and not forgotten(existing, now):
        return None  # The job that holds the key is the one being replaced.
    return by_key(binding, holder, now)


def by_id(existing: Job | None, new: NewJob, now: int) -> Answer | None:
    """Answer from the job that has this id, or None: a new job may replace it."""
    if existing is None:
        return None
    request_id = new.envelope.request_id
    if request_id and existing.envelope.request_id == request_id:
        # This holds past its retention, too, while its record exists: a repetition must not run the job again. [ENQ-8]
        return Queued(existing.id, shown(existing, now))
    if forgotten(existing, now):
        return None
    if existing.state is JobState.CANCELED:
        return None
    if existing.state is JobState.FAILED and new.replace_failed:
        return None
    return _of(existing, now)


def by_key(binding: Binding | None, holder: Job | None, now: int) -> Answer | None:
    """Answer from the job that holds this key, or None: the key is free."""
    if binding is None:
        return None
    if holder is not None and forgotten(holder, now):
        holder = None
    if binding.policy in ("until_terminal", "until_started"):
        # The store removes these bindings when the job ends or starts. A job that is gone holds no key.
        if holder is None or is_terminal(holder):
            return None
        return _of(holder, now)
    if expired(binding, now):
        return None
    return _of(holder, now) if holder is not None else Duplicate(binding.job_id, None)


def expired(binding: Binding, now: int) -> bool:
    """Whether the time for which the key is held is over."""
    return binding.expires_at is not None and binding.expires_at <= now


def bind(new: NewJob, now: int) -> Binding | None:
    """The binding that an accepted enqueue makes."""
    idempotency = new.envelope.idempotency
    if idempotency is None:
        return None
    expires_at = now + idempotency.ttl_ms if idempotency.policy == "ttl" else None
    return Binding(new.key.id, idempotency.policy, expires_at)


Scope = tuple[str, str, str, str]
"""Where a key is unique: tenant, queue, job type, key. [ENQ-3]"""


def scope_of(tenant: str, queue: str, envelope: Envelope) -> Scope | None:
    """The scope of an envelope's key; None if it has no key."""
    idempotency = envelope.idempotency
    return None if idempotency is None else (tenant, queue, envelope.type, idempotency.key)


def is_released(job: Job) -> bool:
    """Whether a job that has just changed releases its key: by its policy, at its start or at its end."""
    idempotency = job.envelope.idempotency
    if idempotency is None or idempotency.policy in LASTING:
        return False
    return is_terminal(job) or (idempotency.policy == "until_started" and job.state is JobState.LEASED)


def retakes_key(job: Job) -> bool:
    """Whether a replayed job takes its key again."""
    return job.envelope.idempotency is not None and job.envelope.idempotency.policy == "until_terminal"


def check_retake(job: Job, binding: Binding | None, holder: Job | None, now: int) -> NotReplayable | None:
    """Refuse to replay a job whose key another job holds. None: replay it. [ENQ-3]"""
    if binding is None or by_key(binding, holder, now) is None:
        return None
    return NotReplayable(job.queue, job.id, f"job {binding.job_id!r} holds its idempotency key by now")


def _of(job: Job, now: int) -> Answer:
    if job.state is JobState.COMPLETED:
        return AlreadyCompleted(job.id, job.result or _NOTHING)
    return Duplicate(job.id, shown(job, now))
