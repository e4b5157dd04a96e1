"""Works off the jobs that Holdfast keeps for itself: schedules and flows. (docs/adr/0014-schedules-and-flows.md)

They are ordinary jobs in reserved queues, so leases and fencing say who takes care of each, and a crash hands it to the
next coordinator. What a duty does is idempotent: its ids are made from the job, so a takeover repeats nothing.

In a worker it runs in the thread of the heartbeat and on its handle of the store, where handlers cannot block it;
elsewhere beside the reaper. Where there is neither schedule nor flow it costs one empty claim in half a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from holdfast.clock import LOOK_S, boot_time
from holdfast.core.errors import JobCanceled, JobNotFound, LeaseExpired, LeaseLost, StoreBusy
from holdfast.core.failpoint import hit
from holdfast.core.job import (
    SECOND,
    TERMINAL,
    Claimed,
    ClaimRequest,
    Extend,
    Extended,
    Finish,
    Finished,
    Job,
    JobKey,
    JobState,
)
from holdfast.core.lease import Refusal
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.queue.claims import Claimer, pause_s
from holdfast.store import ExtendAnswer, Hint, Signal, Store
from holdfast.telemetry.logging import get_logger

LEASE_MS = 30 * SECOND
MOST = 1_000
"""The most jobs held at once."""
CROWDED = 900
"""Above this number, jobs that only wait are given back for a while, so that the others get their turn. [TENANT-4]"""
PATIENCE_S = 1.0
"""So long they may wait all the same: what goes on quickly is not held up."""
CLAIM_LIMIT = 100
END_S = 1.0
"""How long the last release may take."""
LONGEST_DELAY_MS = 60 * SECOND
VAGUE_S = 1.0
"""Hints that name no job wake every duty, at most this often."""
MOST_FAILURES = 10_000

_HINTS = frozenset({Hint.DONE, Hint.CANCELED})
_log = get_logger(__name__)


class DutyContext:
    """What a duty has: the store, and a way to wait for other jobs to end."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def watch(self, keys: Iterable[JobKey]) -> None:
        """Wait for the end of these jobs from now on, and of no others. Watch first, then look. [RESULT-2]"""

    async def changed(self, timeout_s: float) -> frozenset[JobKey] | None:
        """Wait until some of them may have ended, or the time is over, and say which: none named stands for all.

        None says: do not wait here, give the job back.
        """
        del timeout_s
        return None


class Duty(Struct, frozen=True):
    """What is done about the jobs of one reserved queue."""

    run: Callable[[Job, DutyContext], Awaitable[Finish]]
    """Does its work, which may take days, and says how the job ends or when it is to come back.

    It can be ended at any await and begun again elsewhere. What it raises is logged, and the job comes back later; a
    refusal of its own lease ends it, and JobCanceled ends it as canceled.
    """
    after: Callable[[Job, DutyContext, JobState], Awaitable[None]] | None = None
    """Cleans up after a job that was held and has ended; not after a crash in between."""


class _ActiveDuty(DutyContext):
    """One lease, and the task that uses it."""

    def __init__(self, coordinator: Coordinator, job: Job, sent: float) -> None:
        super().__init__(coordinator.store)
        self.job, self.key, self.token = job, job.key, job.token
        self.until = sent + LEASE_MS / 1000
        """By the own clock, counted from before the request was sent. [LEASE-4]"""
        self.renew_at = sent + LEASE_MS / 3000
        self.verdict: Literal["", "canceled", "lost", "released"] = ""
        self.ending = False
        self.watched: frozenset[JobKey] = frozenset()
        self.notified = asyncio.Event()
        self._heard: set[JobKey] | None = set()
        self.task: asyncio.Task[None] | None = None
        self._coordinator = coordinator

    def watch(self, keys: Iterable[JobKey]) -> None:
        self._coordinator.watch(self, frozenset(keys))

    async def changed(self, timeout_s: float) -> frozenset[JobKey] | None:
        end = time.monotonic() + timeout_s
        while not self.notified.is_set() and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, PATIENCE_S)):
                    await self.notified.wait()
            if self._coordinator.crowded and not self.notified.is_set():
                return None
        heard, self._heard = self._heard, set()
        self.notified.clear()
        return frozenset(heard or ())

    def hear(self, key: JobKey | None) -> None:
        """This job, or any, may have ended."""
        if key is None:
            self._heard = None
        elif self._heard is not None:
            self._heard.add(key)
        self.notified.set()


class Coordinator:
    """Takes care of the schedules and flows of one tenant, or of all. Any number may run at once."""

    def __init__(
        self,
        store: Store,
        tenant: str | None,
        duties: Mapping[str, Duty],
        *,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.store = store
        self._tenant = tenant
        self._duties = duties
        self._queues = tuple(duties)
        self._on_error = on_error
        self._worker_id = f"coordinator-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._claimer = Claimer(store)
        self._claiming: asyncio.Future[Claimed] | None = None
        self._held: dict[JobKey, _ActiveDuty] = {}
        self._tasks: dict[asyncio.Task[None], _ActiveDuty] = {}
        self._failures: dict[JobKey, int] = {}
        self._watched: dict[JobKey, _ActiveDuty] = {}
        self._unlisten: Callable[[], None] | None = None
        self._vague: set[tuple[Hint, str, str]] = set()
        self._vague_at = 0.0
        self._vague_timer: asyncio.TimerHandle | None = None
        self._renewal = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def crowded(self) -> bool:
        """Whether so much is held that waiting here keeps others out."""
        return len(self._held) >= CROWDED

    async def run(self) -> None:
        """Take care of them, for ever. Ends by being canceled; then everything held is given back. [RETRY-5]"""
        self._claimer.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._claim())
                group.create_task(self._renew())
        finally:
            self._claimer.close()
            if self._vague_timer is not None:
                self._vague_timer.cancel()
            await self._give_back()

    # Claiming --------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        wakeup = self._claimer.wakeup(self._tenant, self._queues)
        pause = Pause()
        while True:
            room = min(CLAIM_LIMIT, MOST - len(self._held))
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            wakeup.arm()  # Before the look: a hint that comes during it makes us look again. [CLAIM-3]
            sent = boot_time()
            self._queues = self._queues[1:] + self._queues[:1]
            chance = random.random()  # noqa: S311 - jitter, no secret
            request = ClaimRequest(self._tenant, self._queues, room, LEASE_MS, self._worker_id, chance)
            # A task of its own: one that is under way at the end is waited for, and what it brings is given back.
            self._claiming = asyncio.ensure_future(self.store.claim(request))
            try:
                claimed = await asyncio.shield(self._claiming)
            except Exception as error:  # noqa: BLE001 - upkeep outlives a store's troubles
                self._report("a claim of schedules and flows failed", error)
                await asyncio.sleep(pause.next_s())
                continue
            pause.reset()
            hit("coordinator.after_claim")
            self._claiming = None
            for job in claimed.jobs:
                self._take(job, sent)
            if len(claimed.jobs) < room:
                await wakeup.wait(pause_s(claimed))

    def _take(self, job: Job, sent: float) -> None:
        before = self._held.get(job.key)
        if before is not None:  # Its lease ran out unnoticed, and we were handed the next one.
            self._lose(before, "lost")
        held = self._held[job.key] = _ActiveDuty(self, job, sent)
        held.task = asyncio.create_task(self._work(held), name=f"holdfast {job.queue}/{job.id}")
        self._tasks[held.task] = held
        held.task.add_done_callback(self._tasks.pop)
        self._renewal.set()

    # Working ---------------------------------------------------------------------------------------------------

    async def _work(self, held: _ActiveDuty) -> None:
        state: JobState | None = None
        try:
            answer = await self._end(held, await self._outcome(held))
            if isinstance(answer, Finished):
                state = answer.state
            elif isinstance(answer, JobCanceled):
                state = JobState.CANCELED
        except JobCanceled:
            state = JobState.CANCELED
        except (JobNotFound, LeaseLost, LeaseExpired) as refusal:
            _log.warning("a lease was lost", error=str(refusal))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if held.verdict != "canceled" or task is None:
                raise
            task.uncancel()
            state = JobState.CANCELED
        finally:
            if self._held.get(held.key) is held:
                del self._held[held.key]
            self.watch(held, frozenset())
            self._room.set()
        if state is not None and state in TERMINAL:
            await self._clean_up(held, state)

    async def _outcome(self, held: _ActiveDuty) -> Finish:
        """How the job ends, or when it comes back; a store that is away is waited for."""
        pause = Pause()
        while True:
            try:
                finish = await self._duties[held.job.queue].run(held.job, held)
            except AWAY as error:
                self._report("a schedule or flow waits for the store", error)
                await asyncio.sleep(pause.next_s())
            except (JobCanceled, JobNotFound, LeaseLost, LeaseExpired):
                raise
            except Exception:  # noqa: BLE001 - one that cannot be served must not end, and not stop the others
                failures = self._failures.pop(held.key, 0) + 1
                if len(self._failures) >= MOST_FAILURES:
                    del self._failures[next(iter(self._failures))]
                self._failures[held.key] = failures
                delay_ms = min(LONGEST_DELAY_MS, SECOND * 2 ** min(failures, 16))
                _log.exception(
                    "a schedule or flow could not be served", tenant=held.key.tenant, queue=held.key.queue,
                    job_id=held.key.id, again_in_s=delay_ms / 1000,
                )  # fmt: skip
                return Finish(held.key, held.token, "release", delay_ms=delay_ms)
            else:
                self._failures.pop(held.key, None)
                return finish

    async def _end(self, held: _ActiveDuty, finish: Finish) -> Finished | Refusal | None:
        """Send the outcome until it is answered, or the lease is over."""
        held.ending = True
        pause = Pause()
        while held.until > boot_time():
            try:
                hit("coordinator.before_finish")
                answer = (await self.store.finish([finish]))[0]
                hit("coordinator.after_finish")
                return answer
            except Exception as error:  # noqa: BLE001 - the same outcome, sent again, is answered the same [LEASE-1]
                self._report("a schedule or flow could not be ended", error)
                await asyncio.sleep(pause.next_s())
        return None

    async def _clean_up(self, held: _ActiveDuty, state: JobState) -> None:
        clean = self._duties[held.job.queue].after
        if clean is None:
            return
        pause = Pause()
        while True:
            try:
                await clean(held.job, held, state)
            except AWAY as error:
                self._report("cleaning up after a schedule or flow waits for the store", error)
                await asyncio.sleep(pause.next_s())
            except Exception as error:  # noqa: BLE001 - it has ended all the same
                self._report("nothing was cleaned up after a schedule or flow", error)
                return
            else:
                return

    # Leases ----------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        pause = Pause()
        while True:
            self._renewal.clear()
            now = boot_time()
            held = [one for one in self._held.values() if not one.ending]
            for one in held:
                if one.until <= now:
                    self._lose(one, "lost")
            due = [one for one in held if one.renew_at <= now and not one.verdict]
            if due:
                try:
                    await self._extend(due)
                    pause.reset()
                except Exception as error:  # noqa: BLE001 - tried again until the leases are over
                    self._report("schedules and flows could not be kept", error)
                    await asyncio.sleep(pause.next_s())
                continue
            next_at = min((min(one.renew_at, one.until) for one in held), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if next_at is None else min(LOOK_S, max(0.0, next_at - now))):
                    await self._renewal.wait()

    async def _extend(self, due: list[_ActiveDuty]) -> None:
        sent = boot_time()
        try:
            self._extended(due, await self.store.extend([Extend(one.key, one.token, LEASE_MS) for one in due]), sent)
        except StoreBusy:
            if len(due) == 1:
                raise
            # Another transaction may lock one of them: it must not hold up the others.
            for one in due:
                one.renew_at = boot_time() + LEASE_MS / 3000
                with contextlib.suppress(StoreBusy):
                    await self._extend([one])

    def _extended(self, due: list[_ActiveDuty], answers: list[ExtendAnswer], sent: float) -> None:
        for one, answer in zip(due, answers, strict=True):
            if isinstance(answer, Extended):
                one.until = sent + LEASE_MS / 1000
                one.renew_at = sent + LEASE_MS / 3000
            elif not one.ending:
                self._lose(one, "canceled" if isinstance(answer, JobCanceled) else "lost")

    def _lose(self, held: _ActiveDuty, verdict: Literal["canceled", "lost"]) -> None:
        if held.verdict:
            return
        held.verdict = verdict
        self._failures.pop(held.key, None)
        if self._held.get(held.key) is held:
            del self._held[held.key]
        if verdict == "lost":
            _log.warning("a lease was lost", error=str(LeaseExpired(held.key.queue, held.key.id)))
        if held.task is not None:
            held.task.cancel()

    async def _give_back(self) -> None:
        """Stop everything, and let others have it at once; what is on its way gets a moment."""
        held = [one for one in self._tasks.values() if not one.ending and not one.verdict]
        items = [Finish(one.key, one.token, "release") for one in held]
        for one in held:
            one.verdict = "released"
            if one.task is not None:
                one.task.cancel()
        if self._claiming is not None:
            await asyncio.wait([self._claiming], timeout=END_S)
            if not self._claiming.cancel() and not self._claiming.cancelled() and self._claiming.exception() is None:
                items += [Finish(job.key, job.token, "release") for job in self._claiming.result().jobs]
        if self._tasks:
            await asyncio.wait([*self._tasks], timeout=END_S)
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(END_S):
                if items:
                    await self.store.finish(items)

    # Hints -----------------------------------------------------------------------------------------------------

    def watch(self, held: _ActiveDuty, keys: frozenset[JobKey]) -> None:
        """Notify `held` when one of `keys` ends. Listens to the store only while something waits."""
        for key in held.watched - keys:
            if self._watched.get(key) is held:  # Else another lease of the same job waits for it by now.
                del self._watched[key]
        self._watched.update(dict.fromkeys(keys, held))
        held.watched = keys
        if self._watched and self._unlisten is None:
            self._unlisten = self.store.listen(self._hear, _HINTS)
        elif not self._watched and self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def _hear(self, signal: Signal) -> None:
        if not (signal.tenant and signal.queue and signal.id):
            self._vague.add((signal.hint, signal.tenant, signal.queue))
            if self._vague_timer is None:
                wait_s = max(0.0, self._vague_at + VAGUE_S - time.monotonic())
                self._vague_timer = asyncio.get_running_loop().call_later(wait_s, self._hear_vague)
            return
        key = JobKey(signal.tenant, signal.queue, signal.id)
        if signal.hint is Hint.CANCELED:
            held = self._held.get(key)
            if held is not None:
                self._suspect(held)
            return
        held = self._watched.get(key)
        if held is not None:
            held.hear(key)

    def _hear_vague(self) -> None:
        """All that came without the id of a job since the last time, at once."""
        heard, self._vague = self._vague, set()
        self._vague_timer, self._vague_at = None, time.monotonic()
        if any(hint is Hint.CANCELED for hint, _, _ in heard):
            for held in self._held.values():
                self._suspect(held)
        places = {(tenant, queue) for hint, tenant, queue in heard if hint is not Hint.CANCELED}
        for held in {held for key, held in self._watched.items() if _concerns(places, key)} if places else ():
            held.hear(None)

    def _suspect(self, held: _ActiveDuty) -> None:
        """It may have been canceled: the next renewal shows. [CANCEL-2]"""
        held.renew_at = 0.0
        self._renewal.set()

    def _report(self, text: str, error: BaseException) -> None:
        if not isinstance(error, AWAY):
            _log.error(text, error=repr(error))
        if self._on_error is not None:
            self._on_error(error)


def _concerns(places: set[tuple[str, str]], key: JobKey) -> bool:
    """Whether a job is at one of these tenants and queues; "" stands for any."""
    return not places.isdisjoint({("", ""), (key.tenant, ""), ("", key.queue), (key.tenant, key.queue)})
