"""The `Store` face of the PostgreSQL store."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec

from holdfast.budgets import BudgetEnforcer
from holdfast.core import lease
from holdfast.core.budgets import Budgets, Usage
from holdfast.core.errors import JobNotFound, StoreBusy, StoreMismatch, StoreUnavailable, Unsupported
from holdfast.core.job import (
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Extend,
    Extended,
    Finish,
    Finished,
    Job,
    JobKey,
    JobState,
    Lease,
    NewJob,
    Purge,
    PurgeStatus,
    Report,
    SetResultTtl,
    TtlStatus,
)
from holdfast.extensions import Deliver, LogRange, WorkerInbox
from holdfast.paging import pages
from holdfast.store import (
    ALL_HINTS,
    PAGE_LIMIT,
    Capabilities,
    EnqueueAnswer,
    EventPage,
    ExtendAnswer,
    Finding,
    FinishAnswer,
    Hint,
    Listener,
    ListQuery,
    LogPage,
    Page,
    Pruned,
    PurgePage,
    QueuePage,
    QueueStats,
    Reader,
    Reaped,
    ReplayAnswer,
    ReportAnswer,
    Signal,
    TenantPage,
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.postgres import (
    changes,
    doctor,
    enqueue,
    lanes,
    log,
    log_reads,
    reads,
    requests,
    schema,
    upkeep,
    usage,
)
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.claims import Claims
from holdfast.stores.postgres.connection import LOCK_MS, PATIENT_LOCK_MS, Client, Session
from holdfast.stores.postgres.errors import DRIVER_ERRORS, StaleCache, is_blocked, is_stale_lane, is_unsent, translate
from holdfast.stores.postgres.handoff import PostgresInbox
from holdfast.stores.postgres.joining import Joined, join
from holdfast.stores.postgres.notifications import Notice, Notifications, notes, payloads
from holdfast.stores.postgres.quotas import Quotas
from holdfast.stores.postgres.unit_of_work import Effects, UnitOfWork

A = TypeVar("A")
B = TypeVar("B")

MAX_BATCH = 1000
"""How many jobs one call of the server takes in or finishes at most."""
MIN_SPLIT = 16
"""Fewer outcomes than this, of several kinds, are one change."""
BRIEF_LOCK_MS = 100
"""How long a batch waits for somebody who holds one of its jobs."""
MAX_BLOCKED = 16
"""How many blocked jobs of a batch are looked for one by one."""
CACHE_TRIES = 4
"""How often a call is made whose cached lane numbers are stale, each time with what the server has by then."""
HELD_PAUSES_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04)
"""How long a read of the log waits for transactions that hold up the rest of it."""
HELD_S = 0.25
"""How long after a look at the log it is looked at again, if an open transaction holds up the rest."""

_COMPLETED = Finished(JobState.COMPLETED)
_LOGGED: Notice = (Hint.EVENTS, "", "", "")
_encode_json = msgspec.json.Encoder().encode
_decode_budgets = msgspec.json.Decoder(Budgets).decode
_CLOSED = "the store is not open; use `async with Queue(...)` or await store.open()"


class PostgresStore:
    """Jobs in a schema of a PostgreSQL database. Belongs to one event loop."""

    examines_closed: ClassVar[bool] = True
    """`doctor` needs no `open`: so it looks at a replica too, and at a schema that is not up to date."""

    def __init__(self, address: Address, make_client: Callable[[Address], Client] = Client) -> None:
        self.address = address
        self.options = address.common
        self.enforcer = BudgetEnforcer(self, self.options)
        self._make_client = make_client
        self._client = make_client(address)
        self._cache = lanes.cache_of(address.identity)
        self._notifications: Notifications | None = None
        self._claims = Claims(self._client, self._cache, self.reap, real_clock=self.options.test_clock == "0")
        self._capabilities = doctor.capabilities(durable=True, note="Not open yet.")
        self._opening = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def calls_at_once(self) -> int:
        return self.address.connections - 1

    async def open(self) -> None:
        async with self._opening:
            if self._notifications is not None:
                return
            frozen = self.options.test_clock == "frozen"
            try:
                await schema.prepare(self._client, time.time_ns() // 1_000_000 if frozen else None)
                (meta,) = await self._client.rows("meta", repeat=True)
                self._check_clock(frozen=meta["frozen"])
                self._client.set_data = self._cache.set_data
                await self._client.look()
                self._capabilities = await doctor.durability(self._client)
            except BaseException:
                self._client.drop_idle()  # Nobody would close what was never open.
                raise
            self._notifications = Notifications(self._client, self._cache, self._noted)

    def _check_clock(self, *, frozen: bool) -> None:
        if frozen != (self.options.test_clock == "frozen"):
            made = "with" if frozen else "without"
            raise StoreMismatch(f"the schema {self.address.schema!r} was made {made} test_clock=frozen")

    async def close(self) -> None:
        await self.enforcer.close()
        if self._timer is not None:
            self._timer.cancel()
        notifications, self._notifications = self._notifications, None
        if notifications is not None:
            await notifications.close()
        await self._client.close()

    async def sibling(self) -> PostgresStore:
        # It is open without having been connected: its connections belong to the event loop that will use it.
        _ = self._opened
        other = PostgresStore(self.address, self._make_client)
        other._capabilities = self._capabilities
        other._cache.set_data(self._cache.data_id)
        other._client.set_data = other._cache.set_data
        other._notifications = Notifications(other._client, other._cache, other._noted)
        return other

    async def now(self) -> int:
        return await self._opened.value("now", repeat=True)

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", "postgres")
        await self._opened.rows("shift_clock", ms)
        self._cache.forget_low_water()
        self._notify([(Hint.READY, "", "", ""), (Hint.DONE, "", "", "")])

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        if self._notifications is None:
            raise StoreUnavailable(_CLOSED)
        return self._notifications.listen(listener, hints)

    # Jobs -------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        if not self.enforcer.admits(items):
            return await self.enforcer.enqueue(items, lambda admitted: self._take_in(admitted, connection, under))
        return await self._take_in(items, connection, under)

    async def _take_in(self, items: Sequence[NewJob], connection: Any, under: Lease | None) -> list[EnqueueAnswer]:
        answers: list[EnqueueAnswer] = []
        act = self._enqueue if under is None else partial(self._enqueue_under, under)
        async with self._joined(connection, items) as joined:
            for piece in _pieces(items):
                answers += await self._apart(piece, act, joined)
        return answers

    async def _apart(
        self,
        items: Sequence[B],
        act: Callable[[Sequence[B], Joined | None, int], Awaitable[list[A]]],
        joined: Joined | None = None,
        *,
        patient_ms: int = PATIENT_LOCK_MS,
    ) -> list[A]:
        """Act on a batch; one that somebody's open transaction blocks is halved until what is blocked stands alone.

        Only that waits, when all others are done, and raises StoreBusy: they can be sent again. [ENQ-7, ENQ-8, LEASE-4]
        """
        if joined is not None:
            return await act(items, joined, patient_ms)  # What fails there is the caller's to try again.
        if len(items) == 1:
            return await again(lambda: act(items, None, patient_ms))
        answers: dict[int, A] = {}
        blocked: list[range] = []
        parts = deque([range(len(items))])
        while parts:
            part = parts.popleft()  # The larger ones first: most are done before what is blocked is found.
            try:
                found = await again(partial(act, items[part.start : part.stop], None, BRIEF_LOCK_MS))
            except StoreBusy as busy:
                if not is_blocked(busy.__cause__):
                    raise
                half = (part.start + part.stop) // 2
                if len(part) == 1 or len(blocked) >= MAX_BLOCKED:
                    blocked.append(part)
                else:
                    parts += [range(part.start, half), range(half, part.stop)]
            else:
                answers.update(zip(part, found, strict=True))
        for part in blocked:
            found = await again(partial(act, items[part.start : part.stop], None, patient_ms))
            answers.update(zip(part, found, strict=True))
        return [answers[n] for n in range(len(items))]

    async def _enqueue(
        self, items: Sequence[NewJob], joined: Joined | None, lock_ms: int = PATIENT_LOCK_MS
    ) -> list[EnqueueAnswer]:
        client, cache = self._opened, self._cache
        found = await again(lambda: enqueue.make_lanes(client, cache, items))
        # Without a request id a repetition would be answered as a duplicate of itself. [ENQ-8]
        repeat = all(item.envelope.request_id for item in items)
        request = requests.enqueue(items, found, cache)
        if request is not None:
            now, told, handed = None, False, False
            try:
                if len(items) == 1 and joined is None:
                    now, told, handed = await self._enqueue_one(request, items[0].key, repeat=repeat)
                else:
                    hints = [(Hint.READY, tenant, queue, "") for tenant, queue in {item.key[:2] for item in items}]
                    now, told = await self._call(request, [*hints, _LOGGED], joined, repeat=repeat)
            except StoreBusy as busy:
                # Somebody is about to take the same id, or has it in an open transaction: the slower path waits longer.
                if joined is not None or len(items) > 1 or not is_blocked(busy.__cause__):
                    raise
            if now is not None:
                answers, effects = enqueue.fresh_answers(items, found, now)
                await self._publish(Effects(logged=True) if handed else effects, joined, told=told)
                return answers

        async def work(session: Session) -> tuple[list[EnqueueAnswer] | None, Effects]:
            inside = joined is not None
            return await enqueue.enqueue(session, cache, items, found, self.address.schema, joined=inside)

        return await self._taken(work, joined, repeat=repeat, lock_ms=lock_ms)

    async def _taken(
        self,
        work: Callable[[Session], Awaitable[tuple[list[EnqueueAnswer] | None, Effects]]],
        joined: Joined | None,
        *,
        repeat: bool,
        lock_ms: int,
    ) -> list[EnqueueAnswer]:
        """Take jobs in, in a transaction of its own each time that others were first."""
        for attempt in range(1 if joined is not None else enqueue.ID_TRIES):
            await asyncio.sleep(enqueue.PAUSE_S * attempt)
            answers = await self._change(work, joined, repeat=repeat, lock_ms=lock_ms)
            if answers is not None:
                return answers
        raise StoreBusy("others enqueue and forget the same ids all the time; try again")

    async def _enqueue_under(
        self, under: Lease, items: Sequence[NewJob], joined: Joined | None, lock_ms: int
    ) -> list[EnqueueAnswer]:
        """Take in jobs in a transaction that holds the lease it is made under."""
        cache = self._cache
        (lane,) = await self._lanes([under.key])
        found = await again(lambda: enqueue.make_lanes(self._opened, cache, items))
        request = requests.enqueue(items, found, cache)
        repeat = all(item.envelope.request_id for item in items)

        async def work(fast: requests.Request | None, session: Session) -> tuple[list[EnqueueAnswer] | None, Effects]:
            await self._hold_lease(session, under, lane)
            now = None if fast is None else await session.value(fast[0], *fast[1])
            if now is not None:
                return enqueue.fresh_answers(items, found, now)
            inside = joined is not None
            return await enqueue.enqueue(session, cache, items, found, self.address.schema, joined=inside)

        try:
            return await self._taken(partial(work, request), joined, repeat=repeat, lock_ms=lock_ms)
        except StoreBusy as busy:
            # As in `_enqueue`: the slower path waits longer.
            if request is None or joined is not None or len(items) > 1 or not is_blocked(busy.__cause__):
                raise
        return await self._taken(partial(work, None), None, repeat=repeat, lock_ms=lock_ms)

    async def _hold_lease(self, session: Session, under: Lease, lane: lanes.Lane | None) -> None:
        """Keep a lease as it is until the end of the transaction. Raises the refusal if it is not live."""
        if lane is None:
            return lease.check_under(None, under, 0)
        unit = await UnitOfWork.begin(session, self._cache, [(lane, under.key.id)])
        held = unit.find(under.key)
        return lease.check_under(None if held is None else held.job, under, unit.now)

    async def claim(self, request: ClaimRequest) -> Claimed:
        _ = self._opened
        claimed = await again(lambda: self._claims.claim(request))
        if claimed.jobs:
            self._notify([(Hint.EVENTS, "", "", "")])
        return claimed

    def open_inbox(self, deliver: Deliver) -> WorkerInbox | None:
        client = self._opened
        if self._notifications is None:
            raise StoreUnavailable(_CLOSED)
        return PostgresInbox(client, self._cache, self._notifications, self, deliver) if self.address.listen else None

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        answers: list[FinishAnswer] = []
        async with self._joined(connection, items) as joined:
            for piece in _pieces(items):
                answers += await self._finish_piece(piece, joined)
        return answers

    async def _finish_piece(self, items: Sequence[Finish], joined: Joined | None) -> list[FinishAnswer]:
        """In a batch, completions go by themselves, so that one failure among them does not hold them up."""
        completed = [item for item in items if item.outcome == "complete"]
        others = [item for item in items if item.outcome != "complete"]
        if not others:
            return await self._apart(items, self._complete_all, joined)
        if not completed or len(items) < MIN_SPLIT or len({item.key for item in items}) < len(items):
            return await self._apart(items, self._finish, joined)
        try:
            done = iter(await self._apart(completed, self._complete_all, joined))
        except StoreBusy:
            if joined is None:
                await self._apart(others, self._finish)
            raise
        rest = iter(await self._apart(others, self._finish, joined))
        return [next(done) if item.outcome == "complete" else next(rest) for item in items]

    async def _complete_all(self, items: Sequence[Finish], joined: Joined | None, lock_ms: int) -> list[FinishAnswer]:
        found = await self._complete(items, joined, min(lock_ms, LOCK_MS))
        return found or await self._finish(items, joined, lock_ms)

    async def _complete(
        self, items: Sequence[Finish], joined: Joined | None, lock_ms: int = LOCK_MS
    ) -> list[FinishAnswer] | None:
        """The common case: leases that live; else None, and nothing happened."""
        found = [lane for lane in await self._lanes(item.key for item in items) if lane is not None]
        if len(found) < len(items):
            return None
        seqs = self._cache.leased(item.token for item in items)
        # How long the caller's own statements wait is the caller's to say.
        request = requests.complete(items, found, self._cache, seqs, lock_ms if joined is None else None)
        effects = Effects(ended=[item.key for item in items], logged=True)
        hints, done = effects.hints(self._cache), None
        if len(items) == 1:
            done, *hints = hints
        now, told = await self._call(request, hints, joined, repeat=True, done=done)
        if now is None:
            return None
        self._cache.ended(item.token for item in items)
        await self._publish(effects, joined, told=told)
        return [_COMPLETED for _ in items]

    async def _finish(
        self, items: Sequence[Finish], joined: Joined | None, lock_ms: int = PATIENT_LOCK_MS
    ) -> list[FinishAnswer]:
        keep = self.options.retention

        def step(unit: UnitOfWork) -> list[FinishAnswer]:
            return changes.finish(unit, items, keep)

        return await self._each(items, step, joined=joined, repeat=True, lock_ms=lock_ms)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        # Nobody's lease may run out while the batch waits for one that is blocked.
        return await self._apart(items, self._extend_some, patient_ms=LOCK_MS if len(items) == 1 else BRIEF_LOCK_MS)

    async def _extend_some(self, items: Sequence[Extend], _: Joined | None, lock_ms: int) -> list[ExtendAnswer]:
        all_events = self.options.all_events
        answers = None if all_events else await self._extend(items, lock_ms)
        if answers is not None:
            return answers

        def step(unit: UnitOfWork) -> list[ExtendAnswer]:
            return changes.extend(unit, items, all_events=all_events)

        answers = await self._each(items, step, repeat=True, urgent=True, lock_ms=lock_ms)
        for answer in answers:
            if isinstance(answer, Extended):
                self._cache.granted(answer.deadline)
        return answers

    async def _extend(self, items: Sequence[Extend], lock_ms: int) -> list[ExtendAnswer] | None:
        """The common case: leases that were granted here and live; else None, and nothing happened."""
        seqs = self._cache.leased(item.token for item in items)
        if not seqs or len(set(seqs)) < len(items):
            return None
        found = [lane for lane in await self._lanes(item.key for item in items) if lane is not None]
        if len(found) < len(items):
            return None
        name, args = requests.extend(items, found, self._cache, seqs, lock_ms)
        answer = await self._opened.value(name, *args, repeat=True, urgent=True)
        if answer is None:
            return None
        now, *deadlines = answer
        self._cache.granted(min(deadlines))
        return [Extended(deadline, now) for deadline in deadlines]

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        all_events = self.options.all_events
        return await self._each(items, lambda unit: changes.report(unit, items, all_events=all_events), repeat=True)

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        keep = self.options.retention
        return await self._each(items, lambda unit: changes.cancel(unit, items, keep), repeat=True, one_life=True)

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None) -> list[ReplayAnswer]:
        return await self.enforcer.replay(keys, lambda admitted: again(lambda: self._replay(admitted, under)))

    async def _replay(self, keys: Sequence[JobKey], under: Lease | None) -> list[ReplayAnswer]:
        found = await self._lanes(keys)
        (leader,) = (None,) if under is None else await self._lanes([under.key])
        if not any(found):
            return [JobNotFound(key.queue, key.id) for key in keys]
        cache, schema_name = self._cache, self.address.schema
        pairs = [(lane, key.id) for key, lane in zip(keys, found, strict=True) if lane is not None]

        async def work(session: Session) -> tuple[list[ReplayAnswer] | None, Effects]:
            if under is not None:
                await self._hold_lease(session, under, leader)
            # Keys, ids, tenants: the order of enqueue.
            seen = UnitOfWork(session, cache, [lane for lane, _ in pairs])
            await seen.read([lane.number for lane, _ in pairs], [id_ for _, id_ in pairs])
            scopes = enqueue.scopes_of(seen)
            if scopes:
                await session.rows("lock_keys", enqueue.key_locks(schema_name, scopes))
            unit = await UnitOfWork.begin(session, cache, pairs)
            if not enqueue.scopes_of(unit) <= scopes:
                return None, Effects()  # An id has another job by now, with another key.
            quotas = await Quotas.read(session, cache, [key.tenant for key in keys], schema_name, wait=True)
            bindings = await enqueue.bindings_of(unit, scopes)
            return changes.replay(unit, keys, quotas, bindings), await unit.save()

        while True:
            answers = await self._change(work)
            if answers is not None:
                return answers

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        return await self._each(items, lambda unit: changes.purge(unit, items))

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        async def also(unit: UnitOfWork) -> list[TtlStatus]:
            answers, kept = changes.set_result_ttl(unit, items)
            if kept:
                await unit.session.rows("save_expiry", *(list(column) for column in zip(*kept, strict=True)))
            return answers

        return await self._each(items, also, repeat=True, one_life=True)

    # Reading ----------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        return await again(lambda: reads.get(self._opened, self._cache, keys))

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        return await again(lambda: reads.key_holders(self._opened, self._cache, items))

    async def list(self, query: ListQuery) -> Page:
        return await again(lambda: reads.list_jobs(self._opened, self._cache, query))

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        if queues is None:
            return [stats async for page in pages(partial(self.queue_page, tenant)) for stats in page.queues]
        firsts = range(0, len(queues), PAGE_LIMIT)
        parts = [await self._stats(tenant, queues[first : first + PAGE_LIMIT]) for first in firsts]
        return [stats for part in parts for stats in part]

    async def _stats(self, tenant: str, queues: Sequence[str]) -> list[QueueStats]:
        return await again(lambda: reads.stats(self._opened, self._cache, tenant, queues))

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        return await again(lambda: reads.queue_page(self._opened, self._cache, tenant, cursor, limit))

    async def tenants(self) -> list[str]:
        return [name async for page in pages(self.tenant_page) for name in page.tenants]

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        return await reads.tenant_page(self._opened, cursor, limit)

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        return await reads.purge_counts(self._opened, tenant, cursor, limit)

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        read = partial(log_reads.events, self._opened, self._cache, tenant, after, limit)
        page, held = await again(read)
        for pause_s in HELD_PAUSES_S:
            if not held or page.more:
                break
            # Most transactions end soon: whoever has just changed something finds it in the log.
            await asyncio.sleep(pause_s)
            page, held = await again(read)
        if held and not page.more and self._timer is None:
            # What an open transaction holds up shows when it has ended, and nobody else will tell of that.
            self._timer = asyncio.get_running_loop().call_later(HELD_S, self._look_at_log)
        return page

    def _look_at_log(self) -> None:
        self._timer = None
        if self._notifications is not None:
            self._notifications.deliver(Signal(Hint.EVENTS))

    async def last_offset(self) -> str:
        ends = await self._ends()
        for pause_s in HELD_PAUSES_S:
            if not ends.held:
                break
            await asyncio.sleep(pause_s)
            ends = await self._ends()
        return str(ends.end)

    async def _ends(self) -> log_reads.Ends:
        return await again(lambda: log_reads.ends(self._opened, self._cache))

    async def bounds(self, after: str | None, most: int | None = None, end: str | None = None) -> tuple[str, str]:
        last = end or await self.last_offset()
        return await again(lambda: log_reads.bounds(self._opened, self._cache, after, most, last))

    async def written(self) -> str:
        return str(await again(lambda: log_reads.written(self._opened, self._cache)))

    async def split(self, after: str, end: str, size: int) -> Sequence[LogRange]:
        return await again(lambda: log_reads.split(self._opened, self._cache, after, end, size))

    async def read(self, stretch: LogRange, limit: int) -> LogPage:
        return await again(lambda: log_reads.read(self._opened, self._cache, stretch, limit))

    async def set_reader(self, reader: Reader) -> None:
        place = await again(lambda: log_reads.readable(self._opened, self._cache, reader.offset))
        await self._opened.rows("set_reader", reader.tenant or "", reader.name, *place, repeat=True)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        return bool(await self._opened.rows("drop_reader", tenant or "", name))

    async def readers(self, tenant: str | None) -> list[Reader]:
        found = await self._opened.rows("readers", tenant or "", repeat=True)
        return [Reader(tenant, row["name"], str(log.Position(*list(row.values())[1:]))) for row in found]

    # Settings, workers, upkeep ------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        await again(lambda: self._pause(tenant, queue, paused=paused))
        if not paused:
            self._notify([(Hint.READY, tenant, queue, "")])

    async def _pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        lane = await enqueue.add_lane(self._opened, self._cache, tenant, queue)
        await self._opened.rows("pause", lane.number, paused, self._cache.fingerprint([lane]), repeat=True)
        with self._cache.lock:
            lane.pause(paused=paused)

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        budgets = None if settings.budgets is None else _encode_json(settings.budgets).decode()
        request = (tenant, settings.queue or "", settings.weight, settings.max_waiting, budgets)
        await self._opened.rows("set_settings", *request, repeat=True)
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        found = await self._opened.rows("settings", tenant, repeat=True)
        return [
            TenantSettings(
                row["queue"] or None,
                row["weight"],
                row["max_waiting"],
                None if row["budgets"] is None else _decode_budgets(row["budgets"]),
            )
            for row in found
        ]

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, usage.usage(self._opened, tenant))

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        if ttl_ms > 0:
            info = _encode_json(worker)
            await self._opened.rows("beat", worker.worker_id, ttl_ms, info, repeat=True, urgent=True)
        else:
            await self._opened.rows("sign_off", worker.worker_id, repeat=True, urgent=True)

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        return [worker async for page in pages(partial(self.worker_page, tenant)) for worker in page.workers]

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        return await reads.worker_page(self._opened, tenant, cursor, limit)

    async def reap(self, limit: int, random: float) -> Reaped:
        return await again(lambda: self._reap(limit, random))

    async def _reap(self, limit: int, random: float) -> Reaped:
        client, cache = self._opened, self._cache
        keep = self.options.retention
        while True:
            reaped, effects, unknown = await client.change(
                lambda session: upkeep.reap(session, cache, limit, random, keep)
            )
            if not unknown:
                break
            fingerprint = cache.fingerprint()
            for row in await client.rows("lanes_by_number", unknown, fingerprint, repeat=True):
                cache.learn(fingerprint, *row.values())
        await self._publish(effects, None)
        return reaped

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        keep = self.options.keep_events
        return await again(lambda: upkeep.prune(self._opened, self._cache, limit, keep, blobs=blobs))

    async def doctor(self) -> Sequence[Finding]:
        return await doctor.findings(self._client)

    async def migrate(self, on_step: Callable[[str], None] | None = None) -> int:
        """Bring the schema up to date, for a store that is not open; how many steps that took, by name to `on_step`."""
        connection = await self._client.connect()
        try:
            names = await schema.migrate(connection, self.address)
            if on_step is not None:
                for name in names:
                    on_step(name)
            return len(names)
        except DRIVER_ERRORS as error:
            raise translate(error, self.address.shown, self.address.timeout_s) from error
        finally:
            await connection.close(timeout=2)

    @asynccontextmanager
    async def own_transaction(self) -> AsyncGenerator[Any]:
        """A transaction on a connection of its own, as a caller has one. For tests of what joins it. [ENQ-7]"""
        connection = await self._client.connect()
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close(timeout=2)

    async def erase(self) -> None:
        """Remove the whole schema. Only for places of tests: raises Unsupported without `test_clock`."""
        if self.options.test_clock == "0":
            raise Unsupported("erasing everything (open it with test_clock=1)", "postgres")
        await schema.erase(self._opened)
        lanes.forget(self.address.identity)

    # The small steps ----------------------------------------------------------------------------------------

    @property
    def _opened(self) -> Client:
        if self._notifications is None:
            raise StoreUnavailable(_CLOSED)
        return self._client

    @asynccontextmanager
    async def _joined(
        self, connection: Any, items: Sequence[NewJob] | Sequence[Finish]
    ) -> AsyncGenerator[Joined | None]:
        """The caller's transaction, if there is one, for what is to be done with these items."""
        if connection is None:
            yield None
            return
        joined = await join(connection, self._opened)
        try:
            async with joined.step():
                yield joined
        except StaleCache as stale:
            if not is_stale_lane(stale.__cause__):
                raise
            # A lane that is new, or has a new priority, is not in the snapshot of a transaction that began before.
            found = [lane for lane in await self._lanes(item.key for item in items) if lane is not None]
            fingerprint = self._cache.fingerprint(found, {lane: lane.ranks for lane in found})
            try:
                await self._opened.value("check_cache", fingerprint, repeat=True)
            except StaleCache:  # It is another in truth, and forgotten by now.
                raise stale from stale.__cause__
            reason = "your transaction began before the first job of this queue or priority, and cannot see it"
            cure = "roll it back and begin it again, or use READ COMMITTED"
            raise StoreBusy(f"{self.address.shown}: {reason}; {cure}") from stale

    async def _lanes(self, keys: Iterable[JobKey]) -> Sequence[lanes.Lane | None]:
        return await reads.lanes_of(self._opened, self._cache, [key[:2] for key in keys])

    async def _each(
        self,
        items: Sequence[Any],
        step: Callable[[UnitOfWork], list[A] | Awaitable[list[A]]],
        *,
        joined: Joined | None = None,
        repeat: bool = False,
        one_life: bool = False,
        urgent: bool = False,
        lock_ms: int = PATIENT_LOCK_MS,
    ) -> list[A]:
        """Lock the jobs of these items, take a step with them, and write what came of it.

        `one_life`: what is sent again after a lost reply reaches the same lives of the ids, and no later ones.
        """
        if not items:
            return []
        lives: dict[JobKey, int] = {}

        async def change() -> list[A]:
            found = await self._lanes(item.key for item in items)
            pairs = [(lane, item.key.id) for item, lane in zip(items, found, strict=True) if lane is not None]

            async def work(session: Session) -> tuple[list[A], Effects]:
                unit = await UnitOfWork.begin(session, self._cache, pairs)
                if lives:
                    unit.keep_to(lives)
                stepped = step(unit)
                answers = stepped if isinstance(stepped, list) else await stepped
                effects = await unit.save()
                if one_life:  # From here on it may be committed.
                    lives.update(unit.lives)
                return answers, effects

            return await self._change(work, joined, repeat=repeat, urgent=urgent, lock_ms=lock_ms)

        return await again(change) if joined is None else await change()

    async def _change(
        self,
        work: Callable[[Session], Awaitable[tuple[A, Effects]]],
        joined: Joined | None = None,
        *,
        repeat: bool = False,
        urgent: bool = False,
        lock_ms: int = PATIENT_LOCK_MS,
    ) -> A:
        if joined is not None:
            answers, effects = await work(joined)
        else:
            answers, effects = await self._opened.change(work, repeat=repeat, urgent=urgent, lock_ms=lock_ms)
        await self._publish(effects, joined)
        return answers

    async def _call(
        self,
        request: requests.Request,
        hints: list[Notice],
        joined: Joined | None,
        *,
        repeat: bool,
        done: Notice | None = None,
    ) -> tuple[int | None, bool]:
        """Call one of the hot functions: what it answers, and whether others are told by now.

        `done` is told with the record of the one job that completes, where it is sent along with the change.
        """
        name, args = request
        if joined is not None:
            return await joined.value(name, *args), False
        client, notifications = self._opened, self._notifications
        sent = notifications.to_send(hints) if hints and notifications is not None else None
        if sent is None or notifications is None:
            return await client.value(name, *args, repeat=repeat), False
        told = False
        try:
            noted = () if done is None else (notifications.payload_of(done),)
            answer = await client.value(f"{name}_and_notify", *sent, *noted, *args, repeat=repeat)
            told = answer is not None
        except StoreUnavailable as error:
            if not is_unsent(error.__cause__):
                raise
            notifications.is_full()
            return await client.value("now", repeat=True), False
        finally:
            if not told:
                notifications.unsent()
        return answer, True

    async def _enqueue_one(
        self, request: requests.Request, key: JobKey, *, repeat: bool
    ) -> tuple[int | None, bool, bool]:
        """The clock, whether others are told by now, and whether a worker that waited for it has it."""
        notifications = self._notifications
        name, args = request
        sent = notifications.to_send([_LOGGED]) if notifications is not None else None
        ready = (
            None
            if sent is None or notifications is None
            else notifications.payload_of((Hint.READY, key.tenant, key.queue, ""))
        )
        if notifications is not None and notifications.full:
            return await self._opened.value(name, *args, repeat=repeat), False, False
        now = None
        try:
            (found,) = await self._opened.rows(
                f"{name}_and_notify", *(sent or (None, None)), ready, *args, repeat=repeat
            )
            now, handed = found.values()
        except StoreUnavailable as error:
            if notifications is None or not is_unsent(error.__cause__):
                raise
            notifications.is_full()
            await self._take_hand_off_back(key)
            return await self._opened.value("now", repeat=True), False, False
        finally:
            if now is None and sent is not None and notifications is not None:
                notifications.unsent()
        return now, sent is not None, handed

    async def _take_hand_off_back(self, key: JobKey) -> None:
        """The job is in, but a worker that it was leased to cannot be told: release it, with no attempt lost."""
        (job,) = await self.get([key])
        (lane,) = await self._lanes([key])
        if job is None or lane is None or job.state is not JobState.LEASED:
            return
        sent, release = f"{job.seq}:{job.token}", Finish(key, job.token, "release")

        async def work(session: Session) -> tuple[None, Effects]:
            unit = await UnitOfWork.begin(session, self._cache, [(lane, key.id)])
            # In one transaction: if this process dies, its worker finds it in the offer, and releases it. Not there: it
            # was not handed over, or the worker has done that.
            if await session.rows("undo_handoff", sent):
                changes.finish(unit, [release], self.options.retention)
            return None, await unit.save()

        await self._change(work, repeat=True)

    async def _publish(self, effects: Effects, joined: Joined | None, *, told: bool = False) -> None:
        """Tell of a change: now that it is committed, or with the caller's own commit."""
        hints = effects.hints(self._cache)
        if joined is not None:
            if hints and self.address.notify:
                await joined.rows("notify_joined", *notes(self._cache.secret, payloads("", hints)))
            return
        with self._cache.lock:
            for number, visible_at in effects.ready.items():
                lane = self._cache.by_number.get(number)
                if lane is not None:
                    lane.arrive(visible_at)
            for number in effects.withdrawn & self._cache.by_number.keys():
                self._cache.by_number[number].withdraw()
        if told and self._notifications is not None:
            self._notifications.notify_own(hints)
        else:
            self._notify(hints)

    def _notify(self, hints: list[Notice]) -> None:
        if hints and self._notifications is not None:
            self._notifications.notify(hints)

    def _noted(self, hint: Notice) -> None:
        """Another process told of something: what we know of lanes is no longer all there is."""
        kind, tenant, queue, _ = hint
        if kind is not Hint.READY:
            return
        lane = self._cache.find(tenant, queue) if tenant and queue else None
        with self._cache.lock:
            if lane is not None:
                lane.hinted()
            elif queue:
                self._cache.queue(queue).hinted()
            else:
                for queue_lanes in self._cache.queues.values():
                    queue_lanes.hinted()


async def again(act: Callable[[], Awaitable[A]]) -> A:
    """Do it, and once more where it was made of what is remembered of other data: then it has not been done."""
    for _ in range(CACHE_TRIES - 1):
        try:
            return await act()
        except StaleCache:
            pass  # The client has seen which data there is, and what was remembered is forgotten.
    return await act()


def _pieces(items: Sequence[A]) -> Iterable[Sequence[A]]:
    return (items[at : at + MAX_BATCH] for at in range(0, len(items), MAX_BATCH))
