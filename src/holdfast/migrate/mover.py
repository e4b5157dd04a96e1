"""The order in which a tenant is moved, so that no job is lost or runs twice wherever the mover is killed.

    1. take the turn in both stores, and see that no other move of the tenant is open in either    (`notes`)
    2. note how each queue is, here and there; pause them in the source, then in the target; wait for what still runs
    3. copy, verify, take away (`steps`), pass after pass until nothing waits in the source
    4. let the queues go on in the target, then in the source, as they were; forget the notes

A job is handed out by neither store while both have it. What fails while no job is in both lets the queues go on as
they were; else both stay paused, and the next mover goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.budgets import left_out
from holdfast.core.errors import HoldfastError, InvalidOption, StoreBusy, StoreMismatch
from holdfast.core.failpoint import hit
from holdfast.core.job import CLAIMABLE, WAITING, JobKey, JobState
from holdfast.core.names import FLOWS, MOVES, SCHEDULES
from holdfast.ids import new_id
from holdfast.migrate.copies import SLACK_MS, SUM, CopyMapping
from holdfast.migrate.moved import Moved, MovedQueue
from holdfast.migrate.notes import EVER, MoveInfo, MoveLog, MoverLease, PausedQueue
from holdfast.migrate.plan import MovePlan, opened
from holdfast.migrate.steps import TURN, Receipt, Step, StepInput, Tell, no_room, pages, taken_for_dead, walk
from holdfast.opening import existing, shown_url
from holdfast.store import QueueStats, Store, TenantSettings

LOOK_S = 0.1
REAP = 1000
IDLE = 10
"""The mover gives up after this many passes that found nothing although jobs were counted."""
_FINISHED = (JobState.COMPLETED, JobState.FAILED)

Walker = Callable[[StepInput, Sequence[str], Tell], Awaitable[Sequence[Receipt]]]
"""Does one step to several queues."""
Progress = Callable[[str, int], AbstractContextManager[Tell]]
"""Shows how far a step is: what it is called, and how many jobs there are."""


@contextlib.contextmanager
def silent(_label: str, _total: int) -> Generator[Tell]:
    """Shows nothing."""
    yield lambda _: None


class Preview(Struct, frozen=True):
    """A tenant before a move."""

    queues: list[QueueStats]
    """Those in the source, with their counts."""
    info: MoveInfo | None = None
    """A move of the tenant that has begun and not ended, from here or to here."""
    under_way: bool = False
    """Another mover works on it; else it was stopped and waits to be continued."""
    paused: list[str] = []
    """The queues that it has paused, in both stores."""


async def preview(plan: MovePlan) -> Preview:
    """What would move, and whether a move has been stopped. Changes nothing.

    Raises InvalidOption where the source does not know the tenant.
    """
    async with opened(existing(plan.source), "SRC") as source:
        found = [one for one in await source.stats(plan.tenant) if one.queue != MOVES]
        record = await MoveLog(source, plan.tenant, "SRC").look()
        if not found and record.info is None and not await _known(source, plan.tenant):
            raise _unknown(plan)
        (turn,), now = await source.get([JobKey(plan.tenant, MOVES, TURN)]), await source.now()
        at_work = turn is not None and turn.state is JobState.LEASED and turn.deadline > now
        return Preview(found, record.info, at_work, sorted(record.notes))


async def move(plan: MovePlan, walker: Walker | None = None, progress: Progress = silent) -> Moved:
    """Move what waits of a tenant. `walker` does the steps elsewhere; by default they are done here.

    Raises InvalidOption (unknown tenant, the same store twice, a store that cannot take part), StoreBusy (jobs or
    flows that still run, another move, no room by a quota), StoreMismatch with the first jobs that differ.
    """
    async with opened(existing(plan.source), "SRC") as source, opened(plan.target, "DST") as target:
        if not await _known(source, plan.tenant) and (await MoveLog(source, plan.tenant, "SRC").read()).info is None:
            raise _unknown(plan)
        async with _turns(plan, source, target) as (here, there):
            mover = _Move(plan, source, target, (here, there), walker, progress)
            work = asyncio.ensure_future(mover.run())
            beats = [asyncio.ensure_future(turn.hold()) for turn in (here, there)]
            try:
                done, _ = await asyncio.wait((work, *beats), return_when=asyncio.FIRST_COMPLETED)
                # A turn that is lost ends the work: another mover may have begun.
                return work.result() if work in done else done.pop().result()
            except BaseException as error:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                await mover.abandon(error)
                raise
            finally:
                for beat in beats:
                    beat.cancel()
                await asyncio.gather(*beats, return_exceptions=True)


@contextlib.asynccontextmanager
async def _turns(plan: MovePlan, source: Store, target: Store) -> AsyncGenerator[tuple[MoverLease, MoverLease]]:
    """Have the turn in both stores. They are taken in one order, so that two movers do not wait for each other."""
    worker = f"move-{new_id()}"
    both = {"SRC": (shown_url(plan.source), source), "DST": (shown_url(plan.target), target)}
    turns: dict[str, MoverLease] = {}
    try:
        for name, (_, store) in sorted(both.items(), key=lambda one: one[1][0]):
            turns[name] = await MoverLease.take(store, plan.tenant, name, worker, plan.lease_ms)
        yield turns["SRC"], turns["DST"]
    finally:
        for turn in turns.values():
            await turn.give_back()


class _Move:
    def __init__(
        self,
        plan: MovePlan,
        source: Store,
        target: Store,
        turns: tuple[MoverLease, MoverLease],
        walker: Walker | None,
        progress: Progress,
    ) -> None:
        self._plan, self._source, self._target, self._turns = plan, source, target, turns
        self._turn = turns[0]
        self._walker, self._progress = walker or self._here, progress
        self._tenant = plan.tenant
        self._out, self._in = MoveLog(source, plan.tenant, "SRC"), MoveLog(target, plan.tenant, "DST")
        self._course = MoveInfo(new_id(), shown_url(plan.source), shown_url(plan.target))
        self._queues: dict[str, MovedQueue] = {}
        self._joined = False
        """What the stores have noted is of this move."""
        self._doubled = False
        """Jobs may be in both stores."""
        self._idle = 0
        self._moved = Moved(self._course.source, self._course.target, plan.tenant)

    @property
    def _notes(self) -> dict[str, PausedQueue]:
        return self._out.record.notes

    async def run(self) -> Moved:
        """All of it."""
        await self._join()
        await self._stop()
        if self._doubled:
            for queue, one in (await self._walk("settle", list(self._notes), 0, await self._source.now())).items():
                self._queues[queue].left += one.left
        while waiting := await self._waiting():
            await self._pass(waiting)
            await self._stop()
        self._doubled = False
        await self._copy_settings()
        hit("move.before_resume")
        await self._check_turn()
        await self._resume_target()
        hit("move.target_resumed")
        await self._check_turn()
        await self._resume_source()
        hit("move.resumed")
        await self._check_turn()
        await self._end()
        self._moved.queues = [self._queues[name] for name in sorted(self._queues)]
        return self._moved

    # One move at a time -----------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Begin, or go on with what has not ended. Raises StoreBusy where either store has part in another move."""
        here, there = await self._out.read(), await self._in.read()
        await self._close()
        if here.info is not None and not here.leaves:
            raise _open(here.info, self._tenant)
        if there.info is not None and there.leaves:
            raise _open(there.info, self._tenant)
        if here.info is None:
            if there.info is not None and there.info.source != self._course.source:
                raise _open(there.info, self._tenant)
            if there.info is not None:
                raise StoreBusy(
                    "DST has copies of a move that SRC does not know any more, and jobs may have run in SRC since. "
                    f"Cancel in DST what has, and end that move: {_forgetting(there.info, self._tenant)}"
                )
            self._joined = True
            self._course = replace(self._course, skew_ms=await self._skew())
            return
        if there.info is None and here.info.target != self._course.target:
            raise _open(here.info, self._tenant)
        if there.info is not None and there.info.id != here.info.id:
            raise _open(there.info if here.info.target == self._course.target else here.info, self._tenant)
        if there.info is None and here.began and not here.over:
            raise StoreMismatch(
                f"DST does not know of the move {here.info}, which has taken jobs away from SRC: it is another "
                "store, or has lost its data, and those jobs with it. Bring it back, and run this again. If it is gone "
                f"for good: {_forgetting(here.info, self._tenant)}"
            )
        self._course = here.info
        self._joined = self._doubled = self._moved.resumed = True
        if missing := [note for name, note in here.notes.items() if name not in there.notes]:
            await self._in.write(self._course, missing)

    async def _close(self) -> None:
        """PausedQueue when a mover that was killed has ended: it has taken nothing away after the end of its lease.

        Only the next mover knows when that was, even if it does not continue the move.
        """
        for book, turn in zip((self._out, self._in), self._turns, strict=True):
            if any(ended == EVER for _, ended in book.record.spans):
                await book.ended(turn.before or await book.store.now())

    async def _skew(self) -> int:
        """By how much the target's clock is ahead, if it surely is another."""
        early = await self._source.now()
        there = await self._target.now()
        late = await self._source.now()
        return 0 if early - SLACK_MS <= there <= late + SLACK_MS else there - (early + late) // 2

    async def _check_turn(self) -> None:
        """Raise StoreBusy if another mover has been let in, which happens to one that slept for too long."""
        if not await self._turn.held():
            raise taken_for_dead()

    async def _end(self) -> None:
        """Forget the move, in the source last."""
        await self._out.over()
        await self._in.end()
        hit("move.target_forgot")
        await self._out.end()

    # Stopping and going on --------------------------------------------------------------------------------

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
            notes = [PausedQueue(name, name in stats and stats[name].paused, there.get(name, False)) for name in fresh]
            await self._out.write(self._course, notes)
            hit("move.noted_here")
            await self._in.write(self._course, notes)
            hit("move.noted")
        await self._check_turn()
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
            # There may be no other process to end the leases of dead workers.
            await self._source.reap(REAP, random.random())  # noqa: S311
            await asyncio.sleep(LOOK_S)

    async def abandon(self, error: BaseException) -> None:
        """Leave all as it was where no job is in both; else as it is. The error says which."""
        if not self._joined:
            return
        if not self._notes:
            error.add_note("Nothing was moved, and the queues are as they were.")
            return
        names = ", ".join(sorted(self._notes))
        if self._doubled:
            error.add_note(
                f"The queues {names} are paused in both stores, so that no job runs twice. "
                "The same command goes on from here, and lets them run again when it is done."
            )
            return
        carry = self._moved.resumed or any(one.jobs for one in self._queues.values())
        failed: list[str] = []
        here, there = self._turns
        for name, turn, act in (("DST", there, self._resume_target), ("SRC", here, self._resume_source)):
            try:
                if await turn.held():
                    await (act() if carry or name == "SRC" else self._resume_target(carry=False))
                    continue
            except HoldfastError:
                pass
            failed.append(name)
        if not failed:
            with contextlib.suppress(HoldfastError):
                await self._end()
        done = "What has moved stays in DST" if carry else "Nothing was moved"
        if not failed:
            error.add_note(f"{done}, and the queues are as they were.")
        else:
            error.add_note(
                f"{done}. In {' and '.join(failed)} the queues {names} may still be paused. "
                "The same command goes on from here, and lets them run again when it is done."
            )

    async def _resume_target(self, *, carry: bool = True) -> None:
        """Let queues go on as they did; those that were paused in the source stay paused."""
        for note in self._notes.values():
            paused = note.target_paused or (carry and note.source_paused)
            await self._target.pause(self._tenant, note.queue, paused=paused)
            if note.queue in self._queues:
                self._queues[note.queue].paused = paused

    async def _resume_source(self) -> None:
        for note in self._notes.values():
            await self._source.pause(self._tenant, note.queue, paused=note.source_paused)
            if note.queue in self._queues:
                self._queues[note.queue].source_paused = note.source_paused

    async def _copy_settings(self) -> None:
        """Weights, quotas and budgets, where the target says nothing itself; last, so that no quota is in the way."""
        there = {one.queue: one for one in await self._target.tenant_settings(self._tenant)}
        for one in await self._source.tenant_settings(self._tenant):
            own = there.get(one.queue, TenantSettings(one.queue))
            weight = one.weight if own.weight is None else None
            max_waiting = one.max_waiting if own.max_waiting is None else None
            budgets = left_out(own.budgets, one.budgets)
            if weight is not None or max_waiting is not None or budgets is not None:
                await self._target.set_tenant(self._tenant, TenantSettings(one.queue, weight, max_waiting, budgets))
                self._moved.settings += 1

    # Passes -----------------------------------------------------------------------------------------------

    async def _waiting(self) -> dict[str, int]:
        """How many jobs wait in the source, in which queues."""
        stats = await self._source.stats(self._tenant, list(self._notes))
        counts = {one.queue: sum(one.counts.get(state, 0) for state in CLAIMABLE) for one in stats}
        return {queue: count for queue, count in counts.items() if count}

    async def _pass(self, waiting: dict[str, int]) -> None:
        queues, total = list(waiting), sum(waiting.values())
        if not self._doubled:
            await self._check_room(waiting)
        self._doubled = True
        self._moved.passes += 1
        paused_at = await self._source.now()
        copied = await self._walk("copy", queues, total, paused_at)
        _refuse(copied.values())
        hit("move.copied")
        verified = await self._walk("verify", queues, total, paused_at)
        for queue, one in verified.items():
            # Where nothing has come since the copying, nothing may be missing.
            if _seen(one) == _seen(copied[queue]):
                one.differences += one.missing
        _refuse(verified.values())
        hit("move.verified")
        if not self._out.record.spans:
            # Jobs that left by themselves can be told apart only while we have taken nothing.
            changed = [queue for queue, one in verified.items() if _seen(one) != _seen(copied[queue])]
            await self._settle(changed, paused_at)
        await self._check_turn()
        await self._out.began(await self._source.now())
        try:
            taken = await self._walk("take", queues, total, paused_at)
        finally:
            with contextlib.suppress(HoldfastError):
                await self._out.ended(await self._source.now())
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
            await self._settle(unsettled, paused_at)
        else:
            self._doubled = False

    async def _settle(self, queues: Sequence[str], paused_at: int) -> None:
        if queues:
            for queue, one in (await self._walk("settle", queues, 0, paused_at)).items():
                self._stay(queue, one.left)

    def _stay(self, queue: str, count: int) -> None:
        self._queues[queue].jobs -= count
        self._queues[queue].left += count

    async def _check_room(self, waiting: dict[str, int]) -> None:
        """Raise StoreBusy where a quota of the target leaves no room, before anything is copied."""
        limits = {one.queue: one.max_waiting for one in await self._target.tenant_settings(self._tenant)}
        if all(limit is None for limit in limits.values()):
            return
        stats = await self._target.stats(self._tenant)
        there = {one.queue: sum(one.counts.get(state, 0) for state in WAITING) for one in stats}
        for queue, limit in limits.items():
            has = sum(there.values()) if queue is None else there.get(queue, 0)
            more = sum(waiting.values()) if queue is None else waiting.get(queue, 0)
            if limit is not None and more and has + more > limit:
                raise StoreBusy(no_room(queue, has, limit, more))

    async def _walk(self, step: Step, queues: Sequence[str], total: int, paused_at: int) -> dict[str, Receipt]:
        mapping = CopyMapping(self._course.id, self._course.skew_ms)
        step_input = StepInput(step, self._tenant, mapping, self._turn.job.worker_id, paused_at, self._out.record.spans)
        with self._progress(step, total) as tell:
            return {receipt.queue: receipt for receipt in await self._walker(step_input, queues, tell)}

    async def _here(self, step_input: StepInput, queues: Sequence[str], tell: Tell) -> Sequence[Receipt]:
        return [await walk(step_input, self._source, self._target, queue, tell) for queue in queues]


def _seen(receipt: Receipt) -> tuple[int, int]:
    return receipt.seen, receipt.seen_sum


def _open(info: MoveInfo, tenant: str) -> StoreBusy:
    return StoreBusy(
        f"a move {info} has not ended; finish it first, by the same command. If one of its stores is gone for good: "
        f"{_forgetting(info, tenant)}"
    )


def _forgetting(info: MoveInfo, tenant: str) -> str:
    return f"holdfast move {info.source} {info.target} --tenant {tenant} --forget"


def _refuse(receipts: Iterable[Receipt]) -> None:
    """Raise StoreMismatch with the first jobs that differ, if there are any."""
    said = [line for receipt in receipts for line in receipt.differences]
    if said:
        lines = "\n  ".join(said[:10])
        raise StoreMismatch(f"DST does not have what SRC has, so nothing of it is taken away:\n  {lines}")


async def _known(source: Store, tenant: str) -> bool:
    if any(one.queue != MOVES for one in await source.stats(tenant)):
        return True
    settings = await source.tenant_settings(tenant)
    return any(one != TenantSettings(one.queue) for one in settings)


def _unknown(plan: MovePlan) -> InvalidOption:
    return InvalidOption("tenant", f"there are no jobs or settings of {plan.tenant!r} in {shown_url(plan.source)}")


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
