"""Calls of the hot functions in migrations/: the name of the statement, and its arguments.

A single job has functions of its own, without arrays. A column with the same value for all jobs is sent as one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.job import Extend, Finish, NewJob
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.lanes import LaneCache, TenantLane
from holdfast.stores.postgres.literals import numbers, texts

Request = tuple[str, tuple[Any, ...]]


def enqueue(items: Sequence[NewJob], lanes: Sequence[TenantLane], cache: LaneCache) -> Request | None:
    """Enqueue new jobs; None if one has a key."""
    envelopes = [item.envelope for item in items]
    if any(e.idempotency is not None for e in envelopes):
        return None
    if len(items) == 1:
        (item,), (lane,), (e,) = items, lanes, envelopes
        return "enqueue_one", (
            item.key.tenant, lane.queue_id, lane.number, item.key.id, e.type, e.request_id, 9 - e.priority,
            e.max_attempts, item.delay_ms, item.run_at, e.result_ttl_ms, rows.pack_head(e), e.payload,
            cache.fingerprint(lanes, ranks_of(items, lanes)),
        )  # fmt: skip
    run_ats = [item.run_at for item in items]
    return "enqueue", (
        list({item.key.tenant for item in items}),
        _alike([lane.queue_id for lane in lanes]),
        _alike([lane.number for lane in lanes]),
        texts([item.key.id for item in items]),
        _alike([e.type for e in envelopes]),
        texts([e.request_id for e in envelopes]),
        _alike([9 - e.priority for e in envelopes]),
        _alike([e.max_attempts for e in envelopes]),
        _alike([item.delay_ms for item in items]),
        [] if run_ats.count(None) == len(run_ats) else run_ats,
        _alike([e.result_ttl_ms for e in envelopes]),
        _alike([rows.pack_head(e) for e in envelopes]),
        [e.payload for e in envelopes],
        cache.fingerprint(lanes, ranks_of(items, lanes)),
    )


def ranks_of(items: Sequence[NewJob], lanes: Sequence[TenantLane]) -> dict[TenantLane, int]:
    """The bits of the priorities that each lane needs for these jobs."""
    ranks: dict[TenantLane, int] = {}
    for item, lane in zip(items, lanes, strict=True):
        ranks[lane] = ranks.get(lane, 0) | 1 << (9 - item.envelope.priority)
    return ranks


def complete(
    items: Sequence[Finish], lanes: Sequence[TenantLane], cache: LaneCache, seqs: list[int] | None, lock_ms: int | None
) -> Request:
    """Complete jobs. Without `seqs` they are looked up by id; without `lock_ms` the wait for locks is not limited."""
    known = cache.fingerprint(lanes)
    if len(items) == 1:
        (item,) = items
        result, seq = rows.pack_result(item.result), None if seqs is None else seqs[0]
        return "complete_one", (lanes[0].number, item.key.id, item.token, result, seq, lock_ms, known)
    return "complete", (
        _alike([lane.number for lane in lanes]),
        texts([item.key.id for item in items]),
        numbers(item.token for item in items),
        [rows.pack_result(item.result) for item in items],
        None if seqs is None else numbers(seqs),
        lock_ms,
        known,
    )


def extend(
    items: Sequence[Extend], lanes: Sequence[TenantLane], cache: LaneCache, seqs: list[int], lock_ms: int
) -> Request:
    """Renew leases."""
    return "extend", (
        _alike([lane.number for lane in lanes]),
        texts([item.key.id for item in items]),
        numbers(item.token for item in items),
        numbers(item.lease_ms for item in items),
        numbers(seqs),
        lock_ms,
        cache.fingerprint(lanes),
    )


def _alike(values: Sequence[Any]) -> Sequence[Any]:
    first = values[0]
    return [first] if all(value == first for value in values) else values
