"""The order in which a tenant is moved, so that no job is lost or runs twice wherever the mover is killed.

    1. take the turn, and note in the target how each queue is, here and there       (`notes`)
    2. pause the queues in the source, then in the target; wait for what still runs in the source
    3. copy, verify, take away (`steps`), pass after pass until nothing waits in the source
    4. let the queues go on in the target, then in the source, as they were; forget the notes

A job is handed out by neither store while both have it. What fails before anything was copied leaves all as it was;
after that both stay paused, and the next mover goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct, field
from msgspec.structs import force_setattr

from holdfast.core.errors import HoldfastError, InvalidOption, StoreBusy, StoreMismatch
from holdfast.core.failpoint import hit
from holdfast.core.job import CLAIMABLE, JobState
from holdfast.core.names import FLOWS, MOVES, SCHEDULES, check_tenant
from holdfast.migrate.copies import SUM
from holdfast.migrate.notes import LEASE_MS, Note, Turn, read_notes
from holdfast.migrate.steps import Errand, Receipt, Step, Tell, pages, walk
from holdfast.store import (
    QueueStats,
    Store,
    Tenanted,
    TenantSettings,
    absolute,
    existing,
    make_store,
    parse_url,
    shown_url,
)

WAIT_S = 60.0
LOOK_S = 0.1
REAP = 1000
IDLE = 10
"""After so many passes that found nothing, although something was counted, the mover gives up."""
_FINISHED = (JobState.COMPLETED, JobState.FAILED)

Walker = Callable[[Errand, Sequence[str], Tell], Awaitable[Sequence[Receipt]]]
"""Does one step to several queues."""
Progress = Callable[[str, int], AbstractContextManager[Tell]]
"""Shows how far a step is: what it is called, and how many jobs there are."""


@contextlib.contextmanager
def silent(_label: str, _total: int) -> Generator[Tell]:
    """Shows nothing."""
    yield lambda _: None


class Plan(Struct, frozen=True):
    """Whose jobs to move, from where and to where."""

    source: str
    target: str
    tenant: str
    wait_s: float = WAIT_S
    """How long jobs that run in the source are waited for."""
    lease_ms: int = LEASE_MS

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        force_setattr(self, "source", absolute(self.source))
        force_setattr(self, "target", absolute(self.target))
        here, there = parse_url(self.source), parse_url(self.target)
        if (here.scheme, here.rest, here.options) == (there.scheme, there.rest, there.options):
            raise _same(self.source)


class MovedQueue(Struct):
    """What became of one queue."""

    queue: str
    jobs: int = 0
    """Moved."""
    source_sum: int = 0
    target_sum: int = 0
    """Order-free checksums (modulo 2^64) of what was read in the source, and of what the target has of it."""
    left: int = 0
    """Jobs that did not wait any more when they were to be taken away: they stay in the source."""
    finished: int = 0
    """Finished ones, which stay in the source, too."""
    paused: bool = False
    """In the target."""


class Moved(Struct):
    """What a move came to."""

    source: str
    target: str
    tenant: str
    queues: list[MovedQueue] = field(default_factory=list[MovedQueue])
    settings: int = 0
    """How many settings (weights, quotas) the target took over."""
    passes: int = 0
    resumed: bool = False
    """It went on with a move that had not ended."""

    @property
    def jobs(self) -> int:
        return sum(one.jobs for one in self.queues)

    @property
    def left(self) -> int:
        return sum(one.left for one in self.queues)


async def preview(plan: Plan) -> Sequence[QueueStats]:
    """The tenant's queues in the source, with their counts. Changes nothing. Raises InvalidOption where it has none."""
    async with _opened(existing(plan.source), "SRC") as source:
        found = [one for one in await source.stats(plan.tenant) if one.queue != MOVES]
        if not found and not await _known(source, plan.tenant):
            raise _unknown(plan)
        return found


async def move(plan: Plan, walker: Walker | None = None, progress: Progress = silent) -> Moved:
    """Move what waits of a tenant. `walker` does the steps elsewhere; by default they are done here.

    Raises InvalidOption (unknown tenant, the same store twice, a store that cannot take part), StoreBusy (jobs or
    flows that still run, another move, no room by a quota), StoreMismatch with the first jobs that differ.
    """
    async with _opened(existing(plan.source), "SRC") as source, _opened(plan.target, "DST") as target:
        if not await _known(source, plan.tenant) and not await read_notes(target, plan.tenant):
            raise _unknown(plan)
        turn = await Turn.take(target, plan.tenant, shown_url(plan.source), plan.lease_ms)
        work = asyncio.ensure_future(_Move(plan, source, target, turn, walker, progress).run())
        beat = asyncio.ensure_future(turn.hold())
        try:
            await asyncio.wait((work, beat), return_when=asyncio.FIRST_COMPLETED)
            # A turn that is lost ends the work: another mover may have begun.
            return work.result() if work.done() else beat.result()
        finally:
            for task in (work, beat):
                task.cancel()
            await asyncio.gather(work, beat, return_exceptions=True)


class _Move:
    def __init__(
        self, plan: Plan, source: Store, target: Store, turn: Turn, walker: Walker | None, progress: Progress
    ) -> None:
        self._plan, self._source, self._target, self._turn = plan, source, target, turn
        self._walker, self._progress = walker or self._here, progress
        self._tenant = plan.tenant
        self._notes: dict[str, Note] = {}
        self._queues: dict[str, MovedQueue] = {}
        self._copied = False
        self._idle = 0
        self._moved = Moved(shown_url(plan.source), shown_url(plan.target), plan.tenant)

    async def run(self) -> Moved:
        """All of it."""
        self._notes = await self._turn.notes()
        self._copied = self._moved.resumed = bool(self._notes)
        try:
            await self._check_apart()
            await self._stop()
            if self._copied:
                await self._walk("settle", list(self._notes), 0, await self._source.now())
            while waiting := await self._waiting():
                await self._pass(waiting)
                await self._stop()
        except BaseException as error:
            await self._abandon(error)
            raise
        await self._copy_settings()
        hit("move.before_resume")
        await self._resume()
        hit("move.resumed")
        await self._turn.end(self._notes.values())
        self._moved.queues = [self._queues[name] for name in sorted(self._queues)]
        return self._moved

    # Stopping and going on --------------------------------------------------------------------------------

    async def _check_apart(self) -> None:
        """Two addresses can be of one store: then the source has our turn."""
        mine = self._turn.job
        found = (await self._source.get([mine.key]))[0]
        if found is not None and found.worker_id == mine.worker_id:
            raise _same(self._plan.source)

    async def _stop(self) -> None:
        """Have neither store hand out jobs of the tenant's queues, and wait until none runs in the source."""
        stats = {one.queue: one for one in await self._source.stats(self._tenant) if one.queue != MOVES}
        # Also where there are none yet: a flow that is started now must not begin.
        names = [name for name in dict.fromkeys((*stats, SCHEDULES, FLOWS)) if name not in self._queues]
        for name in names:
            one = stats.get(name)
            finished = 0 if one is None else sum(one.counts.get(state, 0) for state in _FINISHED)
            self._queues[name] = MovedQueue(name, finished=finished)
        fresh = [name for name in names if name not in self._notes]
        if fresh:
            there = {one.queue: one.paused for one in await self._target.stats(self._tenant, fresh)}
            notes = [Note(name, name in stats and stats[name].paused, there.get(name, False)) for name in fresh]
            await self._turn.write(notes)
            self._notes |= {note.queue: note for note in notes}
            hit("move.noted")
        for name in names:
            await self._source.pause(self._tenant, name, paused=True)
        hit("move.source_paused")
        for name in names:
            await self._target.pause(self._tenant, name, paused=True)
        hit("move.target_paused")
        await self._check_flows()
        await self._wait()

    async def _check_flows(self) -> None:
        """A flow that has begun has steps that end in the source. One that has not is a job like others."""
        begun = 0
        async for page in pages(self._source, self._tenant, FLOWS, CLAIMABLE | {JobState.LEASED}):
            begun += sum(1 for job in page.jobs if job.token)
        if begun:
            raise StoreBusy(f"{_count(begun, 'flow is', 'flows are')} under way in SRC; wait for them, or cancel them")

    async def _wait(self) -> None:
        until = time.monotonic() + self._plan.wait_s
        while True:
            stats = await self._source.stats(self._tenant, list(self._notes))
            running = {one.queue: count for one in stats if (count := one.counts.get(JobState.LEASED, 0))}
            if not running:
                return
            if time.monotonic() >= until:
                said = ", ".join(f"{count} in {queue}" for queue, count in running.items())
                raise StoreBusy(
                    f"{_count(sum(running.values()), 'job', 'jobs')} of {self._tenant!r} still ran in SRC after "
                    f"{self._plan.wait_s:g} s ({said}); try again with a longer --wait, or when they have ended"
                )
            # Nobody else may be there to end the leases of the dead.
            await self._source.reap(REAP, random.random())  # noqa: S311
            await asyncio.sleep(LOOK_S)

    async def _abandon(self, error: BaseException) -> None:
        """Leave all as it was where nothing was copied; else as it is, and say so."""
        with contextlib.suppress(HoldfastError):
            if self._turn.lost:
                return
            if not self._copied:
                await self._resume(carry=False)
                await self._turn.end(self._notes.values())
                error.add_note("Nothing was moved, and the queues are as they were.")
                return
            await self._turn.give_back()
        error.add_note(
            f"The queues {', '.join(sorted(self._notes))} are paused in both stores, so that no job runs twice. "
            "The same command goes on from here, and lets them run again when it is done."
        )

    async def _resume(self, *, carry: bool = True) -> None:
        """Let queues go on as they did; in the target, those that were paused in the source stay paused."""
        for note in self._notes.values():
            paused = note.target_paused or (carry and note.source_paused)
            await self._target.pause(self._tenant, note.queue, paused=paused)
            if note.queue in self._queues:
                self._queues[note.queue].paused = paused
        hit("move.target_resumed")
        for note in self._notes.values():
            await self._source.pause(self._tenant, note.queue, paused=note.source_paused)

    async def _copy_settings(self) -> None:
        """Weights and quotas, where the target says nothing itself; last, so that no quota is in the way."""
        there = {one.queue: one for one in await self._target.tenant_settings(self._tenant)}
        for one in await self._source.tenant_settings(self._tenant):
            own = there.get(one.queue, TenantSettings(one.queue))
            weight = one.weight if own.weight is None else None
            max_waiting = one.max_waiting if own.max_waiting is None else None
            if weight is not None or max_waiting is not None:
                await self._target.set_tenant(self._tenant, TenantSettings(one.queue, weight, max_waiting))
                self._moved.settings += 1

    # Passes -----------------------------------------------------------------------------------------------

    async def _waiting(self) -> dict[str, int]:
        """How many jobs wait in the source, in which queues."""
        stats = await self._source.stats(self._tenant, list(self._notes))
        counts = {one.queue: sum(one.counts.get(state, 0) for state in CLAIMABLE) for one in stats}
        return {queue: count for queue, count in counts.items() if count}

    async def _pass(self, waiting: dict[str, int]) -> None:
        queues, total = list(waiting), sum(waiting.values())
        self._copied = True
        self._moved.passes += 1
        paused_at = await self._source.now()
        copied = await self._walk("copy", queues, total, paused_at)
        _refuse(copied.values())
        hit("move.copied")
        verified = await self._walk("verify", queues, total, paused_at)
        for queue, one in verified.items():
            # Where nothing has come since the copying, nothing may be missing.
            if (one.seen, one.seen_sum) == (copied[queue].seen, copied[queue].seen_sum):
                one.differences += one.missing
        _refuse(verified.values())
        hit("move.verified")
        since = await self._source.now()
        taken = await self._walk("take", queues, total, paused_at, since)
        hit("move.taken")
        if not any(one.jobs or one.left for one in taken.values()):
            _refuse(Receipt(one.queue, differences=one.missing) for one in verified.values())
            self._idle += 1
            if self._idle == IDLE:
                raise StoreMismatch(f"SRC counts jobs in {', '.join(queues)} that it does not list")
        for queue, one in verified.items():
            moved = self._queues[queue]
            moved.jobs += copied[queue].seen
            moved.source_sum = (moved.source_sum + one.source_sum) % SUM
            moved.target_sum = (moved.target_sum + one.target_sum) % SUM
            self._stay(queue, taken[queue].left)
        unsettled = [queue for queue in queues if copied[queue].seen != taken[queue].jobs + taken[queue].left]
        if unsettled:
            for queue, one in (await self._walk("settle", unsettled, 0, paused_at, since)).items():
                self._stay(queue, one.left)

    def _stay(self, queue: str, count: int) -> None:
        self._queues[queue].jobs -= count
        self._queues[queue].left += count

    async def _walk(
        self, step: Step, queues: Sequence[str], total: int, paused_at: int, since: int = 0
    ) -> dict[str, Receipt]:
        errand = Errand(step, self._tenant, paused_at, since)
        with self._progress(step, total) as tell:
            return {receipt.queue: receipt for receipt in await self._walker(errand, queues, tell)}

    async def _here(self, errand: Errand, queues: Sequence[str], tell: Tell) -> Sequence[Receipt]:
        return [await walk(errand, self._source, self._target, queue, tell) for queue in queues]


def _refuse(receipts: Iterable[Receipt]) -> None:
    """Raise StoreMismatch with the first jobs that differ, if there are any."""
    said = [line for receipt in receipts for line in receipt.differences]
    if said:
        lines = "\n  ".join(said[:10])
        raise StoreMismatch(f"DST does not have what SRC has, so nothing of it is taken away:\n  {lines}")


@contextlib.asynccontextmanager
async def _opened(url: str, name: str) -> AsyncGenerator[Store]:
    store = make_store(url)
    if isinstance(store, Tenanted):
        raise InvalidOption(name, "a service does not show all of a job; give the address of the store behind it")
    try:
        try:
            await store.open()
        except HoldfastError as error:
            error.add_note(f"That is {name}, {shown_url(url)}.")
            raise
        yield store
    finally:
        await store.close()


async def _known(source: Store, tenant: str) -> bool:
    if await source.stats(tenant):
        return True
    settings = await source.tenant_settings(tenant)
    return any(one.weight is not None or one.max_waiting is not None for one in settings)


def _same(url: str) -> InvalidOption:
    return InvalidOption("DST", f"{shown_url(url)} is SRC itself; give another store")


def _unknown(plan: Plan) -> InvalidOption:
    return InvalidOption("tenant", f"there are no jobs or settings of {plan.tenant!r} in {shown_url(plan.source)}")


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
