"""The calls that change jobs: each is one script, on the shards of the jobs' tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast
from uuid import uuid4

from holdfast.core.codes import STATE_CODES, STATES
from holdfast.core.errors import JobCanceled, JobNotFound, LeaseExpired, LeaseLost, NotReplayable, QuotaExceeded
from holdfast.core.job import (
    AlreadyCompleted,
    Cancel,
    CancelStatus,
    Duplicate,
    Extend,
    Extended,
    Finish,
    Finished,
    JobKey,
    JobState,
    Lease,
    NewJob,
    Purge,
    PurgeStatus,
    Queued,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.core.lease import Refusal
from holdfast.store import EnqueueAnswer, ExtendAnswer, FinishAnswer, ReplayAnswer, ReportAnswer
from holdfast.stores.redis import layout, records
from holdfast.stores.redis.keys import lane_of
from holdfast.stores.redis.layout import NONE
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import Shards

_REFUSALS: dict[int, Callable[[str, str], Refusal]] = {
    layout.REFUSED_NOT_FOUND: JobNotFound,
    layout.REFUSED_LEASE_LOST: LeaseLost,
    layout.REFUSED_JOB_CANCELED: JobCanceled,
    layout.REFUSED_LEASE_EXPIRED: LeaseExpired,
}
_FINISHED = tuple(Finished(state) for state in STATES)
_CANCELED: dict[int, CancelStatus] = {
    layout.REFUSED_NOT_FOUND: "not_found",
    STATE_CODES[JobState.LEASED]: "processing",
    STATE_CODES[JobState.COMPLETED]: "completed",
    STATE_CODES[JobState.FAILED]: "failed",
    STATE_CODES[JobState.CANCELED]: "canceled",
}
_PURGED: dict[int, PurgeStatus] = {
    layout.REFUSED_NOT_FOUND: "not_found",
    layout.NOT_TERMINAL: "not_terminal",
    layout.DONE: "purged",
}
_UPDATED: dict[int, TtlStatus] = {
    layout.REFUSED_NOT_FOUND: "not_found",
    layout.NOT_TERMINAL: "not_terminal",
    layout.DONE: "updated",
}
_ITEM_OVERHEAD = 200
"""The approximate size of an item without its payload or result, in bytes."""


async def enqueue(shards: Shards, items: Sequence[NewJob], under: Lease | None) -> list[EnqueueAnswer]:
    """Enqueue jobs, in the order of the items."""
    # Without a request id, a repeated call would be answered as a duplicate of itself. [ENQ-8]
    repeat = all(item.envelope.request_id for item in items)
    pack = records.enqueue_request if under is None else partial(records.enqueue_request, under=under)
    answers = await shards.run_batch("enqueue", items, _tenant_of, pack, _size_of_new, repeat=repeat)
    _check_parent(under, answers)
    return [_enqueued(item.key, answer) for item, answer in zip(items, answers, strict=True)]


async def finish(shards: Shards, items: Sequence[Finish]) -> list[FinishAnswer]:
    """Complete, fail, retry or release jobs."""
    answers = await shards.run_batch("finish", items, _tenant_of, records.finish_request, _size_of_finish, repeat=True)
    return [
        _FINISHED[answer] if answer >= 0 else _refused(item.key, answer)
        for item, answer in zip(items, answers, strict=True)
    ]


async def extend(shards: Shards, items: Sequence[Extend]) -> list[ExtendAnswer]:
    """Extend leases."""

    def pack(piece: Sequence[Extend]) -> tuple[bytes]:
        return (encode([(*_address(item.key), item.token, item.lease_ms) for item in piece]),)

    answers = await shards.run_batch("extend", items, _tenant_of, pack, repeat=True)
    return [
        _refused(item.key, answer) if isinstance(answer, int) else Extended(answer[0], answer[1])
        for item, answer in zip(items, answers, strict=True)
    ]


async def report(shards: Shards, items: Sequence[Report]) -> list[ReportAnswer]:
    """Record progress."""

    def pack(piece: Sequence[Report]) -> tuple[bytes]:
        parts = [(*_address(item.key), item.token, item.progress.fraction, item.progress.message) for item in piece]
        return (encode(parts),)

    answers = await shards.run_batch("report", items, _tenant_of, pack, repeat=True)
    return [
        Reported() if answer == layout.DONE else _refused(item.key, answer)
        for item, answer in zip(items, answers, strict=True)
    ]


async def cancel(shards: Shards, items: Sequence[Cancel]) -> list[CancelStatus]:
    """Cancel jobs."""

    def pack(piece: Sequence[Cancel]) -> tuple[bytes]:
        parts = [(*_address(item.key), item.only_waiting, _or_none(item.seq), item.by) for item in piece]
        return (encode((uuid4().hex, parts)),)

    return [_CANCELED[a] for a in await shards.run_batch("cancel", items, _tenant_of, pack, repeat=True)]


async def replay(shards: Shards, keys: Sequence[JobKey], under: Lease | None, by: str) -> list[ReplayAnswer]:
    """Replay failed jobs."""

    def pack(piece: Sequence[JobKey]) -> tuple[bytes]:
        return (encode(([_address(key) for key in piece], records.parent_lease(under), by)),)

    answers = await shards.run_batch("replay", keys, lambda key: key.tenant, pack, repeat=False)
    _check_parent(under, answers)
    return [_replayed(key, answer) for key, answer in zip(keys, answers, strict=True)]


async def purge(shards: Shards, items: Sequence[Purge]) -> list[PurgeStatus]:
    """Forget finished jobs now."""

    def pack(piece: Sequence[Purge]) -> tuple[bytes]:
        parts = [(*_address(item.key), _or_none(item.finished_at), _or_none(item.seq), item.by) for item in piece]
        return (encode(parts),)

    return [_PURGED[a] for a in await shards.run_batch("purge", items, _tenant_of, pack, repeat=False)]


async def set_result_ttl(shards: Shards, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
    """Change how long finished jobs are kept."""

    def pack(piece: Sequence[SetResultTtl]) -> tuple[bytes]:
        parts = [(*_address(item.key), item.ttl_ms, _or_none(item.seq)) for item in piece]
        return (encode((uuid4().hex, parts)),)

    return [_UPDATED[a] for a in await shards.run_batch("set_result_ttl", items, _tenant_of, pack, repeat=True)]


def _tenant_of(item: Any) -> str:
    return item.key.tenant


def _address(key: JobKey) -> tuple[str, str]:
    return lane_of(key.tenant, key.queue), key.id


def _size_of_new(item: NewJob) -> int:
    return _ITEM_OVERHEAD + len(item.envelope.payload)


def _size_of_finish(item: Finish) -> int:
    return _ITEM_OVERHEAD + (len(item.result.data) if item.result is not None else 0)


def _or_none(number: int | None) -> int:
    return NONE if number is None else number


def _refused(key: JobKey, answer: int) -> Refusal:
    return _REFUSALS[answer](key.queue, key.id)


def _check_parent(under: Lease | None, answers: Iterable[Any]) -> None:
    """Raise if the lease that a call was made under is over."""
    if under is None:
        return
    for answer in answers:
        if isinstance(answer, list) and answer[0] == layout.PARENT_REFUSED:
            raise _refused(under.key, cast("int", answer[1]))


def _enqueued(key: JobKey, answer: int | list[Any]) -> EnqueueAnswer:
    if isinstance(answer, int):
        return Queued(key.id, STATES[answer])
    tag, *rest = answer
    if tag == layout.OVER_QUOTA:
        return _over_quota(key, rest)
    id_, found = rest
    if tag == layout.ALREADY_COMPLETED:
        return AlreadyCompleted(id_.decode(), records.to_result(found))
    return Duplicate(id_.decode(), None if found == NONE else STATES[cast("int", found)])


def _replayed(key: JobKey, answer: int | list[Any]) -> ReplayAnswer:
    if isinstance(answer, int):
        return Replayed() if answer == layout.DONE else JobNotFound(key.queue, key.id)
    tag, *rest = answer
    if tag == layout.OVER_QUOTA:
        return _over_quota(key, rest)
    if tag == layout.KEY_HELD:
        reason = f"job {rest[0].decode()!r} holds its idempotency key by now"
    else:
        reason = f"it is {STATES[rest[0]]}, not failed"
    return NotReplayable(key.queue, key.id, reason)


def _over_quota(key: JobKey, values: list[int]) -> QuotaExceeded:
    of_queue, waiting, limit = values
    return QuotaExceeded(key.queue if of_queue else None, waiting, limit)
