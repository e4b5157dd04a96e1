"""Converts jobs, schedules, events and counts to answers.

Fields are given in the order of their struct: msgspec searches for each keyword that is out of order.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from datetime import datetime

import msgspec
from msgspec import UNSET, Raw

from holdfast.core import events as core_events
from holdfast.core.errors import InvalidOption
from holdfast.core.job import Backoff, Claimed, Job, JobState, Result
from holdfast.core.policy import KnownTypes, TypeInfo
from holdfast.core.schedule import Schedule
from holdfast.core.times import moment
from holdfast.protocol import answers
from holdfast.service.proofs import Proofs
from holdfast.store import QueueStats


def raw(data: bytes, codec: str) -> Raw:
    """A payload or result in an answer: JSON unchanged, the bytes of other codecs in base64."""
    return Raw(data) if codec == "json" else Raw(msgspec.json.encode(base64.b64encode(data).decode()))


def codec_name(codec: str) -> str:
    """The name of a codec. msgspec omits a default only if it is the same object."""
    return "json" if codec == "json" else codec


def claimed(answer: Claimed, waited_s: float, proofs: Proofs) -> answers.Claimed:
    """The answer to a claim. It has no `next_at`, which depends on other tenants' leases too. [TENANT-2]"""
    moments = _Moments()
    jobs = [_claimed_job(job, proofs.sign(job.tenant, job.queue, job.id, job.token), moments) for job in answer.jobs]
    return answers.Claimed(jobs=jobs, now=moment(answer.now), waited_s=waited_s)


class _Moments(dict[int, datetime]):
    """Instants by milliseconds. Jobs of one claim share their deadline, and often the other instants."""

    def __missing__(self, ms: int) -> datetime:
        at = self[ms] = moment(ms)
        return at


def _claimed_job(job: Job, proof: str, moments: _Moments) -> answers.ClaimedJob:
    envelope = job.envelope
    # By position, which takes a third of the time of keywords.
    return answers.ClaimedJob(
        job.queue,
        job.id,
        envelope.type,
        raw(envelope.payload, envelope.codec),
        proof,
        job.token,
        job.attempts,
        envelope.max_attempts,
        moments[job.deadline],
        envelope.priority,
        moments[job.enqueued_at],
        moments[job.visible_at],
        codec_name(envelope.codec),
        envelope.version,
        None if envelope.timeout_ms is None else envelope.timeout_ms / 1000,
        envelope.headers,
        _released(job) if job.released_for else None,
        job.events,
    )


def _released(job: Job) -> answers.Released | None:
    if not job.released_for:
        return None
    return answers.Released(reason=job.released_for, since=moment(job.first_released_at))


def job(found: Job, blob: bytes | None = None) -> answers.Job:
    """A job. A result in the blob store is included only if `blob` has its bytes."""
    envelope, result = found.envelope, found.result
    progress = found.progress
    return answers.Job(
        id=found.id,
        tenant=found.tenant,
        queue=found.queue,
        type=envelope.type,
        state=found.state,
        attempts=found.attempts,
        max_attempts=envelope.max_attempts,
        priority=envelope.priority,
        replays=found.replays,
        sequence=found.seq,
        request_id=envelope.request_id,
        enqueued_at=moment(found.enqueued_at),
        visible_at=moment(found.visible_at),
        payload=raw(envelope.payload, envelope.codec),
        codec=codec_name(envelope.codec),
        version=envelope.version,
        claimed_at=None if found.claimed_at is None else moment(found.claimed_at),
        finished_at=None if found.finished_at is None else moment(found.finished_at),
        expires_at=None if found.expires_at is None else moment(found.expires_at),
        deadline=moment(found.deadline) if found.state is JobState.LEASED else None,
        worker_id=found.worker_id or None,
        idempotency_key=None if envelope.idempotency is None else envelope.idempotency.key,
        reason=found.reason or None,
        progress=None
        if progress is None
        else answers.ProgressInfo(fraction=progress.fraction, message=progress.message),
        errors=[
            answers.AttemptInfo(
                type=error.type,
                message=error.message,
                traceback=error.traceback,
                attempt=error.attempt,
                at=moment(error.at),
            )
            for error in found.errors
        ],
        result=value(result, blob),
        result_codec=codec_name(result.codec if result else "json"),
        fence=found.token,
        timeout_s=None if envelope.timeout_ms is None else envelope.timeout_ms / 1000,
        trace=envelope.headers,
        events=found.events,
        released=_released(found),
    )


def value(result: Result | None, blob: bytes | None) -> Raw | msgspec.UnsetType:
    """The value of a result; unset if there is none, or if it is in the blob store and `blob` is None."""
    if result is None or (result.blob and blob is None):
        return UNSET
    return raw(result.data if blob is None else blob, result.codec)


def outcome(found: Job, blob: bytes | None) -> answers.Outcomes:
    """The state of a job, and its result or error."""
    error = None
    if found.state is JobState.FAILED:
        last = found.errors[-1] if found.errors else None
        kind, message = (last.type, last.message) if last else ("", "")
        error = answers.FailedWith(reason=found.reason, type=kind, message=message)
    codec = codec_name(found.result.codec if found.result else "json")
    return answers.Outcomes(state=found.state, result=value(found.result, blob), codec=codec, error=error)


def schedule(tenant: str, found: Schedule) -> answers.Schedule:
    """A schedule."""
    timing, target = found.definition.timing, found.definition.target
    envelope = target.envelope
    backoff = envelope.backoff
    return answers.Schedule(
        tenant=tenant,
        name=found.name,
        state=found.state,
        next_at=moment(found.next_at),
        created_at=moment(found.created_at),
        queue=target.queue,
        type=envelope.type,
        payload=raw(envelope.payload, envelope.codec),
        priority=envelope.priority,
        max_attempts=envelope.max_attempts,
        result_ttl_s=envelope.result_ttl_ms / 1000,
        cron=timing.cron,
        every_s=None if timing.every_ms is None else timing.every_ms / 1000,
        timezone="UTC" if timing.timezone == "UTC" else timing.timezone,
        codec=codec_name(envelope.codec),
        version=envelope.version,
        timeout_s=None if envelope.timeout_ms is None else envelope.timeout_ms / 1000,
        retry=None if backoff == Backoff() else _retry(backoff),
    )


def types(known: KnownTypes, cursor: str, limit: int) -> answers.Types:
    """A page of the types that workers run. A queue counts as one more than its types. Raises InvalidOption."""
    if cursor and not cursor.startswith((_QUEUE, _TYPE)):
        raise InvalidOption("cursor", "not a cursor of this list")
    keys = sorted([*map(_QUEUE.__add__, known.queues), *map(_TYPE.__add__, known.types)])
    page = answers.Types(types=[], queues=[], cursor=None)
    for key in keys[bisect_right(keys, cursor) :]:
        if limit <= 0:
            break
        kind, _, name = key.partition(".")
        limit -= 1
        if f"{kind}." == _QUEUE:
            names = known.queues[name]
            limit -= len(names or ())
            page.queues.append(answers.ServedQueue(queue=name, types=None if names is None else sorted(names)))
        else:
            page.types.append(_type(known.types[name]))
        page.cursor = None if key == keys[-1] else key
    return page


_QUEUE, _TYPE = "queue.", "type."


def _type(one: TypeInfo) -> answers.KnownType:
    return answers.KnownType(
        name=one.name, queue=one.queue, max_attempts=one.max_attempts, retry=_retry(one.backoff),
        timeout_s=None if one.timeout_ms is None else one.timeout_ms / 1000, priority=one.priority,
        result_ttl_s=one.result_ttl_ms / 1000,
    )  # fmt: skip


def _retry(backoff: Backoff) -> answers.RetryInfo:
    return answers.RetryInfo(
        base_s=backoff.base_ms / 1000, factor=backoff.factor, cap_s=backoff.cap_ms / 1000, jitter=backoff.jitter
    )


def stats(found: QueueStats) -> answers.QueueStats:
    """Counts of a queue, for every state."""
    oldest = found.oldest_ready_at
    return answers.QueueStats(
        queue=found.queue,
        counts={state.value: found.counts.get(state, 0) for state in JobState},
        oldest_ready_age_s=None if oldest is None else max(0, found.now - oldest) / 1000,
        paused=found.paused,
        oldest_ready_at=None if oldest is None else moment(oldest),
    )


def event(found: core_events.Event) -> answers.Event:
    """One event."""
    return answers.Event(
        kind=found.kind,
        job_id=found.job_id,
        queue=found.queue,
        tenant=found.tenant,
        type=found.type,
        at=moment(found.at),
        attempt=found.attempt,
        token=found.token,
        worker_id=found.worker_id,
        offset=found.offset,
        data=found.data,
        number=found.number,
    )
