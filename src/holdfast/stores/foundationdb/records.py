"""Jobs, keys and other records as values, and large values in pieces."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, msgpack
from msgspec.structs import replace

from holdfast.core import budgets
from holdfast.core.codes import STATE_CODES, STATES
from holdfast.core.dedup import Binding
from holdfast.core.job import WAITING, AttemptError, Envelope, Job, JobKey, JobState, Progress, Result
from holdfast.stores.foundationdb.keyspace import Keyspace, pack

SMALL = 1024
"""Payloads up to this size are in the record of their job."""
PIECE = 90_000
"""The most bytes of one value. FoundationDB takes 100,000."""
ELSEWHERE = bytes(bytearray(b"(in pieces)"))
"""Placeholder for a payload that was not read with its record; compared by identity."""
LATER_SHIFTS = (30, 20, 10, 0)
"""Jobs that come due later are counted by their time in steps of 12 days, 17 minutes, a second and a millisecond."""
WAITING_COUNT = 0
"""The number of waiting jobs, among the counts by state."""

_encode = msgpack.Encoder().encode

_Record = tuple[
    int, Envelope, int | None, int, int, int, int, int, int, int, str, int | None, int | None, str, str, str,
    Result | None, int, int | None, Progress | None, list[AttemptError], int, str, int,
]  # fmt: skip
_decode = msgpack.Decoder(_Record).decode
_decode_binding = msgpack.Decoder(tuple[str, str, int | None]).decode


def pack_job(job: Job, apart: int | None) -> bytes:
    """A job's record. `apart`: the size of a payload that has pieces of its own."""
    envelope = job.envelope if apart is None else replace(job.envelope, payload=b"")
    return _encode((
        job.seq, envelope, apart, STATE_CODES[job.state], job.visible_at, job.enqueued_at, job.attempts, job.events,
        job.token, job.deadline, job.worker_id, job.claimed_at, job.finished_at, job.spent, job.spent_state,
        job.reason, job.result, job.result_ttl_ms, job.expires_at, job.progress, job.errors, job.replays,
        job.released_for, job.first_released_at,
    ))  # fmt: skip


def unpack_job(key: JobKey, raw: bytes) -> tuple[Job, int | None]:
    """The job of a record, without a payload that has pieces of its own, and the size of such a payload."""
    (
        seq, envelope, apart, state, visible_at, enqueued_at, attempts, events, token, deadline, worker_id, claimed_at,
        finished_at, spent, spent_state, reason, result, ttl, expires_at, progress, errors, replays, released_for,
        first_released_at,
    ) = _decode(raw)  # fmt: skip
    if apart is not None:
        envelope = replace(envelope, payload=ELSEWHERE)
    job = Job(
        key.tenant, key.queue, key.id, seq, envelope, STATES[state], visible_at, enqueued_at, attempts, token, deadline,
        worker_id, claimed_at, finished_at, spent, spent_state, reason, result, ttl, expires_at, progress, errors,
        replays, events, released_for, first_released_at,
    )  # fmt: skip
    return job, apart


def weight(job: Job, apart: int | None) -> int:
    """What a job counts in `Usage.bytes`."""
    size = len(job.envelope.payload) if apart is None else apart
    return budgets.RECORD_BYTES + size + budgets.varying(job)


def cut(value: bytes) -> list[bytes]:
    """A value in pieces."""
    return [value[at : at + PIECE] for at in range(0, len(value), PIECE)] or [b""]


def rank_of(job: Job) -> int:
    """Jobs of a lower rank are claimed first."""
    return 9 - job.envelope.priority


def indexed(keys: Keyspace, job: Job) -> dict[bytes, bytes]:
    """The keys that lead to a job in its present state, with their values."""
    tenant, queue, id_ = job.key
    code = STATE_CODES[job.state]
    if job.state in WAITING:
        return {keys.waiting(tenant, queue) + pack(rank_of(job), job.visible_at, job.seq, id_): bytes((code,))}
    if job.state is JobState.LEASED:
        return {
            keys.leased(tenant, queue) + pack(job.deadline, job.seq, id_): b"",
            keys.deadline(job.deadline, job.key, job.seq): b"",
        }
    return {
        keys.ended(tenant, queue, code) + pack(job.finished_at or 0, job.seq, id_): b"",
        keys.retained(tenant, queue) + pack(job.expires_at or 0, job.seq, id_): bytes((code,)),
    }


def counted(keys: Keyspace, job: Job, apart: int | None) -> dict[bytes, int]:
    """What a job adds to the counts in its present state."""
    tenant, queue, _ = job.key
    waits = job.state in WAITING
    state = WAITING_COUNT if waits else STATE_CODES[job.state]
    counts = {
        keys.lane_jobs(tenant, queue): 1,
        keys.tenant_jobs(tenant): 1,
        keys.lane_counts(tenant, queue) + pack(state): 1,
        keys.kept(tenant, "bytes"): weight(job, apart),
    }
    if waits:
        counts[keys.kept(tenant, "waiting")] = 1
    if waits and job.state is not JobState.READY:
        later, code = keys.later_counts(tenant, queue), STATE_CODES[job.state]
        counts |= {later + pack(shift, code, job.visible_at >> shift): 1 for shift in LATER_SHIFTS}
    return counts


def pack_binding(binding: Binding) -> bytes:
    """Which job holds an idempotency key."""
    return _encode((binding.job_id, binding.policy, binding.expires_at))


def unpack_binding(raw: bytes) -> Binding:
    """Which job holds an idempotency key."""
    return Binding(*_decode_binding(raw))


def number(raw: bytes | None) -> int:
    """A count."""
    return int.from_bytes(raw or b"", "little", signed=True)


class Purges(Struct, frozen=True, array_like=True):
    """The purges of a tenant."""

    series: int
    count: int
    at: int


to_purges = msgpack.Decoder(Purges).decode


def encode(value: Any) -> bytes:
    """A value of few fields."""
    return _encode(value)
