"""Serves system jobs: schedules and flows. (docs/adr/0014-schedules-and-flows.md)

System jobs are ordinary jobs in reserved queues. No leader is elected: every process may run a coordinator, and the
lease of each job decides which one serves it. After a crash the lease expires, and another coordinator claims the job.
Handlers are idempotent: they make the ids of the jobs they enqueue from their own job, so a takeover repeats nothing.

In a worker the coordinator runs in the heartbeat's thread and on its connection, where job handlers cannot block it;
elsewhere it runs beside the reaper. Without schedules and flows it costs one empty claim every half minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

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
from holdfast.maintenance.system_jobs import SystemContext, SystemHandler
from holdfast.queue.claims import Claimer, pause_s
from holdfast.store import ExtendAnswer, Hint, Signal, Store
from holdfast.telemetry.logging import get_logger

LEASE_MS = 30 * SECOND
MAX_JOBS = 1_000
"""The most system jobs leased at once."""
CROWDED_JOBS = 900
"""From this number on, jobs that only wait are released for a while, so that others are served. [TENANT-4]"""
MIN_WAIT_S = 1.0
"""Even then a job may wait this long, so that a flow whose steps end quickly is not delayed."""
CLAIM_LIMIT = 100
END_S = 1.0
"""How long each step of the shutdown may take."""
MAX_DELAY_MS = 60 * SECOND
"""The longest delay before a job whose handler raised is claimed again."""
BROAD_HINT_S = 1.0
"""How often to handle hints without a job id, at most: each wakes many handlers, so they are handled together."""
MAX_FAILURES = 10_000
"""The most jobs whose failures are counted."""

_HINTS = frozenset({Hint.DONE, Hint.CANCELED})
_log = get_logger(__name__)


class _ActiveSystemJob(SystemContext):
    """One lease of a system job, with the task that serves it."""

    def __init__(self, coordinator: Coordinator, job: Job, sent: float) -> None:
        super().__init__(coordinator.store)
        self.job, self.key, self.token = job, job.key, job.token
        self.until = sent + LEASE_MS / 1000
        """When the lease ends by this process's clock, counted from before the claim was sent. [LEASE-4]"""
        self.renew_at = sent + LEASE_MS / 3000
        self.interruption: Literal["", "canceled", "lost", "released"] = ""
        self.ending = False
        """Its outcome is being sent."""
        self.watched: frozenset[JobKey] = frozenset()
        self.notified = asyncio.Event()
        self._ended: set[JobKey] | None = set()
        """The watched jobs that may have ended since the last `changed`; None: any of them."""
        self.task: asyncio.Task[None] | None = None
        self._coordinator = coordinator

    def watch(self, keys: Iterable[JobKey]) -> None:
        self._coordinator.watch(self, frozenset(keys))

    async def changed(self, timeout_s: float) -> frozenset[JobKey] | None:
        end = time.monotonic() + timeout_s
        while not self.notified.is_set() and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, MIN_WAIT_S)):
                    await self.notified.wait()
            if self._coordinator.crowded and not self.notified.is_set():
                return None
        ended, self._ended = self._ended, set()
        self.notified.clear()
        return frozenset(ended or ())

    def notify(self, key: JobKey | None) -> None:
        """Record that this watched job may have ended. None: any of them may have."""
        if key is None:
            self._ended = None
        elif self._ended is not None:
            self._ended.add(key)
        self.notified.set()


class Coordinator:
    """Serves the schedules and flows of one tenant, or of all tenants. Any number of coordinators may run at once."""

    def __init__(
        self,
        store: Store,
        tenant: str | None,
        handlers: Mapping[str, SystemHandler],
        *,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.store = store
        self._tenant = tenant
        self._handlers = handlers
        self._queues = tuple(handlers)
        self._on_error = on_error
        self._worker_id = f"coordinator-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._claimer = Claimer(store)
        self._claiming: asyncio.Future[Claimed] | None = None
        self._leased: dict[JobKey, _ActiveSystemJob] = {}
        self._tasks: dict[asyncio.Task[None], _ActiveSystemJob] = {}
        self._failures: dict[JobKey, int] = {}
        self._watched: dict[JobKey, _ActiveSystemJob] = {}
        self._unlisten: Callable[[], None] | None = None
        self._broad_hints: set[tuple[Hint, str, str]] = set()
        self._broad_at = 0.0
        self._broad_timer: asyncio.TimerHandle | None = None
        self._renewal_due = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def crowded(self) -> bool:
        """Whether jobs that only wait should be released, because they keep others out."""
        return len(self._leased) >= CROWDED_JOBS

    async def run(self) -> None:
        """Serve them until this is canceled; then release every job. [RETRY-5]"""
        self._claimer.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._claim())
                group.create_task(self._renew())
        finally:
            self._claimer.close()
            if self._broad_timer is not None:
                self._broad_timer.cancel()
            await self._release_all()

    # Claiming --------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        wakeup = self._claimer.wakeup(self._tenant, self._queues)
        pause = Pause()
        while True:
            room = min(CLAIM_LIMIT, MAX_JOBS - len(self._leased))
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            wakeup.arm()  # Before the claim: a hint that arrives during it causes another claim. [CLAIM-3]
            sent = boot_time()
            self._queues = self._queues[1:] + self._queues[:1]
            chance = random.random()  # noqa: S311 - jitter, no secret
            request = ClaimRequest(self._tenant, self._queues, room, LEASE_MS, self._worker_id, chance)
            # A task of its own: the shutdown waits for a claim in flight and releases its jobs.
            self._claiming = asyncio.ensure_future(self.store.claim(request))
            try:
                claimed = await asyncio.shield(self._claiming)
            except Exception as error:  # noqa: BLE001 - a coordinator outlives failures of its store
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
        before = self._leased.get(job.key)
        if before is not None:  # Its lease expired unnoticed, and this process claimed it again.
            self._lose(before, "lost")
        active = self._leased[job.key] = _ActiveSystemJob(self, job, sent)
        active.task = asyncio.create_task(self._work(active), name=f"holdfast {job.queue}/{job.id}")
        self._tasks[active.task] = active
        active.task.add_done_callback(self._tasks.pop)
        self._renewal_due.set()

    # Working ---------------------------------------------------------------------------------------------------

    async def _work(self, active: _ActiveSystemJob) -> None:
        state: JobState | None = None
        try:
            answer = await self._end(active, await self._outcome(active))
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
            if active.interruption != "canceled" or task is None:
                raise
            task.uncancel()
            state = JobState.CANCELED
        finally:
            if self._leased.get(active.key) is active:
                del self._leased[active.key]
            self.watch(active, frozenset())
            self._room.set()
        if state is not None and state in TERMINAL:
            await self._clean_up(active, state)

    async def _outcome(self, active: _ActiveSystemJob) -> Finish:
        """Call the handler until it returns an outcome; wait while the store cannot be reached."""
        pause = Pause()
        while True:
            try:
                finish = await self._handlers[active.job.queue].run(active.job, active)
            except AWAY as error:
                self._report("a schedule or flow waits for the store", error)
                await asyncio.sleep(pause.next_s())
            except (JobCanceled, JobNotFound, LeaseLost, LeaseExpired):
                raise
            except Exception:  # noqa: BLE001 - a job that cannot be served must neither end nor stop the others
                failures = self._failures.pop(active.key, 0) + 1
                if len(self._failures) >= MAX_FAILURES:
                    del self._failures[next(iter(self._failures))]
                self._failures[active.key] = failures
                delay_ms = min(MAX_DELAY_MS, SECOND * 2 ** min(failures, 16))
                _log.exception(
                    "a schedule or flow could not be served", tenant=active.key.tenant, queue=active.key.queue,
                    job_id=active.key.id, retry_in_s=delay_ms / 1000,
                )  # fmt: skip
                return Finish(active.key, active.token, "release", delay_ms=delay_ms)
            else:
                self._failures.pop(active.key, None)
                return finish

    async def _end(self, active: _ActiveSystemJob, finish: Finish) -> Finished | Refusal | None:
        """Send the outcome until the store answers or the lease is over."""
        active.ending = True
        pause = Pause()
        while active.until > boot_time():
            try:
                hit("coordinator.before_finish")
                answer = (await self.store.finish([finish]))[0]
                hit("coordinator.after_finish")
                return answer
            except Exception as error:  # noqa: BLE001 - the same outcome, sent again, is answered the same [LEASE-1]
                self._report("a schedule or flow could not be ended", error)
                await asyncio.sleep(pause.next_s())
        return None

    async def _clean_up(self, active: _ActiveSystemJob, state: JobState) -> None:
        clean_up = self._handlers[active.job.queue].clean_up
        if clean_up is None:
            return
        pause = Pause()
        while True:
            try:
                await clean_up(active.job, active, state)
            except AWAY as error:
                self._report("cleaning up after a schedule or flow waits for the store", error)
                await asyncio.sleep(pause.next_s())
            except Exception as error:  # noqa: BLE001 - the job has ended anyway
                self._report("the clean-up after a schedule or flow failed", error)
                return
            else:
                return

    # Leases ----------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        pause = Pause()
        while True:
            self._renewal_due.clear()
            now = boot_time()
            leased = [one for one in self._leased.values() if not one.ending]
            for one in leased:
                if one.until <= now:
                    self._lose(one, "lost")
            due = [one for one in leased if one.renew_at <= now and not one.interruption]
            if due:
                try:
                    await self._extend(due)
                    pause.reset()
                except Exception as error:  # noqa: BLE001 - tried again until the leases expire
                    self._report("leases of schedules and flows could not be renewed", error)
                    await asyncio.sleep(pause.next_s())
                continue
            next_at = min((min(one.renew_at, one.until) for one in leased), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if next_at is None else min(LOOK_S, max(0.0, next_at - now))):
                    await self._renewal_due.wait()

    async def _extend(self, due: list[_ActiveSystemJob]) -> None:
        sent = boot_time()
        try:
            self._extended(due, await self.store.extend([Extend(one.key, one.token, LEASE_MS) for one in due]), sent)
        except StoreBusy:
            if len(due) == 1:
                raise
            # A transaction may lock one of them. The others must not wait for it.
            for one in due:
                one.renew_at = boot_time() + LEASE_MS / 3000
                with contextlib.suppress(StoreBusy):
                    await self._extend([one])

    def _extended(self, due: list[_ActiveSystemJob], answers: list[ExtendAnswer], sent: float) -> None:
        for one, answer in zip(due, answers, strict=True):
            if isinstance(answer, Extended):
                one.until = sent + LEASE_MS / 1000
                one.renew_at = sent + LEASE_MS / 3000
            elif not one.ending:
                self._lose(one, "canceled" if isinstance(answer, JobCanceled) else "lost")

    def _lose(self, active: _ActiveSystemJob, interruption: Literal["canceled", "lost"]) -> None:
        if active.interruption:
            return
        active.interruption = interruption
        self._failures.pop(active.key, None)
        if self._leased.get(active.key) is active:
            del self._leased[active.key]
        if interruption == "lost":
            _log.warning("a lease was lost", error=str(LeaseExpired(active.key.queue, active.key.id)))
        if active.task is not None:
            active.task.cancel()

    async def _release_all(self) -> None:
        """Stop every task and release its job at once. Wait a second for outcomes and claims in flight."""
        unfinished = [one for one in self._tasks.values() if not one.ending and not one.interruption]
        items = [Finish(one.key, one.token, "release") for one in unfinished]
        for one in unfinished:
            one.interruption = "released"
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

    def watch(self, active: _ActiveSystemJob, keys: frozenset[JobKey]) -> None:
        """Notify `active` when one of `keys` ends. Listens to the store only while some job is watched."""
        for key in active.watched - keys:
            if self._watched.get(key) is active:  # Otherwise a later lease of the same job watches it.
                del self._watched[key]
        self._watched.update(dict.fromkeys(keys, active))
        active.watched = keys
        if self._watched and self._unlisten is None:
            self._unlisten = self.store.listen(self._on_hint, _HINTS)
        elif not self._watched and self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def _on_hint(self, signal: Signal) -> None:
        if not (signal.tenant and signal.queue and signal.id):
            self._broad_hints.add((signal.hint, signal.tenant, signal.queue))
            if self._broad_timer is None:
                wait_s = max(0.0, self._broad_at + BROAD_HINT_S - time.monotonic())
                self._broad_timer = asyncio.get_running_loop().call_later(wait_s, self._on_broad_hints)
            return
        key = JobKey(signal.tenant, signal.queue, signal.id)
        if signal.hint is Hint.CANCELED:
            active = self._leased.get(key)
            if active is not None:
                self._verify(active)
            return
        active = self._watched.get(key)
        if active is not None:
            active.notify(key)

    def _on_broad_hints(self) -> None:
        """Handle all hints without a job id since the last call together."""
        hints, self._broad_hints = self._broad_hints, set()
        self._broad_timer, self._broad_at = None, time.monotonic()
        if any(hint is Hint.CANCELED for hint, _, _ in hints):
            for active in self._leased.values():
                self._verify(active)
        places = {(tenant, queue) for hint, tenant, queue in hints if hint is not Hint.CANCELED}
        for active in {active for key, active in self._watched.items() if _concerns(places, key)} if places else ():
            active.notify(None)

    def _verify(self, active: _ActiveSystemJob) -> None:
        """Renew a lease now, to find out whether the job was canceled. [CANCEL-2]"""
        active.renew_at = 0.0
        self._renewal_due.set()

    def _report(self, text: str, error: BaseException) -> None:
        if not isinstance(error, AWAY):
            _log.error(text, error=repr(error))
        if self._on_error is not None:
            self._on_error(error)


def _concerns(places: set[tuple[str, str]], key: JobKey) -> bool:
    """Whether the job is in one of these tenants and queues; "" means any."""
    return not places.isdisjoint({("", ""), (key.tenant, ""), ("", key.queue), (key.tenant, key.queue)})
