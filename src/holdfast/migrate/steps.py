"""What is done to one queue of the tenant, page by page: three walks over the source, and one over the target.

    copy        enqueue it in the target, in the order in which it would be claimed [CLAIM-2]
    verify      read it back there, and compare
    take        cancel it in the source, if the target has it
    settle      withdraw copies of what did not wait any more when it was to be taken away, or is not the same any more

Each can be repeated, by a task that is tried again or a mover that comes after one that was killed. Before each write
the turn is looked at, so that one that was taken for dead does not go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

from msgspec import MsgspecError, Struct, field
from msgspec.structs import replace

from holdfast.core import schedule as schedules
from holdfast.core.errors import QuotaExceeded, StoreBusy
from holdfast.core.failpoint import hit
from holdfast.core.job import CLAIMABLE, WAITING, Cancel, Duplicate, Job, JobKey, JobState, NewJob, Purge
from holdfast.core.names import MOVES, SCHEDULES
from holdfast.migrate import copies
from holdfast.schedules.ticks import last_tick, next_tick
from holdfast.store import EnqueueAnswer, ListQuery, Page, Store

TURN = "turn"
"""The job that the mover at work holds, in both stores."""
PAGE = 500
BYTES = 8 << 20
"""A page has no more of payloads than this, if it has more than one job: each is sent as a whole."""
STEP = 100
"""Jobs read at a time, before their size is known: at most 25 MiB of payloads."""
SAID = 5
"""How many of the jobs that differ are named."""

Step = Literal["copy", "verify", "take", "settle"]
Tell = Callable[[int], None]


class StepInput(Struct, frozen=True):
    """What a walk has to know."""

    step: Step
    tenant: str
    mapping: copies.CopyMapping
    worker: str
    """Who has the turn."""
    paused_at: int
    """An instant of the source's clock, from which on it has handed out nothing."""
    spans: tuple[tuple[int, int], ...] = ()
    """When this move took jobs away: a job canceled in the source at another time was canceled by its owner."""


class Receipt(Struct):
    """What a walk over one queue came to."""

    queue: str
    seen: int = 0
    seen_sum: int = 0
    """All that waited in the source, and the sum of what is to move of it."""
    jobs: int = 0
    source_sum: int = 0
    target_sum: int = 0
    """Those that the target has, and what was read of them here and there. Sums are modulo 2^64, in any order."""
    left: int = 0
    """Jobs that were not waiting any more, so that they stay in the source."""
    missing: list[str] = field(default_factory=list[str])
    """The first that the target does not have: they have come since, or it has lost them."""
    differences: list[str] = field(default_factory=list[str])
    """The first that it has otherwise."""

    def see(self, checksum: int) -> None:
        """Count what was read in the source."""
        self.seen += 1
        self.seen_sum = (self.seen_sum + checksum) % copies.SUM

    def differs(self, new: NewJob, why: str) -> None:
        """PausedQueue a job that the target does not have as it should."""
        if len(self.differences) < SAID:
            self.differences.append(f"{new.key.queue}/{new.key.id}: {why}")


async def walk(step_input: StepInput, source: Store, target: Store, queue: str, tell: Tell = lambda _: None) -> Receipt:
    """Do one step to one queue. Raises what the stores raise, and StoreBusy where a quota leaves no room."""
    receipt = Receipt(queue)
    act = {"copy": _copy, "verify": _verify, "take": _take, "settle": _settle}[step_input.step]
    async for page in pages(target if step_input.step == "settle" else source, step_input.tenant, queue):
        await act(step_input, source, target, page, receipt)
        tell(len(page.jobs))
        hit(f"move.{step_input.step}")
    return receipt


async def holds(store: Store, tenant: str, worker: str) -> bool:
    """Whether this mover has the turn."""
    found = (await store.get([JobKey(tenant, MOVES, TURN)]))[0]
    return found is not None and found.state is JobState.LEASED and found.worker_id == worker


async def pages(store: Store, tenant: str, queue: str, states: frozenset[JobState] = CLAIMABLE) -> AsyncIterator[Page]:
    """What waits in a queue, in claim order: `PAGE` jobs at a time, or fewer where they are large."""
    cursor: str | None = None
    jobs: list[Job] = []
    size = 0
    while True:
        page = await store.list(ListQuery(tenant, queue, states, cursor=cursor, limit=min(STEP, PAGE - len(jobs))))
        for job in page.jobs:
            if jobs and size + len(job.envelope.payload) > BYTES:
                yield Page(jobs, None, page.now)
                jobs, size = [], 0
            jobs.append(job)
            size += len(job.envelope.payload)
        cursor = page.cursor
        if jobs and (cursor is None or len(jobs) >= PAGE):
            yield Page(jobs, cursor, page.now)
            jobs, size = [], 0
        if cursor is None:
            return


async def _copy(step_input: StepInput, source: Store, target: Store, page: Page, receipt: Receipt) -> None:
    new = [copies.copy_of(job, page.now, step_input.mapping) for job in page.jobs]
    if receipt.queue == SCHEDULES:
        new = [await renewed(one, step_input.paused_at, source) for one in new]
    await _check_turn(step_input, target)
    answers = await target.enqueue(new)
    again = [n for n, answer in enumerate(answers) if _own_key(new[n], answer)]
    if again:
        for n, answer in zip(again, await target.enqueue([copies.without_key(new[n]) for n in again]), strict=True):
            answers[n] = answer
    for one, answer in zip(new, answers, strict=True):
        receipt.see(copies.checksum(one))
        if isinstance(answer, QuotaExceeded):
            if answer.budget != "max_waiting":
                raise StoreBusy(f"DST has no room: {answer} Or raise the budget in DST")
            raise StoreBusy(no_room(answer.queue, answer.waiting, answer.limit))
        if answer.id != one.key.id:
            receipt.differs(one, f"its idempotency key belongs to {answer.id} there")


def no_room(queue: str | None, waiting: int, limit: int, more: int = 1) -> str:
    """What to do about a quota. Waiting does not help: the queues are paused."""
    where = f"queue {queue!r}" if queue else "all queues of the tenant"
    return (
        f"DST has no room: {waiting} jobs wait in {where}, {more} or more would come, and the quota is {limit}; "
        "raise it in DST"
    )


def _own_key(new: NewJob, answer: EnqueueAnswer) -> bool:
    """Whether the id itself holds its key in the target, and nothing else is left there of an earlier life."""
    return isinstance(answer, Duplicate) and answer.state is None and answer.id == new.key.id


async def _verify(step_input: StepInput, _source: Store, target: Store, page: Page, receipt: Receipt) -> None:
    for new, found in await _both(step_input, target, page):
        checksum = copies.checksum(new)
        receipt.see(checksum)
        if found is None:
            if len(receipt.missing) < SAID:
                receipt.missing.append(f"{new.key.queue}/{new.key.id}: it is not there")
            continue
        receipt.jobs += 1
        receipt.source_sum = (receipt.source_sum + checksum) % copies.SUM
        receipt.target_sum = (receipt.target_sum + copies.found_checksum(new, found)) % copies.SUM
        if why := copies.trouble(new, found):
            receipt.differs(new, why)


async def _take(step_input: StepInput, source: Store, target: Store, page: Page, receipt: Receipt) -> None:
    # What came after the copying is not there, and waits for the next pass.
    pairs = zip(page.jobs, await _both(step_input, target, page), strict=True)
    there = [(old, new, found) for old, (new, found) in pairs if found is not None and not copies.trouble(new, found)]
    await _check_turn(step_input, source)
    # The life that was copied, and no other: its id may be another job's by now.
    answers = await source.cancel([Cancel(old.key, only_waiting=True, seq=old.seq) for old, _, _ in there])
    receipt.jobs += answers.count("canceled")
    stay = [(new, found) for (_, new, found), answer in zip(there, answers, strict=True) if answer != "canceled"]
    receipt.left += len(stay)
    # It runs, has run or was canceled where it was: that counts.
    await _withdraw(target, [found for new, found in stay if found.envelope.request_id == new.envelope.request_id])


async def _settle(step_input: StepInput, source: Store, target: Store, page: Page, receipt: Receipt) -> None:
    mine = [job for job in page.jobs if copies.is_copy(job, step_input.mapping)]
    olds = await source.get([job.key for job in mine])
    now = await source.now()
    stale: list[Job] = []
    for copy, old in zip(mine, olds, strict=True):
        if (
            old is not None
            and old.state in WAITING
            and copies.request_id(old, step_input.mapping) == copy.envelope.request_id
        ):
            # It waits, and is copied again if it has been handed out meanwhile.
            if copies.trouble(copies.copy_of(old, now, step_input.mapping), copy):
                stale.append(copy)
        elif _ended(copy, old, step_input):
            stale.append(copy)
            receipt.left += 1
    await _check_turn(step_input, target)
    await _withdraw(target, stale)


def _ended(copy: Job, old: Job | None, step_input: StepInput) -> bool:
    """Whether the job went on, or ended, in the source, and not by our taking it away. [CANCEL-1]"""
    if old is None or copies.request_id(old, step_input.mapping) != copy.envelope.request_id:
        return not step_input.spans  # It is forgotten: by us, if we have taken anything.
    if old.state is not JobState.CANCELED:
        return True
    # The shards of a cluster have clocks of their own. In doubt we did it: better a cancel too late than a job lost.
    at, slack = old.finished_at or 0, copies.SLACK_MS
    return not any(began - slack <= at <= ended + slack for began, ended in step_input.spans)


async def _withdraw(target: Store, jobs: Sequence[Job]) -> None:
    """Cancel copies, and forget them, so that they can be made again."""
    if jobs:
        answers = await target.cancel([Cancel(job.key, only_waiting=True, seq=job.seq) for job in jobs])
        gone = [Purge(job.key, seq=job.seq) for job, answer in zip(jobs, answers, strict=True) if answer == "canceled"]
        if gone:
            await target.purge(gone)


async def _both(step_input: StepInput, target: Store, page: Page) -> list[tuple[NewJob, Job | None]]:
    """What is to be in the target, and what is."""
    new = [copies.copy_of(job, page.now, step_input.mapping) for job in page.jobs]
    return list(zip(new, await target.get([one.key for one in new]), strict=True))


async def _check_turn(step_input: StepInput, store: Store) -> None:
    """Look before each write: a mover that slept for longer than its lease must not do what another one has done."""
    if not await holds(store, step_input.tenant, step_input.worker):
        raise taken_for_dead()


def taken_for_dead() -> StoreBusy:
    """What a mover hears that has lost its turn."""
    return StoreBusy("this mover was taken for dead, and another one may be at work")


async def renewed(new: NewJob, paused_at: int, source: Store) -> NewJob:
    """A schedule that waits for a tick which was not fired before the source was paused.

    A tick that was due by then may have fired: the process that fired it can have died before it recorded that. The
    source knows. So it is fired there again, which makes no second job, and the schedule waits for the next tick.
    """
    visible_at = new.run_at or 0
    try:
        definition = schedules.read(new.envelope.payload)
    except (ValueError, MsgspecError):
        return new  # Written by a newer version.
    timing, anchor = definition.timing, definition.anchor
    due = last_tick(timing, anchor, visible_at)
    following = None if due is None else next_tick(timing, anchor, due)
    if due is None or following is None or not due < visible_at or not due <= paused_at < following:
        # It waits for that very tick, or a later one has come since, which is fired instead.
        return new
    job = schedules.job_of(new.key.tenant, new.key.id, definition.target, due, following)
    answer = (await source.enqueue([job]))[0]
    # No room: then it was not fired before, since what is there is answered first.
    return new if isinstance(answer, QuotaExceeded) else replace(new, run_at=following)
