"""Taking jobs in. [ENQ-1 to ENQ-8]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core import dedup, lifecycle
from holdfast.core.dedup import Binding
from holdfast.core.job import JobKey, JobState, NewJob, Queued
from holdfast.store import EnqueueAnswer
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.lanes import Lane, Memory
from holdfast.stores.postgres.link import Link, Session
from holdfast.stores.postgres.quotas import Quotas
from holdfast.stores.postgres.unit import KeyScope, News, Unit, scope_of


async def make_lanes(link: Link, memory: Memory, items: Sequence[NewJob]) -> list[Lane]:
    """The lane of each item. New ones, and new priorities, are committed before any job that needs them. [ENQ-7]"""
    ranks: dict[tuple[str, str], int] = {}
    for item in items:
        names = item.key[:2]
        ranks[names] = ranks.get(names, 0) | 1 << (9 - item.envelope.priority)
    for (tenant, queue), bits in ranks.items():
        lane = memory.find(tenant, queue)
        if lane is None or lane.ranks & bits != bits:
            await add_lane(link, memory, tenant, queue, bits)
    found: list[Lane] = []
    for item in items:
        lane = memory.find(item.key.tenant, item.key.queue)
        if lane is not None:
            found.append(lane)
    return found


async def add_lane(link: Link, memory: Memory, tenant: str, queue: str, ranks: int = 0) -> Lane:
    """Make a lane, or add priorities to it."""
    if memory.line(queue).number is None:
        await link.rows("add_line", queue, repeat=True)
    (row,) = await link.rows("add_lane", tenant, queue, ranks, repeat=True)
    return memory.learn(*row.values())


def fresh_request(items: Sequence[NewJob], lanes: Sequence[Lane]) -> tuple[Any, ...] | None:
    """What the function `enqueue` is asked, or None if it is not for these."""
    envelopes = [item.envelope for item in items]
    if any(e.idempotency is not None for e in envelopes):
        return None
    run_ats = [item.run_at for item in items]
    return (
        list({item.key.tenant for item in items}),
        _alike([lane.line for lane in lanes]),
        _alike([lane.number for lane in lanes]),
        [item.key.id for item in items],
        _alike([e.type for e in envelopes]),
        [e.request_id for e in envelopes],
        _alike([9 - e.priority for e in envelopes]),
        _alike([e.max_attempts for e in envelopes]),
        _alike([item.delay_ms for item in items]),
        [] if run_ats.count(None) == len(run_ats) else run_ats,
        _alike([e.result_ttl_ms for e in envelopes]),
        _alike([rows.pack_head(e) for e in envelopes]),
        [e.payload for e in envelopes],
    )


def fresh_answers(items: Sequence[NewJob], lanes: Sequence[Lane], now: int) -> tuple[list[EnqueueAnswer], News]:
    """What `enqueue` has done, once it says so."""
    news = News(logged=True)
    answers: list[EnqueueAnswer] = []
    for item, lane in zip(items, lanes, strict=True):
        visible_at = max(now, now + item.delay_ms if item.run_at is None else item.run_at)
        news.arrives(lane.number, visible_at)
        answers.append(Queued(item.key.id, JobState.SCHEDULED if visible_at > now else JobState.READY))
    return answers, news


async def enqueue(
    session: Session, memory: Memory, items: Sequence[NewJob], lanes: Sequence[Lane], place: str, *, wait: bool
) -> tuple[list[EnqueueAnswer], News]:
    """Take in jobs one by one, whatever is there already. The id is looked at first, then the key. [ENQ-2, ENQ-3]"""
    pairs = list(zip(items, lanes, strict=True))
    scopes = {scope_of(lane, item.envelope) for item, lane in pairs if item.envelope.idempotency is not None}
    if scopes:
        await session.rows("hold_keys", [f"{place}:{lane}:{type_}:{key}" for lane, type_, key in scopes])
    quotas = await Quotas.read(session, (item.key.tenant for item in items), place, wait=wait)
    numbers, ids = [lane.number for lane in lanes], [item.key.id for item in items]
    fresh = {(row["lane"], row["id"]) for row in await session.rows("take_ids", numbers, ids)}
    unit = await Unit.begin(session, memory, ((lane, item.key.id) for item, lane in pairs))
    bindings = await bindings_of(unit, scopes)
    seqs = [row["nextval"] for row in await session.rows("next_seqs", len(items))]
    moved: list[tuple[int, str, int]] = []
    answers: list[EnqueueAnswer] = []
    for (item, lane), seq in zip(pairs, seqs, strict=True):
        answer = _take_in(unit, item, lane, seq, bindings, quotas)
        if answer is None:
            job = unit.found[lane.number, item.key.id].job
            moved.append((lane.number, item.key.id, seq))
            answer = Queued(item.key.id, job.state)
        answers.append(answer)
    await _save_ids(unit, fresh, moved)
    return answers, await unit.save()


async def _save_ids(unit: Unit, fresh: set[tuple[int, str]], moved: list[tuple[int, str, int]]) -> None:
    unused = [key for key in fresh if key not in unit.found]
    if unused:
        await unit.session.rows("drop_ids", [lane for lane, _ in unused], [id_ for _, id_ in unused])
    if moved:
        last = {(lane, id_): seq for lane, id_, seq in moved}
        lanes, ids = [lane for lane, _ in last], [id_ for _, id_ in last]
        await unit.session.rows("move_ids", lanes, ids, list(last.values()))


async def bindings_of(unit: Unit, scopes: set[KeyScope]) -> dict[KeyScope, Binding]:
    """Who holds these keys; the holders are read as well."""
    if not scopes:
        return {}
    columns = [list(column) for column in zip(*sorted(scopes), strict=True)]
    bindings: dict[KeyScope, Binding] = {}
    for row in await unit.session.rows("find_keys", *columns):
        bindings[row["lane"], row["type"], row["key"]] = Binding(row["job_id"], row["policy"], row["expires_at"])
    holders = [(scope[0], binding.job_id) for scope, binding in bindings.items()]
    unknown = [holder for holder in holders if holder not in unit.found]
    if unknown:
        await unit.read([lane for lane, _ in unknown], [id_ for _, id_ in unknown])
    return bindings


def _take_in(
    unit: Unit, new: NewJob, lane: Lane, seq: int, bindings: dict[KeyScope, Binding], quotas: Quotas
) -> EnqueueAnswer | None:
    """Take in one job, or say why not. None: it is in."""
    tenant, queue, _ = new.key
    existing = unit.find_any(new.key)
    scope = scope_of(lane, new.envelope)
    binding = bindings.get(scope) if new.envelope.idempotency is not None else None
    holder = unit.find_any(JobKey(tenant, queue, binding.job_id)) if binding else None
    answer = dedup.decide(new, existing.job if existing else None, binding, holder.job if holder else None, unit.now)
    if answer is not None:
        return answer
    refusal = quotas.over(tenant, queue)
    if refusal is not None:
        return refusal
    if existing is not None:
        unit.forget(existing)
    job, event = lifecycle.enqueue(new, seq, unit.now)
    unit.add(lane, job, event)
    quotas.took(tenant, queue)
    bound = dedup.bind(new, unit.now)
    if bound is not None:
        unit.bound[scope] = bindings[scope] = bound
    return None


def _alike(values: list[Any]) -> list[Any]:
    """One value where all are the same."""
    first = values[0]
    return [first] if all(value == first for value in values) else values
