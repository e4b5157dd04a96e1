"""What must outlive a mover that is killed, kept in both stores as jobs of the tenant's queue `holdfast:moves`.

    turn            held under a lease by the mover at work, in both stores: there is one at a time
    out:N, in:N     in the source, in the target: which move this is, and how queues were before it paused them
    take:N, took:N  in the source: when the mover began to take jobs away, and when it ended
    over:0          in the source: all is moved, and the target may forget

They are never claimed: all but the turn are scheduled years ahead. All are canceled when the move is done. The
source has the say: a move has begun when its first note is there, and has ended when none is.
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
from holdfast.migrate.steps import TURN, holds, pages, taken_for_dead
from holdfast.store import EnqueueAnswer, Store

TYPE = "holdfast:move"
LEASE_MS = 15 * SECOND
SLACK_S = 2.0
"""How much longer than a lease to wait for another mover's turn."""
EVER = 2**53
_CHUNK = 500
_NEVER = 10 * 365 * DAY
_LOOK_S = 0.2


class MoveInfo(Struct, frozen=True):
    """A move that has begun, as both stores know it."""

    id: str
    source: str
    target: str
    skew_ms: int = 0
    """By how much the target's clock is ahead of the source's."""

    def __str__(self) -> str:
        return f"from {self.source} to {self.target}"


class PausedQueue(Struct, frozen=True):
    """How a queue was before it was paused."""

    queue: str
    source_paused: bool
    target_paused: bool


class _Entry(Struct, frozen=True):
    info: MoveInfo
    queues: tuple[PausedQueue, ...]


class MoveRecord(Struct):
    """What one store knows of a move that has not ended."""

    info: MoveInfo | None = None
    leaves: bool = False
    """It is the source."""
    notes: dict[str, PausedQueue] = field(default_factory=dict[str, PausedQueue])
    began: dict[int, int] = field(default_factory=dict[int, int])
    ended: dict[int, int] = field(default_factory=dict[int, int])
    """When jobs were taken away, time after time."""
    over: bool = False
    """Nothing is left to do but to forget it."""
    ids: list[str] = field(default_factory=list[str])

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The times in which jobs were taken away. One that was cut off has no end."""
        return tuple((at, self.ended.get(number, EVER)) for number, at in self.began.items())


class MoveLog:
    """The record of a move in one of its stores."""

    def __init__(self, store: Store, tenant: str, name: str) -> None:
        self.store, self.tenant, self.name = store, tenant, name
        self.record = MoveRecord(leaves=name == "SRC")

    async def read(self) -> MoveRecord:
        """What is noted here, by whichever move. What a kill has left of one that had ended is removed."""
        record = await self.look()
        if record.info is None and record.ids:
            await self.end()
        return self.record

    async def look(self) -> MoveRecord:
        """What is noted here, by whichever move. Changes nothing."""
        record = self.record = MoveRecord(leaves=self.name == "SRC")
        async for page in pages(self.store, self.tenant, MOVES):
            for job in page.jobs:
                kind, _, number = job.id.partition(":")
                if kind in ("out", "in"):
                    noted = msgspec.json.decode(job.envelope.payload, type=_Entry)
                    record.info, record.leaves = noted.info, kind == "out"
                    record.notes |= {note.queue: note for note in noted.queues}
                elif kind in ("take", "took"):
                    times = record.began if kind == "take" else record.ended
                    times[int(number)] = msgspec.json.decode(job.envelope.payload, type=int)
                elif kind == "over":
                    record.over = True
                else:
                    continue
                record.ids.append(job.id)
        return record

    async def write(self, info: MoveInfo, notes: Sequence[PausedQueue]) -> None:
        """PausedQueue how queues are, before anything is done to them."""
        record, kind = self.record, "out" if self.record.leaves else "in"
        parts = [notes[n : n + _CHUNK] for n in range(0, len(notes), _CHUNK)]
        first = sum(1 for id in record.ids if id.startswith(kind))
        new = {f"{kind}:{first + n}": _Entry(info, tuple(part)) for n, part in enumerate(parts)}
        # Known before it is written, so that an interrupted mover can still remove it.
        record.info = info
        record.notes |= {note.queue: note for note in notes}
        await self._put(new)

    async def began(self, at: int) -> None:
        """PausedQueue that jobs are taken away from now on."""
        number = len(self.record.began)
        self.record.began[number] = at
        await self._put({f"take:{number}": at})

    async def ended(self, at: int) -> None:
        """PausedQueue that nothing is taken away any more, for now."""
        for number in self.record.began.keys() - self.record.ended.keys():
            self.record.ended[number] = at
            await self._put({f"took:{number}": at})

    async def over(self) -> None:
        """PausedQueue that all is moved."""
        if not self.record.over:
            self.record.over = True
            await self._put({"over:0": True})

    async def end(self) -> None:
        """Forget all of it: the move is done, or nothing came of it."""
        # The times last: without them a mover that comes after a kill would take what has moved for canceled.
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
                delay_ms=_NEVER,
            )
            for id, payload in payloads.items()
        ]
        _accepted(await self.store.enqueue(new), self.name)


class MoverLease:
    """The lease of one mover at one store. The next mover waits until the lease of a killed one runs out."""

    def __init__(self, store: Store, job: Job, lease_ms: int, until: float, before: int) -> None:
        self._store, self.job, self._lease_ms, self._until = store, job, lease_ms, until
        self.before = before
        """When the lease of the mover before this one ended, by the store's clock; 0 if that is not known."""

    @classmethod
    async def take(cls, store: Store, tenant: str, name: str, worker: str, lease_ms: int = LEASE_MS) -> Self:
        """Have the turn. Raises StoreBusy where another mover has it, InvalidOption if this one has it already."""
        key = JobKey(tenant, MOVES, TURN)
        request = ClaimRequest(tenant, (MOVES,), 1, lease_ms, worker, random.random())  # noqa: S311
        patience = boot_time() + lease_ms / 1000 + SLACK_S
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
            began = boot_time()
            claimed = await store.claim(request)
            if claimed.jobs:
                return cls(store, claimed.jobs[0], lease_ms, began + lease_ms / 1000, before)
            if began > patience:
                raise StoreBusy(f"another move of tenant {tenant!r} is under way in {name}")
            await asyncio.sleep(_LOOK_S)

    async def hold(self) -> NoReturn:
        """Renew the lease for as long as this runs. Raises StoreBusy when it is lost. [LEASE-4]"""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            began = boot_time()
            try:
                answer = (await self._store.extend([Extend(self.job.key, self.job.token, self._lease_ms)]))[0]
            except (StoreBusy, StoreUnavailable):
                if boot_time() < self._until:
                    continue
                raise
            if not isinstance(answer, Extended):
                raise taken_for_dead()
            self._until = began + self._lease_ms / 1000

    async def held(self) -> bool:
        """Whether no other mover has it."""
        return await holds(self._store, self.job.tenant, self.job.worker_id)

    async def give_back(self) -> None:
        """Let another one have it. Where the store cannot be reached, the lease ends by itself."""
        with contextlib.suppress(HoldfastError):
            # By the token: the turn of another mover that took this one for dead is not touched. [LEASE-1]
            await self._store.finish([Finish(self.job.key, self.job.token, "complete", Result(b"null"))])


def _accepted(answers: Iterable[EnqueueAnswer], name: str) -> None:
    for answer in answers:
        if isinstance(answer, QuotaExceeded):
            raise StoreBusy(
                f"{name} has no room for the notes of a move: {answer.waiting} jobs wait and the quota is "
                f"{answer.limit}; raise it there for the time of the move (holdfast tenant set)"
            )
