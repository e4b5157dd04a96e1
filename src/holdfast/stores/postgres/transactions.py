"""How the store runs its changes: transactions, retries, blocked batches, and the hints that follow a commit."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from holdfast.core.errors import StoreBusy, StoreUnavailable
from holdfast.core.job import Finish, JobKey, NewJob
from holdfast.stores.postgres import reads, requests
from holdfast.stores.postgres.connection import PATIENT_LOCK_MS, PostgresClient, PostgresSession
from holdfast.stores.postgres.errors import StaleCache, is_blocked, is_stale_lane, is_unsent
from holdfast.stores.postgres.joining import Joined, join
from holdfast.stores.postgres.lanes import LaneCache, TenantLane
from holdfast.stores.postgres.listener import Listener
from holdfast.stores.postgres.notifications import Notice, Notifier, payloads, to_channels
from holdfast.stores.postgres.unit_of_work import Effects, UnitOfWork

A = TypeVar("A")
B = TypeVar("B")

MAX_BATCH = 1000
"""The most jobs that one statement enqueues or finishes."""
BRIEF_LOCK_MS = 100
"""How long a batch waits for a transaction that locks one of its jobs."""
MAX_BLOCKED = 16
"""The most blocked jobs of a batch that are isolated one by one."""
CACHE_TRIES = 4
"""The most tries of a call whose cached lane numbers are stale. Each try uses what the server has by then."""

_CLOSED = "the store is not open; use `async with Queue(...)` or await store.open()"


class Transactions:
    """Runs the changes of one store handle."""

    def __init__(self, client: PostgresClient, cache: LaneCache) -> None:
        self.cache = cache
        self._client = client
        self._listener: Listener | None = None
        self._notifier: Notifier | None = None
        """None while the store is not open."""

    @property
    def is_open(self) -> bool:
        return self._notifier is not None

    @property
    def client(self) -> PostgresClient:
        """The client of an open store. Raises StoreUnavailable."""
        if self._notifier is None:
            raise StoreUnavailable(_CLOSED)
        return self._client

    @property
    def listener(self) -> Listener:
        """Receives the hints of an open store. Raises StoreUnavailable."""
        if self._listener is None:
            raise StoreUnavailable(_CLOSED)
        return self._listener

    @property
    def notifier(self) -> Notifier:
        """Sends the hints of an open store. Raises StoreUnavailable."""
        if self._notifier is None:
            raise StoreUnavailable(_CLOSED)
        return self._notifier

    def open(self) -> None:
        """Mark the store as open. Connections are made when they are first used."""
        self._listener = listener = Listener(self._client, self.cache)
        self._notifier = Notifier(self._client, self.cache, listener.origin, listener.deliver)

    async def close(self) -> None:
        """Send pending hints and close every connection. Calling it twice is harmless."""
        notifier, self._notifier = self._notifier, None
        listener, self._listener = self._listener, None
        async with AsyncExitStack() as closing:  # A close that is canceled closes the rest too.
            closing.push_async_callback(self._client.close)
            if notifier is not None and listener is not None:
                closing.push_async_callback(listener.close)
                await notifier.close()

    async def lanes(self, keys: Iterable[JobKey]) -> Sequence[TenantLane | None]:
        """The lane of each key, if there is one."""
        return await reads.lanes_of(self.client, self.cache, [key[:2] for key in keys])

    # Transactions ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def joined(
        self, connection: Any, items: Sequence[NewJob] | Sequence[Finish]
    ) -> AsyncGenerator[Joined | None]:
        """The caller's transaction if `connection` is one, for a change of these items. [ENQ-7]"""
        if connection is None:
            yield None
            return
        joined = await join(connection, self.client)
        try:
            async with joined.step():
                yield joined
        except StaleCache as stale:
            if not is_stale_lane(stale.__cause__):
                raise
            # A transaction that began earlier does not see a new lane, or a new priority of a lane, in its snapshot.
            found = [lane for lane in await self.lanes(item.key for item in items) if lane is not None]
            fingerprint = self.cache.fingerprint(found, {lane: lane.ranks for lane in found})
            try:
                await self.client.value("check_cache", fingerprint, repeat=True)
            except StaleCache:  # The lane has really changed, and the cache is empty by now.
                raise stale from stale.__cause__
            reason = "your transaction began before the first job of this queue or priority, and cannot see it"
            cure = "roll it back and begin it again, or use READ COMMITTED"
            raise StoreBusy(f"{self.client.shown}: {reason}; {cure}") from stale

    async def change_jobs(
        self,
        items: Sequence[Any],
        step: Callable[[UnitOfWork], list[A] | Awaitable[list[A]]],
        *,
        joined: Joined | None = None,
        repeat: bool = False,
        same_jobs: bool = False,
        urgent: bool = False,
        lock_ms: int = PATIENT_LOCK_MS,
    ) -> list[A]:
        """Lock the jobs of these items, take a step with them, and save the result in one transaction.

        `same_jobs`: a repetition after a lost reply reaches the same jobs, and no later jobs of the same ids.
        """
        if not items:
            return []
        seqs: dict[JobKey, int] = {}

        async def change() -> list[A]:
            found = await self.lanes(item.key for item in items)
            pairs = [(lane, item.key.id) for item, lane in zip(items, found, strict=True) if lane is not None]

            async def work(session: PostgresSession) -> tuple[list[A], Effects]:
                unit = await UnitOfWork.begin(session, self.cache, pairs)
                if seqs:
                    unit.keep_to(seqs)
                stepped = step(unit)
                answers = stepped if isinstance(stepped, list) else await stepped
                effects = await unit.save()
                if same_jobs:  # From here on the transaction may be committed.
                    seqs.update(unit.seqs)
                return answers, effects

            return await self.change(work, joined, repeat=repeat, urgent=urgent, lock_ms=lock_ms)

        return await retry_stale(change) if joined is None else await change()

    async def change(
        self,
        work: Callable[[PostgresSession], Awaitable[tuple[A, Effects]]],
        joined: Joined | None = None,
        *,
        repeat: bool = False,
        urgent: bool = False,
        lock_ms: int = PATIENT_LOCK_MS,
    ) -> A:
        """Do `work` in a transaction of its own, or in the caller's, and publish its effects."""
        if joined is not None:
            answers, effects = await work(joined)
        else:
            answers, effects = await self.client.change(work, repeat=repeat, urgent=urgent, lock_ms=lock_ms)
        await self.publish(effects, joined)
        return answers

    async def call(
        self,
        request: requests.Request,
        hints: list[Notice],
        joined: Joined | None,
        *,
        repeat: bool,
        done: Notice | None = None,
    ) -> tuple[int | None, bool]:
        """Call one of the hot functions. Returns its result, and whether the hints are sent.

        `done`, the hint of a single completion, is sent with the record of the job.
        """
        name, args = request
        if joined is not None:
            return await joined.value(name, *args), False
        client, notifier = self.client, self.notifier
        sent = notifier.to_send(hints) if hints else None
        if sent is None:
            return await client.value(name, *args, repeat=repeat), False
        notified = False
        try:
            with_record = () if done is None else (notifier.payload_of(done),)
            answer = await client.value(f"{name}_and_notify", *sent, *with_record, *args, repeat=repeat)
            notified = answer is not None
        except StoreUnavailable as error:
            if not is_unsent(error.__cause__):
                raise
            notifier.is_full()
            return await client.value("now", repeat=True), False
        finally:
            if not notified:
                notifier.unsent()
        return answer, True

    # After a commit -------------------------------------------------------------------------------------------

    async def publish(self, effects: Effects, joined: Joined | None, *, notified: bool = False) -> None:
        """Notify of a change: now if it is committed, or with the caller's own commit."""
        hints = effects.hints(self.cache)
        if joined is not None:
            if hints and self.client.address.notify:
                await joined.rows("notify_joined", *to_channels(self.cache.secret, payloads("", hints)))
            return
        self.cache.apply(effects.ready, effects.withdrawn)
        if self._notifier is not None and hints:
            self._notifier.notify_own(hints) if notified else self._notifier.notify(hints)

    def notify(self, hints: list[Notice]) -> None:
        """Notify the listeners of this process and of others."""
        if hints and self._notifier is not None:
            self._notifier.notify(hints)


async def retry_stale(act: Callable[[], Awaitable[A]]) -> A:
    """Do `act`, and again if it used stale cached facts: then the server has done nothing."""
    for _ in range(CACHE_TRIES - 1):
        try:
            return await act()
        except StaleCache:
            pass  # The client has read the identity of the data, and the cache is empty.
    return await act()


async def split_blocked(
    items: Sequence[B],
    act: Callable[[Sequence[B], Joined | None, int], Awaitable[list[A]]],
    joined: Joined | None = None,
    *,
    patient_ms: int = PATIENT_LOCK_MS,
) -> list[A]:
    """Act on a batch. A batch that an open transaction blocks is halved until the blocked items are alone.

    Only these wait, after all others are done, and may raise StoreBusy: the whole batch can be sent again.
    [ENQ-7, ENQ-8, LEASE-4]
    """
    if joined is not None:
        return await act(items, joined, patient_ms)  # The caller retries its own transaction.
    if len(items) == 1:
        return await retry_stale(lambda: act(items, None, patient_ms))
    answers: dict[int, A] = {}
    blocked: list[range] = []
    parts = deque([range(len(items))])
    while parts:
        part = parts.popleft()  # The larger parts first: most items are done before the blocked one is found.
        try:
            found = await retry_stale(partial(act, items[part.start : part.stop], None, BRIEF_LOCK_MS))
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
        found = await retry_stale(partial(act, items[part.start : part.stop], None, patient_ms))
        answers.update(zip(part, found, strict=True))
    return [answers[n] for n in range(len(items))]


def batches(items: Sequence[A]) -> Iterable[Sequence[A]]:
    """The items in batches that one statement takes."""
    return (items[at : at + MAX_BATCH] for at in range(0, len(items), MAX_BATCH))
