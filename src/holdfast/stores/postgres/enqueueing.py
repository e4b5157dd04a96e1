"""Enqueue: the fast function for new ids, the slower path for all others, direct hand-off. [ENQ-1 to ENQ-8]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from holdfast.core import lease
from holdfast.core.errors import StoreBusy, StoreUnavailable
from holdfast.core.job import Finish, JobKey, JobState, Lease, NewJob
from holdfast.core.lifecycle import Retention
from holdfast.store import EnqueueAnswer, Hint
from holdfast.stores.postgres import changes, enqueue, reads, requests
from holdfast.stores.postgres.connection import PATIENT_LOCK_MS, PostgresSession
from holdfast.stores.postgres.errors import is_blocked, is_unsent
from holdfast.stores.postgres.joining import Joined
from holdfast.stores.postgres.lanes import TenantLane
from holdfast.stores.postgres.notifications import LOGGED
from holdfast.stores.postgres.transactions import Transactions, batches, retry_stale, split_blocked
from holdfast.stores.postgres.unit_of_work import Effects, UnitOfWork


class Enqueueing:
    """Enqueues of one store handle."""

    def __init__(self, transactions: Transactions, retention: Retention) -> None:
        self._transactions = transactions
        self._retention = retention

    async def enqueue(self, items: Sequence[NewJob], connection: Any, under: Lease | None) -> list[EnqueueAnswer]:
        """Enqueue in batches, in the caller's transaction if there is one, and under a lease if one is given."""
        answers: list[EnqueueAnswer] = []
        act = self._enqueue if under is None else partial(self._enqueue_under, under)
        async with self._transactions.joined(connection, items) as joined:
            for batch in batches(items):
                answers += await split_blocked(batch, act, joined)
        return answers

    async def _enqueue(
        self, items: Sequence[NewJob], joined: Joined | None, lock_ms: int = PATIENT_LOCK_MS
    ) -> list[EnqueueAnswer]:
        transactions = self._transactions
        client, cache = transactions.client, transactions.cache
        found = await retry_stale(lambda: enqueue.make_lanes(client, cache, items))
        # Without a request id a repetition would be answered as a duplicate of itself. [ENQ-8]
        repeat = all(item.envelope.request_id for item in items)
        request = requests.enqueue(items, found, cache)
        if request is not None:
            now, notified, handed_off = None, False, False
            try:
                if len(items) == 1 and joined is None:
                    now, notified, handed_off = await self._enqueue_one(request, items[0].key, repeat=repeat)
                else:
                    hints = [(Hint.READY, tenant, queue, "") for tenant, queue in {item.key[:2] for item in items}]
                    now, notified = await transactions.call(request, [*hints, LOGGED], joined, repeat=repeat)
            except StoreBusy as busy:
                # Another transaction is about to take the same id, or holds it: the slower path waits longer.
                if joined is not None or len(items) > 1 or not is_blocked(busy.__cause__):
                    raise
            if now is not None:
                answers, effects = enqueue.fresh_answers(items, found, now)
                effects = Effects(logged=True) if handed_off else effects
                await transactions.publish(effects, joined, notified=notified)
                return answers

        async def work(session: PostgresSession) -> tuple[list[EnqueueAnswer] | None, Effects]:
            inside = joined is not None
            return await enqueue.enqueue(session, cache, items, found, client.address.schema, joined=inside)

        return await self._until_taken(work, joined, repeat=repeat, lock_ms=lock_ms)

    async def _until_taken(
        self,
        work: Callable[[PostgresSession], Awaitable[tuple[list[EnqueueAnswer] | None, Effects]]],
        joined: Joined | None,
        *,
        repeat: bool,
        lock_ms: int,
    ) -> list[EnqueueAnswer]:
        """Enqueue by the slower path; if other callers took the ids first, again in a new transaction."""
        for attempt in range(1 if joined is not None else enqueue.ID_TRIES):
            await asyncio.sleep(enqueue.PAUSE_S * attempt)
            answers = await self._transactions.change(work, joined, repeat=repeat, lock_ms=lock_ms)
            if answers is not None:
                return answers
        raise StoreBusy("other callers keep enqueueing and forgetting the same ids; try again")

    async def _enqueue_under(
        self, under: Lease, items: Sequence[NewJob], joined: Joined | None, lock_ms: int
    ) -> list[EnqueueAnswer]:
        """Enqueue in a transaction that also locks the lease it is made under."""
        transactions = self._transactions
        client, cache = transactions.client, transactions.cache
        (lane,) = await transactions.lanes([under.key])
        found = await retry_stale(lambda: enqueue.make_lanes(client, cache, items))
        request = requests.enqueue(items, found, cache)
        repeat = all(item.envelope.request_id for item in items)

        async def work(
            fast: requests.Request | None, session: PostgresSession
        ) -> tuple[list[EnqueueAnswer] | None, Effects]:
            await self.lock_lease(session, under, lane)
            now = None if fast is None else await session.value(fast[0], *fast[1])
            if now is not None:
                return enqueue.fresh_answers(items, found, now)
            inside = joined is not None
            return await enqueue.enqueue(session, cache, items, found, client.address.schema, joined=inside)

        try:
            return await self._until_taken(partial(work, request), joined, repeat=repeat, lock_ms=lock_ms)
        except StoreBusy as busy:
            # As in `_enqueue`: the slower path waits longer.
            if request is None or joined is not None or len(items) > 1 or not is_blocked(busy.__cause__):
                raise
        return await self._until_taken(partial(work, None), None, repeat=repeat, lock_ms=lock_ms)

    async def lock_lease(self, session: PostgresSession, under: Lease, lane: TenantLane | None) -> None:
        """Lock a lease until the end of the transaction. Raises the refusal if it is not live."""
        if lane is None:
            return lease.check_under(None, under, 0)
        unit = await UnitOfWork.begin(session, self._transactions.cache, [(lane, under.key.id)])
        row = unit.find(under.key)
        return lease.check_under(None if row is None else row.job, under, unit.now)

    # A single job ---------------------------------------------------------------------------------------------

    async def _enqueue_one(
        self, request: requests.Request, key: JobKey, *, repeat: bool
    ) -> tuple[int | None, bool, bool]:
        """Returns the clock, whether the hints are sent, and whether a waiting worker has the job."""
        client, notifier = self._transactions.client, self._transactions.notifier
        name, args = request
        if notifier.full:
            return await client.value(name, *args, repeat=repeat), False, False
        sent = notifier.to_send([LOGGED])
        ready = None if sent is None else notifier.payload_of((Hint.READY, key.tenant, key.queue, ""))
        now = None
        try:
            (found,) = await client.rows(f"{name}_and_notify", *(sent or (None, None)), ready, *args, repeat=repeat)
            now, handed_off = found.values()
        except StoreUnavailable as error:
            if not is_unsent(error.__cause__):
                raise
            notifier.is_full()
            await self._undo_handoff(key)
            return await client.value("now", repeat=True), False, False
        finally:
            if now is None and sent is not None:
                notifier.unsent()
        return now, sent is not None, handed_off

    async def _undo_handoff(self, key: JobKey) -> None:
        """Release a job whose hand-off could not be sent to its worker, with no attempt lost."""
        transactions = self._transactions
        (job,) = await retry_stale(lambda: reads.get(transactions.client, transactions.cache, [key]))
        (lane,) = await transactions.lanes([key])
        if job is None or lane is None or job.state is not JobState.LEASED:
            return
        sent, release = f"{job.seq}:{job.token}", Finish(key, job.token, "release")

        async def work(session: PostgresSession) -> tuple[None, Effects]:
            unit = await UnitOfWork.begin(session, transactions.cache, [(lane, key.id)])
            # In one transaction: if this process dies, the worker finds the job in its row of `waiters` and releases
            # it. If it is not there, it was not handed off, or the worker has released it.
            if await session.rows("undo_handoff", sent):
                changes.finish(unit, [release], self._retention)
            return None, await unit.save()

        await transactions.change(work, repeat=True)
