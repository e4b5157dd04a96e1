"""The log of a move: what must survive if the mover is killed. Kept in both stores as jobs in `holdfast:moves`.

    mover           leased by the running mover, in both stores, so that only one runs at a time
    out:N, in:N     in the source, in the target: which move this is, and which queues were paused before it
    take:N, took:N  in the source: when the mover began to take jobs away, and when it stopped
    over:0          in the source: everything is moved, and the target may delete its log

No worker claims these jobs: all but the lease are scheduled years ahead. All are canceled when the move is done. The
log of the source decides: a move has begun when its first entry exists, and has ended when none does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, Self

import msgspec
from msgspec import Struct, field

from holdfast.clock import boot_time
from holdfast.core.errors import HoldfastError, InvalidOption, QuotaExceeded, StoreBusy, StoreUnavailable
from holdfast.core.job import (
    DAY,
    SECOND,
    Backoff,
    Cancel,
    ClaimRequest,
    Envelope,
    Extend,
    Extended,
    Finish,
    Job,
    JobKey,
    JobState,
    NewJob,
    Result,
)
from holdfast.core.names import MOVES
from holdfast.ids import new_id
from holdfast.migrate.steps import LEASE_ID, has_lease, lease_lost, pages
from holdfast.store import EnqueueAnswer, Store

TYPE = "holdfast:move"
LEASE_MS = 15 * SECOND
SLACK_S = 2.0
"""How much longer than a lease to wait for another mover."""
NO_END = 2**53
_CHUNK = 500
_NEVER_DUE_MS = 10 * 365 * DAY
_POLL_S = 0.2


class MoveInfo(Struct, frozen=True):
    """A move that has begun, as both stores know it."""

    id: str
    source: str
    target: str
    skew_ms: int = 0
    """How far the target's clock is ahead of the source's."""

    def __str__(self) -> str:
        return f"from {self.source} to {self.target}"


class PausedQueue(Struct, frozen=True):
    """Whether a queue was paused before the move, in each store."""

    queue: str
    source_paused: bool
    target_paused: bool


class _Entry(Struct, frozen=True):
    info: MoveInfo
    queues: tuple[PausedQueue, ...]


class MoveRecord(Struct):
    """What the log of one store says about a move that has not ended."""

    info: MoveInfo | None = None
    leaves: bool = False
    """This store is the source."""
    paused: dict[str, PausedQueue] = field(default_factory=dict[str, PausedQueue])
    began: dict[int, int] = field(default_factory=dict[int, int])
    ended: dict[int, int] = field(default_factory=dict[int, int])
    """When each removal of jobs began and ended, by number."""
    over: bool = False
    """Nothing is left to do but to delete the log."""
    ids: list[str] = field(default_factory=list[str])

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The times in which jobs were taken away. One that was interrupted has no end."""
        return tuple((at, self.ended.get(number, NO_END)) for number, at in self.began.items())


class MoveLog:
    """The log of a move in one of its stores."""

    def __init__(self, store: Store, tenant: str, name: str) -> None:
        self.store, self.tenant, self.name = store, tenant, name
        self.record = MoveRecord(leaves=name == "SRC")

    async def read(self) -> MoveRecord:
        """Read the log of any move. If the move had ended and its mover was killed, deletes the rest of the log."""
        record = await self.look()
        if record.info is None and record.ids:
            await self.end()
        return self.record

    async def look(self) -> MoveRecord:
        """Read the log of any move. Changes nothing."""
        record = self.record = MoveRecord(leaves=self.name == "SRC")
        async for page in pages(self.store, self.tenant, MOVES):
            for job in page.jobs:
                kind, _, number = job.id.partition(":")
                if kind in ("out", "in"):
                    entry = msgspec.json.decode(job.envelope.payload, type=_Entry)
                    record.info, record.leaves = entry.info, kind == "out"
                    record.paused |= {one.queue: one for one in entry.queues}
                elif kind in ("take", "took"):
                    times = record.began if kind == "take" else record.ended
                    times[int(number)] = msgspec.json.decode(job.envelope.payload, type=int)
                elif kind == "over":
                    record.over = True
                else:
                    continue
                record.ids.append(job.id)
        return record

    async def write(self, info: MoveInfo, queues: Sequence[PausedQueue]) -> None:
        """Log which queues are paused, before this move pauses any."""
        record, kind = self.record, "out" if self.record.leaves else "in"
        parts = [queues[n : n + _CHUNK] for n in range(0, len(queues), _CHUNK)]
        first = sum(1 for id in record.ids if id.startswith(kind))
        new = {f"{kind}:{first + n}": _Entry(info, tuple(part)) for n, part in enumerate(parts)}
        # Recorded before it is written, so that an interrupted mover can still delete it.
        record.info = info
        record.paused |= {one.queue: one for one in queues}
        await self._put(new)

    async def began(self, at: int) -> None:
        """Log that jobs are taken away from now on."""
        number = len(self.record.began)
        self.record.began[number] = at
        await self._put({f"take:{number}": at})

    async def ended(self, at: int) -> None:
        """Log that the removal of jobs has stopped, for now."""
        for number in self.record.began.keys() - self.record.ended.keys():
            self.record.ended[number] = at
            await self._put({f"took:{number}": at})

    async def over(self) -> None:
        """Log that everything is moved."""
        if not self.record.over:
            self.record.over = True
            await self._put({"over:0": True})

    async def end(self) -> None:
        """Delete the log: the move is done, or was given up."""
        # Delete the times last: without them, the mover after a killed one would take moved jobs for canceled ones.
        late = [id for id in self.record.ids if id.startswith(("take:", "took:", "over:"))]
        for ids in ([id for id in self.record.ids if id not in late], late):
            if ids:
                await self.store.cancel([Cancel(JobKey(self.tenant, MOVES, id)) for id in ids])
        self.record = MoveRecord(leaves=self.record.leaves)

    async def _put(self, payloads: Mapping[str, object]) -> None:
        self.record.ids += list(payloads)
        new = [
            NewJob(
                JobKey(self.tenant, MOVES, id),
                Envelope(TYPE, msgspec.json.encode(payload), request_id=new_id()),
                delay_ms=_NEVER_DUE_MS,
            )
            for id, payload in payloads.items()
        ]
        _accepted(await self.store.enqueue(new), self.name)


class MoverLease:
    """The lease of a mover in one store. After a kill the next mover waits until it expires."""

    def __init__(self, store: Store, job: Job, lease_ms: int, until: float, before: int) -> None:
        self._store, self.job, self._lease_ms, self._until = store, job, lease_ms, until
        self.before = before
        """When the previous mover's lease ended, by the store's clock; 0 if unknown."""

    @classmethod
    async def take(cls, store: Store, tenant: str, name: str, worker: str, lease_ms: int = LEASE_MS) -> Self:
        """Take the lease. Raises StoreBusy if another mover has it, InvalidOption if this one has it already."""
        key = JobKey(tenant, MOVES, LEASE_ID)
        request = ClaimRequest(tenant, (MOVES,), 1, lease_ms, worker, random.random())  # noqa: S311
        give_up_at = boot_time() + lease_ms / 1000 + SLACK_S
        before = 0
        while True:
            found = (await store.get([key]))[0]
            if found is not None and found.state is JobState.LEASED:
                if found.worker_id == worker:
                    raise InvalidOption("DST", "that is SRC itself, by another address; give another store")
                before = found.deadline
            envelope = Envelope(
                TYPE, b"", priority=9, max_attempts=100, backoff=Backoff(0, 1.0, 0), result_ttl_ms=0,
                request_id=new_id(),
            )  # fmt: skip
            _accepted(await store.enqueue([NewJob(key, envelope, replace_failed=True)]), name)
            sent_at = boot_time()
            claimed = await store.claim(request)
            if claimed.jobs:
                return cls(store, claimed.jobs[0], lease_ms, sent_at + lease_ms / 1000, before)
            if sent_at > give_up_at:
                raise StoreBusy(f"another move of tenant {tenant!r} is under way in {name}")
            await asyncio.sleep(_POLL_S)

    async def renew(self) -> NoReturn:
        """Renew the lease until this is canceled. Raises StoreBusy when the lease is lost. [LEASE-4]"""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            sent_at = boot_time()
            try:
                answer = (await self._store.extend([Extend(self.job.key, self.job.token, self._lease_ms)]))[0]
            except (StoreBusy, StoreUnavailable):
                if boot_time() < self._until:
                    continue
                raise
            if not isinstance(answer, Extended):
                raise lease_lost()
            self._until = sent_at + self._lease_ms / 1000

    async def is_held(self) -> bool:
        """Whether this mover still has the lease."""
        return await has_lease(self._store, self.job.tenant, self.job.worker_id)

    async def release(self) -> None:
        """Give up the lease. If the store cannot be reached, it expires by itself."""
        with contextlib.suppress(HoldfastError):
            # By the token: the lease of a mover that has taken over is not touched. [LEASE-1]
            await self._store.finish([Finish(self.job.key, self.job.token, "complete", Result(b"null"))])


def _accepted(answers: Iterable[EnqueueAnswer], name: str) -> None:
    for answer in answers:
        if isinstance(answer, QuotaExceeded):
            raise StoreBusy(
                f"{name} has no room for the log of a move: {answer.waiting} jobs wait and the quota is "
                f"{answer.limit}; raise it there until the move is done (holdfast tenant set)"
            )
