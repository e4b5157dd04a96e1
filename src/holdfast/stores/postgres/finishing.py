"""Finish and extend: the fast function for live leases, the slower path for all others. [LEASE-1, LEASE-2]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.errors import StoreBusy
from holdfast.core.job import Extend, Extended, Finish, Finished, JobState
from holdfast.opening import CommonOptions
from holdfast.store import ExtendAnswer, FinishAnswer
from holdfast.stores.postgres import changes, requests
from holdfast.stores.postgres.connection import LOCK_MS, PATIENT_LOCK_MS
from holdfast.stores.postgres.joining import Joined
from holdfast.stores.postgres.transactions import BRIEF_LOCK_MS, Transactions, batches, split_blocked
from holdfast.stores.postgres.unit_of_work import Effects, UnitOfWork

MIN_SPLIT = 16
"""A batch with fewer outcomes than this is one change, even if they are of several kinds."""

_COMPLETED = Finished(JobState.COMPLETED)


class Finishing:
    """Ends and renewals of leases, for one store handle."""

    def __init__(self, transactions: Transactions, options: CommonOptions) -> None:
        self._transactions = transactions
        self._options = options

    async def finish(self, items: Sequence[Finish], connection: Any) -> list[FinishAnswer]:
        """Finish in batches, in the caller's transaction if there is one."""
        answers: list[FinishAnswer] = []
        async with self._transactions.joined(connection, items) as joined:
            for batch in batches(items):
                answers += await self._finish_batch(batch, joined)
        return answers

    async def _finish_batch(self, items: Sequence[Finish], joined: Joined | None) -> list[FinishAnswer]:
        """Split the completions off a large batch, so that one failure does not slow them down."""
        completed = [item for item in items if item.outcome == "complete"]
        others = [item for item in items if item.outcome != "complete"]
        if not others:
            return await split_blocked(items, self._complete_all, joined)
        if not completed or len(items) < MIN_SPLIT or len({item.key for item in items}) < len(items):
            return await split_blocked(items, self._finish, joined)
        try:
            done = iter(await split_blocked(completed, self._complete_all, joined))
        except StoreBusy:
            if joined is None:
                await split_blocked(others, self._finish)
            raise
        rest = iter(await split_blocked(others, self._finish, joined))
        return [next(done) if item.outcome == "complete" else next(rest) for item in items]

    async def _complete_all(self, items: Sequence[Finish], joined: Joined | None, lock_ms: int) -> list[FinishAnswer]:
        found = await self._complete(items, joined, min(lock_ms, LOCK_MS))
        return found or await self._finish(items, joined, lock_ms)

    async def _complete(
        self, items: Sequence[Finish], joined: Joined | None, lock_ms: int = LOCK_MS
    ) -> list[FinishAnswer] | None:
        """Complete jobs whose leases are all live; otherwise None, and nothing is done."""
        transactions = self._transactions
        cache = transactions.cache
        found = [lane for lane in await transactions.lanes(item.key for item in items) if lane is not None]
        if len(found) < len(items):
            return None
        seqs = cache.leased(item.token for item in items)
        # In the caller's transaction, the caller's own settings say how long statements wait.
        request = requests.complete(items, found, cache, seqs, lock_ms if joined is None else None)
        effects = Effects(ended=[item.key for item in items], logged=True)
        hints, done = effects.hints(cache), None
        if len(items) == 1:
            done, *hints = hints
        now, notified = await transactions.call(request, hints, joined, repeat=True, done=done)
        if now is None:
            return None
        cache.ended(item.token for item in items)
        await transactions.publish(effects, joined, notified=notified)
        return [_COMPLETED for _ in items]

    async def _finish(
        self, items: Sequence[Finish], joined: Joined | None, lock_ms: int = PATIENT_LOCK_MS
    ) -> list[FinishAnswer]:
        """Any outcomes, judged one by one."""
        keep = self._options.retention

        def step(unit: UnitOfWork) -> list[FinishAnswer]:
            return changes.finish(unit, items, keep)

        return await self._transactions.change_jobs(items, step, joined=joined, repeat=True, lock_ms=lock_ms)

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        """Renew leases. No lease expires because the batch waits for a blocked one."""
        patient_ms = LOCK_MS if len(items) == 1 else BRIEF_LOCK_MS
        return await split_blocked(items, self._extend, patient_ms=patient_ms)

    async def _extend(self, items: Sequence[Extend], _: Joined | None, lock_ms: int) -> list[ExtendAnswer]:
        all_events = self._options.all_events
        answers = None if all_events else await self._extend_live(items, lock_ms)
        if answers is not None:
            return answers

        def step(unit: UnitOfWork) -> list[ExtendAnswer]:
            return changes.extend(unit, items, all_events=all_events)

        answers = await self._transactions.change_jobs(items, step, repeat=True, urgent=True, lock_ms=lock_ms)
        for answer in answers:
            if isinstance(answer, Extended):
                self._transactions.cache.granted(answer.deadline)
        return answers

    async def _extend_live(self, items: Sequence[Extend], lock_ms: int) -> list[ExtendAnswer] | None:
        """Renew leases that were granted in this process and are all live; otherwise None, and nothing is done."""
        transactions = self._transactions
        cache = transactions.cache
        seqs = cache.leased(item.token for item in items)
        if not seqs or len(set(seqs)) < len(items):
            return None
        found = [lane for lane in await transactions.lanes(item.key for item in items) if lane is not None]
        if len(found) < len(items):
            return None
        name, args = requests.extend(items, found, cache, seqs, lock_ms)
        answer = await transactions.client.value(name, *args, repeat=True, urgent=True)
        if answer is None:
            return None
        now, *deadlines = answer
        cache.granted(min(deadlines))
        return [Extended(deadline, now) for deadline in deadlines]
