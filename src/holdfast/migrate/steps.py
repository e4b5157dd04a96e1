"""The steps of a move on one queue, page by page. Three read the source, one the target.

    copy        enqueue each job in the target, in the order in which it would be claimed [CLAIM-2]
    verify      read each copy back from the target, and compare it with the job
    take        take each job away: cancel it in the source, if the target has its copy
    withdraw    delete copies of jobs that no longer waited at `take`, or that have changed since they were copied

Each step can be repeated, by a retried task or by the mover after a killed one. It checks the mover's lease before each
write, so that a mover whose lease is lost does not continue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

from msgspec import MsgspecError, Struct, field
from msgspec.structs import replace

from holdfast.core import schedule as schedules
from holdfast.core.errors import QuotaExceeded, StoreBusy
from holdfast.core.failpoint import hit
from holdfast.core.job import WAITING, Cancel, Duplicate, Job, JobKey, JobState, NewJob, Purge
from holdfast.core.names import MOVES, SCHEDULES
from holdfast.migrate import copies
from holdfast.schedules.ticks import last_tick, next_tick
from holdfast.store import EnqueueAnswer, ListQuery, Page, Store

LEASE_ID = "mover"
"""The job that the running mover has leased, in both stores."""
PAGE = 500
MAX_PAGE_BYTES = 8 << 20
"""The most bytes of payloads in a page of several jobs: a page is sent in one request."""
READ_BATCH = 100
"""Jobs read at a time, before their size is known: at most 25 MiB of payloads."""
MAX_NAMED_JOBS = 5
"""The most jobs that an error names."""

Step = Literal["copy", "verify", "take", "withdraw"]
Advance = Callable[[int], None]
"""Called with the number of jobs that a step has just handled."""


class StepInput(Struct, frozen=True):
    """What a step needs to know, also in another process."""

    step: Step
    tenant: str
    mapping: copies.CopyMapping
    worker: str
    """The worker id under which the mover has its lease."""
    paused_at: int
    """A time on the source's clock. The source has handed out no job since."""
    spans: tuple[tuple[int, int], ...] = ()
    """When this move took jobs away: a job canceled in the source at another time was canceled by its owner."""


class Receipt(Struct):
    """The result of a step on one queue."""

    queue: str
    seen: int = 0
    seen_sum: int = 0
    """The jobs that waited in the source, and the sum of their checksums."""
    jobs: int = 0
    source_sum: int = 0
    target_sum: int = 0
    """The jobs that the target has, and the sums of their checksums in each store, modulo 2^64, in any order."""
    left: int = 0
    """Jobs that no longer waited, so they stay in the source."""
    missing: list[str] = field(default_factory=list[str])
    """The first jobs that the target does not have: they were enqueued later, or it has lost them."""
    differences: list[str] = field(default_factory=list[str])
    """The first jobs that differ in the target."""

    def count(self, checksum: int) -> None:
        """Count a job that was read in the source."""
        self.seen += 1
        self.seen_sum = (self.seen_sum + checksum) % copies.SUM

    def add_difference(self, new: NewJob, why: str) -> None:
        """Name a job that differs in the target."""
        if len(self.differences) < MAX_NAMED_JOBS:
            self.differences.append(f"{new.key.queue}/{new.key.id}: {why}")


async def run_step(
    step_input: StepInput, source: Store, target: Store, queue: str, advance: Advance = lambda _: None
) -> Receipt:
    """Run one step on one queue. Raises what the stores raise, and StoreBusy if a quota has no room."""
    receipt = Receipt(queue)
    act = {"copy": _copy, "verify": _verify, "take": _take, "withdraw": _withdraw_stale}[step_input.step]
    async for page in pages(target if step_input.step == "withdraw" else source, step_input.tenant, queue):
        await act(step_input, source, target, page, receipt)
        advance(len(page.jobs))
        hit(f"move.{step_input.step}")
    return receipt


async def has_lease(store: Store, tenant: str, worker: str) -> bool:
    """Whether this mover has its lease."""
    found = (await store.get([JobKey(tenant, MOVES, LEASE_ID)]))[0]
    return found is not None and found.state is JobState.LEASED and found.worker_id == worker


async def pages(store: Store, tenant: str, queue: str, states: frozenset[JobState] = WAITING) -> AsyncIterator[Page]:
    """The waiting jobs of a queue, in claim order: `PAGE` jobs at a time, or fewer if they are large."""
    cursor: str | None = None
    jobs: list[Job] = []
    size = 0
    while True:
        page = await store.list(
            ListQuery(tenant, queue, states, cursor=cursor, limit=min(READ_BATCH, PAGE - len(jobs)))
        )
        for job in page.jobs:
            if jobs and size + len(job.envelope.payload) > MAX_PAGE_BYTES:
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
    await _check_lease(step_input, target)
    answers = await target.enqueue(new)
    again = [n for n, answer in enumerate(answers) if _own_key(new[n], answer)]
    if again:
        for n, answer in zip(again, await target.enqueue([copies.without_key(new[n]) for n in again]), strict=True):
            answers[n] = answer
    for one, answer in zip(new, answers, strict=True):
        receipt.count(copies.checksum(one))
        if isinstance(answer, QuotaExceeded):
            if answer.budget != "max_waiting":
                raise StoreBusy(f"DST has no room: {answer} Or raise the budget in DST")
            raise StoreBusy(no_room(answer.queue, answer.waiting, answer.limit))
        if answer.id != one.key.id:
            receipt.add_difference(one, f"its idempotency key belongs to {answer.id} there")


def no_room(queue: str | None, waiting: int, limit: int, more: int = 1) -> str:
    """The error for a full quota. Waiting does not help: the queues are paused."""
    where = f"queue {queue!r}" if queue else "all queues of the tenant"
    return (
        f"DST has no room: {waiting} jobs wait in {where}, {more} or more would come, and the quota is {limit}; "
        "raise it in DST"
    )


def _own_key(new: NewJob, answer: EnqueueAnswer) -> bool:
    """Whether the target keeps only the idempotency key of an earlier job with this id."""
    return isinstance(answer, Duplicate) and answer.state is None and answer.id == new.key.id


async def _verify(step_input: StepInput, _source: Store, target: Store, page: Page, receipt: Receipt) -> None:
    for new, found in await _compare(step_input, target, page):
        checksum = copies.checksum(new)
        receipt.count(checksum)
        if found is None:
            if len(receipt.missing) < MAX_NAMED_JOBS:
                receipt.missing.append(f"{new.key.queue}/{new.key.id}: it is not there")
            continue
        receipt.jobs += 1
        receipt.source_sum = (receipt.source_sum + checksum) % copies.SUM
        receipt.target_sum = (receipt.target_sum + copies.found_checksum(new, found)) % copies.SUM
        if why := copies.mismatch(new, found):
            receipt.add_difference(new, why)


async def _take(step_input: StepInput, source: Store, target: Store, page: Page, receipt: Receipt) -> None:
    # A job that was enqueued after the copy is not in the target, and waits for the next pass.
    pairs = zip(page.jobs, await _compare(step_input, target, page), strict=True)
    there = [(old, new, found) for old, (new, found) in pairs if found is not None and not copies.mismatch(new, found)]
    await _check_lease(step_input, source)
    # By sequence number: another job may have the same id by now.
    answers = await source.cancel([Cancel(old.key, only_waiting=True, seq=old.seq) for old, _, _ in there])
    receipt.jobs += answers.count("canceled")
    stay = [(new, found) for (_, new, found), answer in zip(there, answers, strict=True) if answer != "canceled"]
    receipt.left += len(stay)
    # These jobs ran or were canceled in the source: their copies must not run.
    await _withdraw(target, [found for new, found in stay if found.envelope.request_id == new.envelope.request_id])


async def _withdraw_stale(step_input: StepInput, source: Store, target: Store, page: Page, receipt: Receipt) -> None:
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
            # The job still waits. If it ran meanwhile, its copy is out of date and is made again.
            if copies.mismatch(copies.copy_of(old, now, step_input.mapping), copy):
                stale.append(copy)
        elif _ended(copy, old, step_input):
            stale.append(copy)
            receipt.left += 1
    await _check_lease(step_input, target)
    await _withdraw(target, stale)


def _ended(copy: Job, old: Job | None, step_input: StepInput) -> bool:
    """Whether the job ran or ended in the source, other than by this move. [CANCEL-1]"""
    if old is None or copies.request_id(old, step_input.mapping) != copy.envelope.request_id:
        return not step_input.spans  # The source has deleted it: after our cancel, if this move has taken any job.
    if old.state is not JobState.CANCELED:
        return True
    # Each shard of a cluster has its own clock. In doubt assume our cancel: a late cancel is better than a lost job.
    at, slack = old.finished_at or 0, copies.SLACK_MS
    return not any(began - slack <= at <= ended + slack for began, ended in step_input.spans)


async def _withdraw(target: Store, jobs: Sequence[Job]) -> None:
    """Cancel and purge copies, so that they can be made again."""
    if jobs:
        answers = await target.cancel([Cancel(job.key, only_waiting=True, seq=job.seq) for job in jobs])
        gone = [Purge(job.key, seq=job.seq) for job, answer in zip(jobs, answers, strict=True) if answer == "canceled"]
        if gone:
            await target.purge(gone)


async def _compare(step_input: StepInput, target: Store, page: Page) -> list[tuple[NewJob, Job | None]]:
    """For each job of the page: the copy as it should be, and what the target has."""
    new = [copies.copy_of(job, page.now, step_input.mapping) for job in page.jobs]
    return list(zip(new, await target.get([one.key for one in new]), strict=True))


async def _check_lease(step_input: StepInput, store: Store) -> None:
    """Check before each write: a mover that slept longer than its lease must not interfere with its successor."""
    if not await has_lease(store, step_input.tenant, step_input.worker):
        raise lease_lost()


def lease_lost() -> StoreBusy:
    """The error of a mover that has lost its lease."""
    return StoreBusy("this mover has lost its lease, and another one may be running")


async def renewed(new: NewJob, paused_at: int, source: Store) -> NewJob:
    """The copy of a schedule, waiting for a tick that did not fire before the source was paused.

    A tick that was due by then may have fired: the process that fired it may have crashed before it recorded that. The
    source knows. So fire it there again, which makes no second job, and let the copy wait for the next tick.
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
        # The schedule waits for this tick, or a later tick is due and fires instead.
        return new
    job = schedules.job_of(new.key.tenant, new.key.id, definition.target, due, following)
    answer = (await source.enqueue([job]))[0]
    # Over quota: the tick did not fire before, because an existing job is answered before the quota is checked.
    return new if isinstance(answer, QuotaExceeded) else replace(new, run_at=following)
