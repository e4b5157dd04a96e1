"""Moves a tenant, in an order that loses no job and runs none twice, wherever the mover is killed.

    1. take the mover's lease in both stores; check that neither is part of another move of the tenant   (`move_log`)
    2. log which queues are paused in each store; pause all in the source, then in the target; wait for running jobs
    3. copy, verify and take jobs away (`steps`), pass after pass, until none waits in the source
    4. resume the queues as they were, in the target, then in the source; delete the log

While a job is in both stores, neither hands it out. After a failure the queues are resumed if no job is in both stores.
Otherwise they stay paused in both, and the next mover continues the move.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from msgspec.structs import replace

from holdfast.core.budgets import left_out
from holdfast.core.errors import HoldfastError, StoreBusy, StoreMismatch
from holdfast.core.failpoint import hit
from holdfast.core.job import WAITING, JobState
from holdfast.core.names import FLOWS, MOVES, SCHEDULES
from holdfast.ids import new_id
from holdfast.migrate.checks import (
    another_move,
    check_flows,
    check_receipts,
    check_room,
    forget_command,
    is_known,
    unknown_tenant,
    wait_for_running,
)
from holdfast.migrate.copies import SLACK_MS, SUM, CopyMapping
from holdfast.migrate.move_log import NO_END, MoveInfo, MoveLog, MoverLease, PausedQueue
from holdfast.migrate.moved import Moved, MovedQueue
from holdfast.migrate.plan import MovePlan, opened
from holdfast.migrate.steps import Advance, Receipt, Step, StepInput, lease_lost, run_step
from holdfast.opening import existing, shown_url
from holdfast.store import Store, TenantSettings

MAX_IDLE_PASSES = 10
"""The mover gives up after this many passes that found no job although some were counted."""
_FINISHED = (JobState.COMPLETED, JobState.FAILED)

StepRunner = Callable[[StepInput, Sequence[str], Advance], Awaitable[Sequence[Receipt]]]
"""Runs one step on several queues."""
ShowProgress = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows the progress of a step, given its name and the number of jobs."""


@contextlib.contextmanager
def silent(_label: str, _total: int) -> Generator[Advance]:
    """Show no progress."""
    yield lambda _: None


async def move(plan: MovePlan, run_steps: StepRunner | None = None, progress: ShowProgress = silent) -> Moved:
    """Move the waiting jobs of a tenant. `run_steps` runs the steps elsewhere; by default they run in this process.

    Raises InvalidOption (unknown tenant, the same store twice, a store that cannot take part), StoreBusy (jobs or
    flows that still run, another move, a full quota), StoreMismatch with the first jobs that differ.
    """
    async with opened(existing(plan.source), "SRC") as source, opened(plan.target, "DST") as target:
        if not await is_known(source, plan.tenant) and (await MoveLog(source, plan.tenant, "SRC").read()).info is None:
            raise unknown_tenant(plan)
        async with _leases(plan, source, target) as leases:
            mover = _Move(plan, source, target, leases, run_steps, progress)
            work = asyncio.ensure_future(mover.run())
            renewals = [asyncio.ensure_future(lease.renew()) for lease in leases]
            try:
                done, _ = await asyncio.wait((work, *renewals), return_when=asyncio.FIRST_COMPLETED)
                # A lost lease ends the work: another mover may have begun.
                return work.result() if work in done else done.pop().result()
            except BaseException as error:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                await mover.abandon(error)
                raise
            finally:
                for renewal in renewals:
                    renewal.cancel()
                await asyncio.gather(*renewals, return_exceptions=True)


@contextlib.asynccontextmanager
async def _leases(plan: MovePlan, source: Store, target: Store) -> AsyncGenerator[tuple[MoverLease, MoverLease]]:
    """Hold the mover's lease in both stores. Every mover takes them in the same order, so no two block each other."""
    worker = f"move-{new_id()}"
    both = {"SRC": (shown_url(plan.source), source), "DST": (shown_url(plan.target), target)}
    leases: dict[str, MoverLease] = {}
    try:
        for name, (_, store) in sorted(both.items(), key=lambda one: one[1][0]):
            leases[name] = await MoverLease.take(store, plan.tenant, name, worker, plan.lease_ms)
        yield leases["SRC"], leases["DST"]
    finally:
        for lease in leases.values():
            await lease.release()


class _Move:
    def __init__(
        self,
        plan: MovePlan,
        source: Store,
        target: Store,
        leases: tuple[MoverLease, MoverLease],
        run_steps: StepRunner | None,
        progress: ShowProgress,
    ) -> None:
        self._plan, self._source, self._target, self._leases = plan, source, target, leases
        self._run_steps, self._progress = run_steps or self._run_here, progress
        self._tenant = plan.tenant
        self._source_log, self._target_log = MoveLog(source, plan.tenant, "SRC"), MoveLog(target, plan.tenant, "DST")
        self._info = MoveInfo(new_id(), shown_url(plan.source), shown_url(plan.target))
        self._queues: dict[str, MovedQueue] = {}
        self._owns_log = False
        """The logs in the stores belong to this move."""
        self._in_both = False
        """Jobs may be in both stores."""
        self._idle_passes = 0
        self._moved = Moved(self._info.source, self._info.target, plan.tenant)

    @property
    def _paused(self) -> dict[str, PausedQueue]:
        return self._source_log.record.paused

    async def run(self) -> Moved:
        """Move everything that waits."""
        await self._begin()
        await self._pause()
        if self._in_both:
            for queue, one in (
                await self._run_step("withdraw", list(self._paused), 0, await self._source.now())
            ).items():
                self._queues[queue].left += one.left
        while waiting := await self._waiting():
            await self._pass(waiting)
            await self._pause()
        self._in_both = False
        await self._copy_settings()
        hit("move.before_resume")
        await self._check_lease()
        await self._resume_target()
        hit("move.target_resumed")
        await self._check_lease()
        await self._resume_source()
        hit("move.resumed")
        await self._check_lease()
        await self._end()
        self._moved.queues = [self._queues[name] for name in sorted(self._queues)]
        return self._moved

    # One move at a time -----------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Begin a move, or continue this one. Raises StoreBusy if either store is part of another move."""
        here, there = await self._source_log.read(), await self._target_log.read()
        await self._log_end_of_killed_mover()
        if here.info is not None and not here.leaves:
            raise another_move(here.info, self._tenant)
        if there.info is not None and there.leaves:
            raise another_move(there.info, self._tenant)
        if here.info is None:
            if there.info is not None and there.info.source != self._info.source:
                raise another_move(there.info, self._tenant)
            if there.info is not None:
                raise StoreBusy(
                    "DST has copies of a move that SRC no longer knows, and jobs may have run in SRC since. "
                    f"Cancel those in DST, and end that move: {forget_command(there.info, self._tenant)}"
                )
            self._owns_log = True
            self._info = replace(self._info, skew_ms=await self._skew())
            return
        if there.info is None and here.info.target != self._info.target:
            raise another_move(here.info, self._tenant)
        if there.info is not None and there.info.id != here.info.id:
            raise another_move(there.info if here.info.target == self._info.target else here.info, self._tenant)
        if there.info is None and here.began and not here.over:
            raise StoreMismatch(
                f"DST does not know the move {here.info}, which has removed jobs from SRC: it is another "
                "store, or it has lost its data and those jobs. Restore it, and run this again. If it is gone "
                f"for good: {forget_command(here.info, self._tenant)}"
            )
        self._info = here.info
        self._owns_log = self._in_both = self._moved.resumed = True
        if missing := [one for name, one in here.paused.items() if name not in there.paused]:
            await self._target_log.write(self._info, missing)

    async def _log_end_of_killed_mover(self) -> None:
        """Log until when a killed mover can have taken jobs away: until the end of its lease.

        Only the next mover knows that time, even if it does not continue the move.
        """
        for log, lease in zip((self._source_log, self._target_log), self._leases, strict=True):
            if any(ended == NO_END for _, ended in log.record.spans):
                await log.ended(lease.before or await log.store.now())

    async def _skew(self) -> int:
        """How far the target's clock is ahead; 0 if both may be the same clock."""
        early = await self._source.now()
        there = await self._target.now()
        late = await self._source.now()
        return 0 if early - SLACK_MS <= there <= late + SLACK_MS else there - (early + late) // 2

    async def _check_lease(self) -> None:
        """Raise StoreBusy if another mover has taken over, because this one slept longer than its lease."""
        if not await self._leases[0].is_held():
            raise lease_lost()

    async def _end(self) -> None:
        """Delete the logs, that of the source last."""
        await self._source_log.over()
        await self._target_log.end()
        hit("move.target_forgot")
        await self._source_log.end()

    # Pausing and resuming --------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Pause the tenant's queues in both stores, and wait until no job runs in the source."""
        stats = {one.queue: one for one in await self._source.stats(self._tenant) if one.queue != MOVES}
        # Also queues without jobs: a flow that is started now must not begin.
        names = [name for name in dict.fromkeys((*stats, SCHEDULES, FLOWS)) if name not in self._queues]
        for name in names:
            one = stats.get(name)
            finished = 0 if one is None else sum(one.counts.get(state, 0) for state in _FINISHED)
            self._queues[name] = MovedQueue(name, finished=finished)
        new = [name for name in names if name not in self._paused]
        if new:
            there = {one.queue: one.paused for one in await self._target.stats(self._tenant, new)}
            queues = [PausedQueue(name, name in stats and stats[name].paused, there.get(name, False)) for name in new]
            await self._source_log.write(self._info, queues)
            hit("move.logged_in_source")
            await self._target_log.write(self._info, queues)
            hit("move.logged")
        await self._check_lease()
        for name in names:
            await self._source.pause(self._tenant, name, paused=True)
        hit("move.source_paused")
        for name in names:
            await self._target.pause(self._tenant, name, paused=True)
        hit("move.target_paused")
        await check_flows(self._source, self._tenant)
        await wait_for_running(self._source, self._tenant, list(self._paused), self._plan.wait_s)

    async def abandon(self, error: BaseException) -> None:
        """After a failure, resume the queues if no job is in both stores. A note on the error says what was done."""
        if not self._owns_log:
            return
        if not self._paused:
            error.add_note("Nothing was moved, and the queues are as they were.")
            return
        names = ", ".join(sorted(self._paused))
        if self._in_both:
            error.add_note(
                f"The queues {names} are paused in both stores, so that no job runs twice. "
                "The same command continues the move, and resumes them when it is done."
            )
            return
        carry = self._moved.resumed or any(one.jobs for one in self._queues.values())
        failed: list[str] = []
        source_lease, target_lease = self._leases
        resume_target = partial(self._resume_target, carry=carry)
        for name, lease, resume in (
            ("DST", target_lease, resume_target),
            ("SRC", source_lease, self._resume_source),
        ):
            try:
                if await lease.is_held():
                    await resume()
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
                "The same command continues the move, and resumes them when it is done."
            )

    async def _resume_target(self, *, carry: bool = True) -> None:
        """Resume the queues as they were. With `carry`, those that were paused in the source stay paused here."""
        for one in self._paused.values():
            paused = one.target_paused or (carry and one.source_paused)
            await self._target.pause(self._tenant, one.queue, paused=paused)
            if one.queue in self._queues:
                self._queues[one.queue].paused = paused

    async def _resume_source(self) -> None:
        for one in self._paused.values():
            await self._source.pause(self._tenant, one.queue, paused=one.source_paused)
            if one.queue in self._queues:
                self._queues[one.queue].source_paused = one.source_paused

    async def _copy_settings(self) -> None:
        """Copy weights, quotas and budgets that the target does not set. Last, so that no quota blocks the copies."""
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
        stats = await self._source.stats(self._tenant, list(self._paused))
        counts = {one.queue: sum(one.counts.get(state, 0) for state in WAITING) for one in stats}
        return {queue: count for queue, count in counts.items() if count}

    async def _pass(self, waiting: dict[str, int]) -> None:
        queues, total = list(waiting), sum(waiting.values())
        if not self._in_both:
            await check_room(self._target, self._tenant, waiting)
        self._in_both = True
        self._moved.passes += 1
        paused_at = await self._source.now()
        copied = await self._run_step("copy", queues, total, paused_at)
        check_receipts(copied.values())
        hit("move.copied")
        verified = await self._run_step("verify", queues, total, paused_at)
        for queue, one in verified.items():
            # If no job was added since the copy, none may be missing.
            if _seen(one) == _seen(copied[queue]):
                one.differences += one.missing
        check_receipts(verified.values())
        hit("move.verified")
        if not self._source_log.record.spans:
            # Jobs that left by themselves can be recognized only before this move takes any away.
            changed = [queue for queue, one in verified.items() if _seen(one) != _seen(copied[queue])]
            await self._withdraw(changed, paused_at)
        await self._check_lease()
        await self._source_log.began(await self._source.now())
        try:
            taken = await self._run_step("take", queues, total, paused_at)
        finally:
            with contextlib.suppress(HoldfastError):
                await self._source_log.ended(await self._source.now())
        hit("move.taken")
        if not any(one.jobs or one.left for one in taken.values()):
            check_receipts(Receipt(one.queue, differences=one.missing) for one in verified.values())
            self._idle_passes += 1
            if self._idle_passes == MAX_IDLE_PASSES:
                raise StoreMismatch(f"SRC counts jobs in {', '.join(queues)} but does not list them")
        for queue, one in verified.items():
            moved = self._queues[queue]
            moved.jobs += copied[queue].seen
            moved.source_sum = (moved.source_sum + one.source_sum) % SUM
            moved.target_sum = (moved.target_sum + one.target_sum) % SUM
            self._count_left(queue, taken[queue].left)
        unmatched = [queue for queue in queues if copied[queue].seen != taken[queue].jobs + taken[queue].left]
        if unmatched:
            await self._withdraw(unmatched, paused_at)
        else:
            self._in_both = False

    async def _withdraw(self, queues: Sequence[str], paused_at: int) -> None:
        if queues:
            for queue, one in (await self._run_step("withdraw", queues, 0, paused_at)).items():
                self._count_left(queue, one.left)

    def _count_left(self, queue: str, count: int) -> None:
        self._queues[queue].jobs -= count
        self._queues[queue].left += count

    async def _run_step(self, step: Step, queues: Sequence[str], total: int, paused_at: int) -> dict[str, Receipt]:
        mapping = CopyMapping(self._info.id, self._info.skew_ms)
        step_input = StepInput(
            step, self._tenant, mapping, self._leases[0].job.worker_id, paused_at, self._source_log.record.spans
        )
        with self._progress(step, total) as advance:
            return {receipt.queue: receipt for receipt in await self._run_steps(step_input, queues, advance)}

    async def _run_here(self, step_input: StepInput, queues: Sequence[str], advance: Advance) -> Sequence[Receipt]:
        return [await run_step(step_input, self._source, self._target, queue, advance) for queue in queues]


def _seen(receipt: Receipt) -> tuple[int, int]:
    return receipt.seen, receipt.seen_sum
