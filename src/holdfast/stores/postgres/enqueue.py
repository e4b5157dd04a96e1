"""The slower path of an enqueue: existing ids, idempotency keys and quotas. [ENQ-2, ENQ-3, TENANT-5]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.core import dedup, lifecycle
from holdfast.core.dedup import Binding
from holdfast.core.job import JobKey, JobState, NewJob, Queued
from holdfast.store import EnqueueAnswer
from holdfast.stores.postgres.connection import PostgresClient, PostgresSession
from holdfast.stores.postgres.lanes import LaneCache, TenantLane
from holdfast.stores.postgres.quotas import Quotas
from holdfast.stores.postgres.requests import ranks_of
from holdfast.stores.postgres.rows import Row
from holdfast.stores.postgres.unit_of_work import Effects, KeyScope, UnitOfWork, scope_of

ID_TRIES = 10
"""How often to try ids that another transaction takes first."""
PAUSE_S = 0.01
KEY_TRIES = 5
"""How often to try keys that another transaction has locked, before waiting for them."""


async def make_lanes(client: PostgresClient, cache: LaneCache, items: Sequence[NewJob]) -> list[TenantLane]:
    """The lane of each item. New ones, and new priorities, are committed before any job that needs them. [ENQ-7]"""
    ranks: dict[tuple[str, str], int] = {}
    for item in items:
        names = item.key[:2]
        ranks[names] = ranks.get(names, 0) | 1 << (9 - item.envelope.priority)
    found: dict[tuple[str, str], TenantLane] = {}
    for (tenant, queue), bits in ranks.items():
        lane = cache.find(tenant, queue)
        if lane is None or lane.ranks & bits != bits:
            lane = await add_lane(client, cache, tenant, queue, bits)
        found[tenant, queue] = lane
    return [found[item.key[:2]] for item in items]


async def add_lane(client: PostgresClient, cache: LaneCache, tenant: str, queue: str, ranks: int = 0) -> TenantLane:
    """Create a lane, or add priorities to it."""
    fingerprint = cache.fingerprint()
    found: list[Row] = []
    if cache.queue(queue).number is not None:
        found = await client.rows("add_lane", tenant, queue, ranks, fingerprint, repeat=True)
    if not found:
        await client.rows("add_queue", queue, fingerprint, repeat=True)
        found = await client.rows("add_lane", tenant, queue, ranks, fingerprint, repeat=True)
    return cache.learn(fingerprint, *found[0].values())


async def add_queue(client: PostgresClient, cache: LaneCache, queue: str) -> int:
    """The id of a queue name, created if it is new. Raises StaleCache."""
    fingerprint = cache.fingerprint()
    await client.rows("add_queue", queue, fingerprint, repeat=True)
    number = await client.value("find_queue", queue, fingerprint, repeat=True)
    with cache.lock:
        cache.check(fingerprint)
        cache.queue(queue).number = number
    return number


def fresh_answers(
    items: Sequence[NewJob], lanes: Sequence[TenantLane], now: int
) -> tuple[list[EnqueueAnswer], Effects]:
    """The answers and effects of the function enqueue(), after it has succeeded."""
    effects = Effects(logged=True)
    answers: list[EnqueueAnswer] = []
    for item, lane in zip(items, lanes, strict=True):
        visible_at = max(now, now + item.delay_ms if item.run_at is None else item.run_at)
        effects.arrives(lane.number, visible_at)
        answers.append(Queued(item.key.id, JobState.SCHEDULED if visible_at > now else JobState.READY))
    return answers, effects


async def enqueue(
    session: PostgresSession,
    cache: LaneCache,
    items: Sequence[NewJob],
    lanes: Sequence[TenantLane],
    schema: str,
    *,
    joined: bool,
) -> tuple[list[EnqueueAnswer] | None, Effects]:
    """Enqueue jobs one by one. The id decides first, then the key. [ENQ-2, ENQ-3]

    Existing jobs are read without a lock: in a caller's transaction a lock would stay, and keep workers from renewing
    and finishing the job. Only the ids and keys of new jobs are locked. [ENQ-7]

    All transactions lock keys first, then new ids, then finished jobs, and a tenant last: so none waits for a caller's
    transaction while it holds a tenant. Returns None if other transactions were first: the caller then tries again in a
    new transaction without these locks. A joined transaction cannot do that, and tries again at once.
    """
    new = _New(session, cache, list(zip(items, lanes, strict=True)))
    await new.look()
    for attempt in range(1, KEY_TRIES):
        # The transaction that holds the key is about to bind it, so reading again is enough, without a lock.
        if not new.scopes or await session.value("try_lock_keys", key_locks(schema, new.scopes)):
            break
        await asyncio.sleep(PAUSE_S * attempt)
        await new.look()
    else:
        await session.rows("lock_keys", key_locks(schema, new.scopes))
    if new.left and not await new.take(schema, tries=ID_TRIES if joined else 1, wait=not joined):
        return None, Effects()
    return [new.answers[n] for n in range(len(items))], await new.unit.save()


class _New:
    """Jobs to enqueue, and the answers that are known so far."""

    def __init__(self, session: PostgresSession, cache: LaneCache, pairs: Sequence[tuple[NewJob, TenantLane]]) -> None:
        self._session = session
        self._cache = cache
        self.left: list[tuple[int, NewJob, TenantLane]] = [(n, item, lane) for n, (item, lane) in enumerate(pairs)]
        self.answers: dict[int, EnqueueAnswer] = {}
        self._lanes = {lane for _, lane in pairs}
        self.unit = UnitOfWork(session, cache, self._lanes)
        self._bindings: dict[KeyScope, Binding] = {}

    @property
    def scopes(self) -> set[KeyScope]:
        """The keys of the jobs that are left."""
        return {scope_of(lane, item.envelope) for _, item, lane in self.left if item.envelope.idempotency is not None}

    async def look(self) -> None:
        """Answer duplicates of existing jobs. Left are new jobs, and duplicates of other jobs of this call."""
        await self._read(UnitOfWork(self._session, self._cache, self._lanes))
        ids: set[tuple[int, str]] = set()
        scopes: set[KeyScope] = set()
        left, self.left = self.left, []
        for n, item, lane in left:
            id_, scope = (lane.number, item.key.id), scope_of(lane, item.envelope)
            existing = self.unit.found.get(id_)
            answer = None if id_ in ids else dedup.by_id(existing.job if existing else None, item, self.unit.now)
            if answer is None and id_ not in ids and scope not in scopes:
                answer = self._decide(item, lane)
            if answer is not None:
                self.answers[n] = answer
                continue
            self.left.append((n, item, lane))
            ids.add(id_)
            if item.envelope.idempotency is not None:
                scopes.add(scope)

    async def take(self, schema: str, *, tries: int, wait: bool) -> bool:
        """Take the ids of the jobs that are left, and add the jobs. False: other transactions were first each time."""
        for attempt in range(tries):
            ids = self._ids()
            seqs = [self.unit.found[key].job.seq if key in self.unit.found else 0 for key in ids]
            fresh = {key for key in ids if key not in self.unit.found}
            taken = await self._session.value("take_ids", *_columns(ids), seqs, self._fingerprint())
            if taken is not None:
                xid, now, *numbers = taken
                await self._read(UnitOfWork(self._session, self._cache, self._lanes, now, xid), numbers)
                tenants = [item.key.tenant for _, item, _ in self.left]
                quotas = await Quotas.read(self._session, self._cache, tenants, schema, wait=wait)
                await self._take_in(dict(zip(ids, numbers, strict=True)), fresh, quotas)
                return True
            # An id has changed since it was read: another transaction took it, or is about to forget its job.
            if attempt + 1 < tries:
                await asyncio.sleep(PAUSE_S * attempt)
                await self.look()
                if not self.left:
                    return True
        return False

    def _ids(self) -> list[tuple[int, str]]:
        return sorted({(lane.number, item.key.id) for _, item, lane in self.left})

    def _fingerprint(self) -> str:
        lanes = [lane for _, _, lane in self.left]
        return self._cache.fingerprint(lanes, ranks_of([item for _, item, _ in self.left], lanes))

    async def _read(self, unit: UnitOfWork, locked: Sequence[int] = ()) -> None:
        self.unit = unit
        await unit.read(*_columns(self._ids()), locked)
        self._bindings = await bindings_of(unit, self.scopes)

    async def _take_in(self, numbers: dict[tuple[int, str], int], fresh: set[tuple[int, str]], quotas: Quotas) -> None:
        seqs = [row["nextval"] for row in await self._session.rows("next_seqs", len(self.left))]
        for (n, item, lane), seq in zip(self.left, seqs, strict=True):
            self.answers[n] = self._decide(item, lane) or self._add(item, lane, seq, quotas)
        unused = [key for key in fresh if key not in self.unit.found]
        if unused:
            await self._session.rows("drop_ids", *_columns(unused), [numbers[key] for key in unused])
        moved = {key: row.job.seq for key, row in self.unit.found.items() if row.new}
        if moved:
            before = [numbers[key] for key in moved]
            await self._session.rows("move_ids", *_columns(list(moved)), before, list(moved.values()))

    def _decide(self, new: NewJob, lane: TenantLane) -> EnqueueAnswer | None:
        """The answer if a job or key exists already; None: it is a new job."""
        unit, (tenant, queue, _) = self.unit, new.key
        existing = unit.find_any(new.key)
        binding = self._bindings.get(scope_of(lane, new.envelope)) if new.envelope.idempotency is not None else None
        holder = unit.find_any(JobKey(tenant, queue, binding.job_id)) if binding else None
        return dedup.decide(new, existing.job if existing else None, binding, holder.job if holder else None, unit.now)

    def _add(self, new: NewJob, lane: TenantLane, seq: int, quotas: Quotas) -> EnqueueAnswer:
        unit, (tenant, queue, _) = self.unit, new.key
        refusal = quotas.over(tenant, queue)
        if refusal is not None:
            return refusal
        existing = unit.find_any(new.key)
        if existing is not None:
            unit.forget(existing)
        job, event = lifecycle.enqueue(new, seq, unit.now)
        unit.add(lane, job, event)
        quotas.took(tenant, queue)
        bound = dedup.bind(new, unit.now)
        if bound is not None:
            scope = scope_of(lane, new.envelope)
            unit.bound[scope] = self._bindings[scope] = bound
        return Queued(job.id, job.state)


def scopes_of(unit: UnitOfWork) -> set[KeyScope]:
    """The keys of the jobs that were read."""
    found = [(row.lane, row.job.envelope) for row in unit.found.values()]
    return {scope_of(lane, envelope) for lane, envelope in found if envelope.idempotency is not None}


async def bindings_of(unit: UnitOfWork, scopes: set[KeyScope]) -> dict[KeyScope, Binding]:
    """The jobs that hold these keys. They are read as well."""
    if not scopes:
        return {}
    columns = [list(column) for column in zip(*sorted(scopes), strict=True)]
    bindings: dict[KeyScope, Binding] = {}
    for row in await unit.session.rows("find_keys", *columns, unit.fingerprint(columns[0])):
        unit.now = unit.now or row["now"]
        bindings[row["lane"], row["type"], row["key"]] = Binding(row["job_id"], row["policy"], row["expires_at"])
    unit.bound_before = dict(bindings)
    holders = [(scope[0], binding.job_id) for scope, binding in bindings.items()]
    unknown = [holder for holder in holders if holder not in unit.found]
    if unknown:
        await unit.read(*_columns(unknown))
    return bindings


def key_locks(schema: str, scopes: set[KeyScope]) -> list[str]:
    """The names of the locks of these keys."""
    return [f"{schema}:{lane}:{type_}:{key}" for lane, type_, key in scopes]


def _columns(keys: Sequence[tuple[int, str]]) -> tuple[list[int], list[str]]:
    return [lane for lane, _ in keys], [id_ for _, id_ in keys]
