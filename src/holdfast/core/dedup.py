"""What a second enqueue of the same id, or of the same key, answers. [ENQ-2, ENQ-3, ENQ-8]

The id is looked at first, then the key.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.job import AlreadyCompleted, Duplicate, Job, JobState, NewJob, Queued, Result
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
    """Answer an enqueue from the job that has its id and the one that holds its key; None: a fresh job."""
    answer = by_id(existing, new, now)
    if answer is not None:
        return answer
    if existing is not None and binding is not None and binding.job_id == existing.id and not forgotten(existing, now):
        return None  # The key is held by the very job that this one takes the place of.
    return by_key(binding, holder, now)


def by_id(existing: Job | None, new: NewJob, now: int) -> Answer | None:
    """Answer from the job that has this id, or None: a fresh job may take its place."""
    if existing is None:
        return None
    request_id = new.envelope.request_id
    if request_id and existing.envelope.request_id == request_id:
        # Also past its retention, while there is a trace of it: a repetition must not run the job again. [ENQ-8]
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
        # The store drops these bindings as the job ends or starts; a job that is gone holds nothing.
        if holder is None or is_terminal(holder):
            return None
        return _of(holder, now)
    if expired(binding, now):
        return None
    return _of(holder, now) if holder is not None else Duplicate(binding.job_id, None)


def expired(binding: Binding, now: int) -> bool:
    """Whether the key was held for a time that is over."""
    return binding.expires_at is not None and binding.expires_at <= now


def bind(new: NewJob, now: int) -> Binding | None:
    """The binding that an accepted enqueue makes."""
    idempotency = new.envelope.idempotency
    if idempotency is None:
        return None
    expires_at = now + idempotency.ttl_ms if idempotency.policy == "ttl" else None
    return Binding(new.key.id, idempotency.policy, expires_at)


def _of(job: Job, now: int) -> Answer:
    if job.state is JobState.COMPLETED:
        return AlreadyCompleted(job.id, job.result or _NOTHING)
    return Duplicate(job.id, shown(job, now))
