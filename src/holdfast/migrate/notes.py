"""What must outlive a mover that is killed, kept as jobs in the target, in the tenant's queue `holdfast:moves`.

    turn            held under a lease by the mover at work: there is one at a time
    queue:NAME      how a queue was before the mover paused it, here and there; written first

Nobody hands them out: the notes wait for a day that is years away. All are canceled when the move is done.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from typing import NoReturn, Self

import msgspec
from msgspec import Struct

from holdfast.core.errors import QuotaExceeded, StoreBusy, StoreUnavailable
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
    NewJob,
)
from holdfast.core.names import MOVES
from holdfast.ids import new_id
from holdfast.migrate.steps import pages
from holdfast.store import EnqueueAnswer, Store

TYPE = "holdfast:move"
LEASE_MS = 15 * SECOND
SLACK_S = 2.0
"""For so much longer than a lease is the turn of another mover waited for."""
TURN = "turn"
_NOTE = "queue:"
_NEVER = 10 * 365 * DAY
_LOOK_S = 0.2


class Note(Struct, frozen=True):
    """How a queue was before it was paused."""

    queue: str
    source_paused: bool
    target_paused: bool


class _Origin(Struct, frozen=True):
    """Of which store the tenant comes. The first mover settles it, and others go on with that."""

    source: str


class Turn:
    """The turn of one mover. It ends with its lease: whoever comes after one that was killed waits that long."""

    def __init__(self, target: Store, tenant: str, lease_ms: int, job: Job) -> None:
        self._target, self._tenant, self._lease_ms, self.job = target, tenant, lease_ms, job
        self._until = 0.0
        self.lost = False

    @classmethod
    async def take(cls, target: Store, tenant: str, source: str, lease_ms: int = LEASE_MS) -> Self:
        """Have the turn. Raises StoreBusy where another mover has it, or another move has not ended."""
        envelope = Envelope(
            TYPE, msgspec.json.encode(_Origin(source)), priority=9, max_attempts=100, backoff=Backoff(0, 1.0, 0),
            result_ttl_ms=0, request_id=new_id(),
        )  # fmt: skip
        key = JobKey(tenant, MOVES, TURN)
        _accepted(await target.enqueue([NewJob(key, envelope, replace_failed=True)]))
        request = ClaimRequest(tenant, (MOVES,), 1, lease_ms, f"move-{new_id()}", random.random())  # noqa: S311
        patience = time.monotonic() + lease_ms / 1000 + SLACK_S
        while True:
            began = time.monotonic()
            claimed = await target.claim(request)
            if claimed.jobs:
                turn = cls(target, tenant, lease_ms, claimed.jobs[0])
                turn._until = began + lease_ms / 1000
                break
            if began > patience:
                raise StoreBusy(f"another move of tenant {tenant!r} into this store is under way")
            await asyncio.sleep(_LOOK_S)
        said = msgspec.json.decode(turn.job.envelope.payload, type=_Origin).source
        if said != source:
            await turn.give_back()
            raise StoreBusy(
                f"a move of tenant {tenant!r} from {said} into this store has not ended; end it first, with that SRC"
            )
        return turn

    async def hold(self) -> NoReturn:
        """Renew the lease for as long as this runs. Raises StoreBusy when it is lost. [LEASE-4]"""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            began = time.monotonic()
            try:
                answer = (await self._target.extend([Extend(self.job.key, self.job.token, self._lease_ms)]))[0]
            except (StoreBusy, StoreUnavailable):
                if time.monotonic() < self._until:
                    continue
                self.lost = True
                raise
            if not isinstance(answer, Extended):
                self.lost = True
                raise StoreBusy("this mover was taken for dead, and another one may be at work")
            self._until = began + self._lease_ms / 1000

    async def give_back(self) -> None:
        """Let another one have it: the move has not ended."""
        await self._target.finish([Finish(self.job.key, self.job.token, "release")])

    async def notes(self) -> dict[str, Note]:
        """How queues were before they were paused."""
        return await read_notes(self._target, self._tenant)

    async def write(self, notes: Iterable[Note]) -> None:
        """Note how queues are, before anything is done to them."""
        new = [
            NewJob(
                JobKey(self._tenant, MOVES, _NOTE + note.queue),
                Envelope(TYPE, msgspec.json.encode(note), request_id=new_id()),
                delay_ms=_NEVER,
            )
            for note in notes
        ]
        _accepted(await self._target.enqueue(new))

    async def end(self, notes: Iterable[Note]) -> None:
        """Forget all of it: the move is done, or nothing came of it. The turn is the last to go."""
        await self._target.cancel([Cancel(JobKey(self._tenant, MOVES, _NOTE + note.queue)) for note in notes])
        await self._target.cancel([Cancel(self.job.key)])


async def read_notes(target: Store, tenant: str) -> dict[str, Note]:
    """What a mover that has not ended its move has noted, by queue."""
    found: dict[str, Note] = {}
    async for page in pages(target, tenant, MOVES):
        for job in page.jobs:
            if job.id.startswith(_NOTE):
                note = msgspec.json.decode(job.envelope.payload, type=Note)
                found[note.queue] = note
    return found


def _accepted(answers: Iterable[EnqueueAnswer]) -> None:
    for answer in answers:
        if isinstance(answer, QuotaExceeded):
            raise StoreBusy(f"DST has no room: {answer}")
