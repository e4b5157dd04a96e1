"""What of a job moves, and how the copy is compared with it.

The copy has the job's id, the moment it becomes visible, and its envelope, but for:

    max_attempts    what is left of it, so that the number of runs stays as promised [RETRY-1]
    backoff         goes on where it was: the next delay is the one that would have been next [RETRY-3]
    request_id      one made from the job's and the move's: a copy is known as one of this move, and a job
                    that moves back is not taken for the one that was there before [ENQ-8]
    run_at          by the clock of the target, if that is surely another (but a tick of a schedule is an instant)
    idempotency     what is left of it: a key that the job no longer holds does not move [ENQ-3]
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
    """Which move it is, and by how much the target's clock is ahead."""

    move: str
    skew_ms: int = 0

    @property
    def mark(self) -> str:
        """With what the request ids of its copies begin."""
        return f"moved-{self.move}-"


def copy_of(job: Job, now: int, mapping: CopyMapping) -> NewJob:
    """The enqueue that makes a copy of a waiting job; `now` is the clock of the store that has it."""
    envelope = replace(job.envelope, request_id=request_id(job, mapping), idempotency=_key(job, now))
    # Schedules and flows count their leaders' deaths, and start anew in another store.
    if job.attempts and not job.queue.startswith(RESERVED):
        left = max(1, envelope.max_attempts - job.attempts)
        envelope = replace(envelope, max_attempts=left, backoff=_rest(envelope.backoff, job.attempts))
    skew = 0 if job.queue == SCHEDULES else mapping.skew_ms
    return NewJob(job.key, envelope, run_at=max(0, job.visible_at + skew))


def without_key(new: NewJob) -> NewJob:
    """The same for a store where this very id holds its key already, from an earlier life."""
    return replace(new, envelope=replace(new.envelope, idempotency=None))


def request_id(job: Job, mapping: CopyMapping) -> str:
    """The request id of a job's copy: the same as long as it is the same job and move, whatever becomes of it."""
    facts = _encode((*job.key, job.seq, job.enqueued_at, job.envelope.request_id))
    return mapping.mark + hashlib.blake2b(facts, digest_size=16).hexdigest()


def is_copy(job: Job, mapping: CopyMapping) -> bool:
    """Whether this move has made this job."""
    return job.envelope.request_id.startswith(mapping.mark)


def checksum(new: NewJob) -> int:
    """A number for all that is to move, as read from the source."""
    return _hash(new, new.envelope, new.run_at)


def found_checksum(new: NewJob, found: Job) -> int:
    """The same number, if what the target has under that id is the job, or a copy of it."""
    return _hash(new, found.envelope, _due(new, found))


def trouble(new: NewJob, found: Job) -> str:
    """Why a job cannot be taken away from the source; empty: what the target has under its id is the same."""
    foreign = found.envelope.request_id != new.envelope.request_id
    if foreign and found.state is JobState.FAILED:
        return "a dead letter has this id there; replay or purge it"
    if found.state is JobState.CANCELED:
        # Enqueuing it is the same request again, which brings nothing back. [ENQ-8]
        return "it was canceled there; cancel it in SRC, too, or purge it there to have it moved"
    late = max(found.enqueued_at, new.run_at or 0) + SLACK_MS
    if foreign and not found.token and found.visible_at > late and new.key.queue != SCHEDULES:
        return "another job has this id there, and is due later"
    if _due(new, found) != new.run_at or _bare(found.envelope) != _bare(new.envelope):
        return "another job has this id there" if foreign else "it came out differently; purge it there"
    return ""


def _hash(new: NewJob, envelope: Envelope, due: int | None) -> int:
    facts = (*new.key, _bare(envelope), 0 if new.key.queue == SCHEDULES else due)
    return int.from_bytes(hashlib.blake2b(_encode(facts), digest_size=8).digest(), "big")


def _bare(envelope: Envelope) -> Envelope:
    """What is compared of an envelope."""
    key = envelope.idempotency
    if key is not None and key.policy in ("ttl", "forever"):
        # They outlive their jobs: the target may have the key of this id already.
        key = None
    return replace(envelope, request_id="", idempotency=key)


def _due(new: NewJob, found: Job) -> int | None:
    """When the found job becomes visible, if that can be compared; else the expected time."""
    if found.token or found.envelope.request_id != new.envelope.request_id:
        return new.run_at  # Claimed since, or enqueued by another program, at a time of its own.
    if new.key.queue == SCHEDULES:
        return new.run_at  # It is decided with each copy: see `steps.renewed`.
    # What was visible when it came is visible from then on.
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
    """The policy whose first delay is the next one of this."""
    base = min(float(backoff.cap_ms), backoff.base_ms * backoff.factor**attempts)
    return replace(backoff, base_ms=round(base))
