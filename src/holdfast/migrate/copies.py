"""How a job is copied, and how a copy is compared with its job.

The copy has the job's id, its visible time and its envelope, except for:

    max_attempts    the attempts that are left, so that the job runs as often as promised [RETRY-1]
    backoff         continues: the first delay of the copy is the next one of the job [RETRY-3]
    request_id      derived from the job's and the move's: it marks the copies of this move, and a job that moves back
                    is not mistaken for the one that was there before [ENQ-8]
    run_at          converted to the target's clock if that differs (a schedule's tick is absolute and stays)
    idempotency     the key, if the job still holds it, for the time that is left [ENQ-3]
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.job import Backoff, Envelope, IdempotencyKey, Job, JobState, NewJob
from holdfast.core.names import RESERVED, SCHEDULES

SLACK_MS = 1000
"""The most that two clocks may differ and still count as the same."""
SUM = 2**64
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class CopyMapping(Struct, frozen=True):
    """How jobs of one move map to their copies: the id of the move, and how far the target's clock is ahead."""

    move: str
    skew_ms: int = 0

    @property
    def prefix(self) -> str:
        """The prefix of the request ids of its copies."""
        return f"moved-{self.move}-"


def copy_of(job: Job, now: int, mapping: CopyMapping) -> NewJob:
    """The enqueue that makes a copy of a waiting job; `now` is the clock of the store that has it."""
    envelope = replace(job.envelope, request_id=request_id(job, mapping), idempotency=_key(job, now))
    # Attempts of schedules and flows count crashed processes: their copies get all attempts again.
    if job.attempts and not job.queue.startswith(RESERVED):
        left = max(1, envelope.max_attempts - job.attempts)
        envelope = replace(envelope, max_attempts=left, backoff=_rest(envelope.backoff, job.attempts))
    skew = 0 if job.queue == SCHEDULES else mapping.skew_ms
    return NewJob(job.key, envelope, run_at=max(0, job.visible_at + skew))


def without_key(new: NewJob) -> NewJob:
    """The same enqueue for a store in which an earlier job with this id holds the key."""
    return replace(new, envelope=replace(new.envelope, idempotency=None))


def request_id(job: Job, mapping: CopyMapping) -> str:
    """The request id of a job's copy. It depends only on the job's identity and the move."""
    facts = _encode((*job.key, job.seq, job.enqueued_at, job.envelope.request_id))
    return mapping.prefix + hashlib.blake2b(facts, digest_size=16).hexdigest()


def is_copy(job: Job, mapping: CopyMapping) -> bool:
    """Whether this move has made this job."""
    return job.envelope.request_id.startswith(mapping.prefix)


def checksum(new: NewJob) -> int:
    """A checksum of everything that should move, as read from the source."""
    return _hash(new, new.envelope, new.run_at)


def found_checksum(new: NewJob, found: Job) -> int:
    """The same checksum, if the target has the job or a copy of it under that id."""
    return _hash(new, found.envelope, _due(new, found))


def mismatch(new: NewJob, found: Job) -> str:
    """Why a job cannot be taken away from the source; empty if the target has the same job under its id."""
    foreign = found.envelope.request_id != new.envelope.request_id
    if foreign and found.state is JobState.FAILED:
        return "a dead letter has this id there; replay or purge it"
    if found.state is JobState.CANCELED:
        # Enqueuing it again is the same request, which does not revive it. [ENQ-8]
        return "it was canceled there; cancel it in SRC, too, or purge it there to have it moved"
    late = max(found.enqueued_at, new.run_at or 0) + SLACK_MS
    if foreign and not found.token and found.visible_at > late and new.key.queue != SCHEDULES:
        return "another job has this id there, and is due later"
    if _due(new, found) != new.run_at or _bare(found.envelope) != _bare(new.envelope):
        return "another job has this id there" if foreign else "its copy differs; purge it there"
    return ""


def _hash(new: NewJob, envelope: Envelope, due: int | None) -> int:
    facts = (*new.key, _bare(envelope), 0 if new.key.queue == SCHEDULES else due)
    return int.from_bytes(hashlib.blake2b(_encode(facts), digest_size=8).digest(), "big")


def _bare(envelope: Envelope) -> Envelope:
    """The part of an envelope that is compared."""
    key = envelope.idempotency
    if key is not None and key.policy in ("ttl", "forever"):
        # These keys outlive their jobs: the target may already have the key of this id.
        key = None
    return replace(envelope, request_id="", idempotency=key)


def _due(new: NewJob, found: Job) -> int | None:
    """When the found job becomes visible, if that can be compared; else the expected time."""
    if found.token or found.envelope.request_id != new.envelope.request_id:
        return new.run_at  # It was claimed since, or another program enqueued it with its own time.
    if new.key.queue == SCHEDULES:
        return new.run_at  # Each copy computes it again: see `steps.renewed`.
    # A job that was due when it was enqueued is visible from its enqueue on.
    return new.run_at if found.visible_at == max(found.enqueued_at, new.run_at or 0) else found.visible_at


def _key(job: Job, now: int) -> IdempotencyKey | None:
    """The key that the job holds, if it still does."""
    key = job.envelope.idempotency
    if key is None or (key.policy == "until_started" and job.token):
        return None
    if key.policy == "ttl":
        left = job.enqueued_at + key.ttl_ms - now
        return replace(key, ttl_ms=left) if left > 0 else None
    return key


def _rest(backoff: Backoff, attempts: int) -> Backoff:
    """The policy whose first delay is the next delay of this one."""
    base = min(float(backoff.cap_ms), backoff.base_ms * backoff.factor**attempts)
    return replace(backoff, base_ms=round(base))
