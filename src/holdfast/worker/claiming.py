"""The beginning of a job's life in a worker: claim as many as there is room for, and start them."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from holdfast.clock import boot_time
from holdfast.core.errors import HoldfastError
from holdfast.core.failpoint import hit
from holdfast.core.job import ClaimRequest, JobKey
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.queue.claims import Claimer, inbox_at, pause_s
from holdfast.telemetry import metrics, tracing
from holdfast.worker.active_job import ActiveJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.job import Claimed
    from holdfast.store import Store
    from holdfast.worker.acks import Acknowledger
    from holdfast.worker.heartbeat import Heartbeat
    from holdfast.worker.runner import Runner
    from holdfast.worker.settings import Settings
    from holdfast.worker.state import RunState

CLAIM_LIMIT = 1_000
MAX_ACK_BACKLOG = 10_000
"""The most unanswered outcomes, when the store does not answer, before claiming stops."""
PREFETCH_S = 0.25
"""Prefetch at most what runs in this time: a job must not wait here while another worker is free."""


class Claiming:
    """Claims jobs by request and takes jobs that the store hands off directly."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        state: RunState,
        heartbeat: Heartbeat,
        runner: Runner,
        acks: Acknowledger,
        on_error: Callable[[str, BaseException], None],
    ) -> None:
        self._settings = settings
        self._state = state
        self._heartbeat = heartbeat
        self._runner = runner
        self._acks = acks
        self._on_error = on_error
        self._queues = settings.queues
        self._prefetch = settings.prefetch or 0
        self._measured_at: float | None = None
        self._claimer = Claimer(store)
        self._wakeup = self._claimer.wakeup(settings.tenant, settings.queues)
        self._inbox = inbox_at(store, self._deliver)

    async def run(self) -> None:
        """Claim until the run stops."""
        self._claimer.start()
        state = self._state
        pause = Pause()
        while not state.stopping:
            if self._room() <= 0:
                await state.wait_until(lambda: state.stopping or self._room() > 0)
                continue
            self._measure()
            room = min(CLAIM_LIMIT, self._room())
            if room <= 0:
                continue
            # Armed before the claim: a hint that arrives during it causes another claim. [CLAIM-3]
            self._wakeup.arm()
            sent_at = boot_time()
            try:
                # Hand-offs fill free slots only: a prefetched job would wait here while other workers are free.
                free = max(0, self._settings.concurrency - len(state.running) - len(state.prefetched))
                claimed = await self._inbox.claim(self._request(room), free)
                hit("worker.after_claim")
            except Exception as error:  # noqa: BLE001 - a worker outlives failures of its store
                if isinstance(error, HoldfastError) and not isinstance(error, AWAY):
                    # Trying again is pointless: the data is not Holdfast's, or a feature is missing.
                    state.fail(error)
                    return
                self._on_error("claim", error)
                await state.wait_until(lambda: state.stopping, pause.next_s())
                continue
            pause.reset()
            self._take(claimed, sent_at)
            if len(claimed.jobs) < room and not state.stopping:
                self._measured_at = None
                await self._wakeup.wait(pause_s(claimed))

    def wake(self) -> None:
        """End the wait for new jobs."""
        self._wakeup.notify()

    async def leave(self, claiming: asyncio.Task[None], timeout_s: float) -> None:
        """Close the inbox once the last claim has ended. Jobs that still arrive are released."""
        state = self._state
        claiming.add_done_callback(lambda _: state.changed.set())
        await state.wait_until(lambda: claiming.done() or state.stopping_now, timeout_s)
        await self._inbox.close()

    def close(self) -> None:
        """Stop listening to the store."""
        self._claimer.leave(self._wakeup, pass_on=False)
        self._claimer.close()

    def _request(self, room: int) -> ClaimRequest:
        settings = self._settings
        self._queues = self._queues[1:] + self._queues[:1]
        chance = random.random()  # noqa: S311 - jitter, no secret
        return ClaimRequest(settings.tenant, self._queues, room, settings.lease_ms, settings.worker_id, chance)

    def _deliver(self, claimed: Claimed, sent_at: float) -> None:
        """Take jobs that the store handed off, within the free slots that the last claim reported."""
        hit("worker.after_claim")
        self._take(claimed, sent_at)
        if self._inbox.needs_claim:
            self._wakeup.notify()

    def _take(self, claimed: Claimed, sent_at: float) -> None:
        if not claimed.jobs:
            return
        lease_s = self._settings.lease_ms / 1000
        until, renew_at = sent_at + lease_s, sent_at + lease_s / 3
        taken = [
            ActiveJob(job, JobKey(job.tenant, job.queue, job.id), job.token, until, renew_at) for job in claimed.jobs
        ]
        self._state.leased.update(taken)
        if metrics.current is not None:
            metrics.current.held(len(taken))
            for job in claimed.jobs:
                metrics.current.claimed(job.queue, (claimed.now - job.visible_at) / 1000)
        self._heartbeat.watch(taken, sent_at)
        self._runner.tracing = tracing.active()
        self._runner.add(taken)

    def _room(self) -> int:
        """How many jobs to claim. Prefetched jobs are replaced when half of them are used up, not one by one."""
        state = self._state
        if len(state.prefetched) > self._prefetch // 2 or self._acks.backlog > MAX_ACK_BACKLOG:
            return 0
        return self._settings.concurrency + self._prefetch - len(state.running) - len(state.prefetched)

    def _measure(self) -> None:
        """Choose how much to prefetch from the rate at which jobs ended since the last claim, unless it idled."""
        if self._settings.prefetch is not None:
            return
        now = time.monotonic()
        if self._measured_at is None:
            self._prefetch = 0
        elif now > self._measured_at:
            rate = self._state.ended / (now - self._measured_at)
            self._prefetch = min(self._settings.concurrency, int(rate * PREFETCH_S))
        self._state.ended = 0
        self._measured_at = now
