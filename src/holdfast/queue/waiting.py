"""Waiting for jobs to end, without polling: subscribe first, then read, then read again at each hint. [RESULT-2]"""

from __future__ import annotations

import asyncio
import math
import random
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from holdfast.core.errors import StoreBusy, StoreUnavailable, WaitTimeout
from holdfast.core.job import TERMINAL, Job, JobKey
from holdfast.store import Hint, Listener, Signal

Subscribe = Callable[[Listener, frozenset[Hint]], Callable[[], None]]
Get = Callable[[JobKey], Awaitable[Job | None]]

FALLBACK_S = 30.0
LAST_LOOK_S = 1.0
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
"""How long to wait before reading again from a store that was unreachable: at first, and at most."""
_DONE = frozenset({Hint.DONE})


class Watch:
    """One job being waited for, by one waiter or many. [RESULT-3]"""

    def __init__(self, key: JobKey, get: Get, request_id: str = "") -> None:
        self.key = key
        self.request_id = request_id
        """The life of the id that is waited for. "": the first one that a read finds. [ENQ-2]"""
        self._seq: int | None = None
        self.seen = False
        """Whether the job is known to have existed. If it is gone then, it was forgotten."""
        self.holders = 0
        self.ended: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()
        self._get = get
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self._unsure = False

    def look(self) -> None:
        """Read whether the job has ended. A read in flight is followed by another one."""
        self._again = True
        if self._looking is None and not self.ended.done():
            self._looking = asyncio.create_task(self._look())

    def job_ended(self, job: Job | None) -> None:
        """Record that the job has ended. `job` is its record, if it is known."""
        if job is not None and self.request_id and self._is_ours(job):
            self.seen = True
            if not self.ended.done():
                self.ended.set_result(job)
        else:
            self.look()

    def enqueued(self) -> None:
        """Record that the enqueue was answered: from now on a missing job has been forgotten.

        A waiter that subscribed before the job was enqueued is notified when it ends, so there is no need to read now,
        unless another waiter read before the job was certain to exist. [RESULT-2]
        """
        self.seen = True
        if self._unsure or self._looking is not None:
            self.look()

    async def wait(self, timeout_s: float | None, gone: asyncio.Future[None] | None = None) -> Job | None:
        """The job as it ended, or None if there is none. Raises WaitTimeout; the job continues.

        Hints can be lost with the process that should have sent them. So the job is read now and then, and once more
        before the time is up. When `gone` is done the wait is over, as if the time were up.
        """
        clock = asyncio.get_running_loop().time
        end = math.inf if timeout_s is None else clock() + timeout_s
        futures = [self.ended] if gone is None else [self.ended, gone]
        while not self.ended.done() and not futures[-1].done() and (left := end - clock()) > 0:
            # Vary the interval, so that a fleet does not read at the same time.
            pause_s = FALLBACK_S * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
            await asyncio.wait(futures, timeout=min(left, pause_s), return_when=FIRST_COMPLETED)
            self.look()
        if not self.ended.done():
            self.look()
            looking = [self._looking] if self._looking is not None else []
            await asyncio.wait([self.ended, *looking], timeout=LAST_LOOK_S, return_when=FIRST_COMPLETED)
        if not self.ended.done():
            raise WaitTimeout(self.key.queue, self.key.id, timeout_s or 0.0)
        return self.ended.result()

    def fail(self, error: Exception) -> None:
        """End every wait."""
        if not self.ended.done():
            self.ended.set_exception(error)
            # Retrieve the error here, so that asyncio logs no warning if its waiter has left.
            self.ended.exception()

    def drop(self) -> None:
        """Stop: no waiter is left."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        try:
            while self._again and not self.ended.done():
                self._again = False
                certain = self.seen  # A read sent before the enqueue was answered may have preceded the enqueue.
                job = await self._get_in_time()
                if job is None and self._again:
                    # A waiter arrived after this read was sent, and may have enqueued the job in between.
                    continue
                self._saw(job, certain=certain)
        except Exception as error:  # noqa: BLE001 - it belongs to the waiters
            self.fail(error)
        finally:
            self._looking = None

    async def _get_in_time(self) -> Job | None:
        """Read the job. If the store answered before and is unreachable now, wait for it: the job continues."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                job = await self._get(self.key)
            except (StoreUnavailable, StoreBusy):
                if not self.seen:
                    raise
            else:
                return job
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _saw(self, job: Job | None, *, certain: bool) -> None:
        if job is not None and self._is_ours(job):
            self.seen = True
            if job.state in TERMINAL:
                self.ended.set_result(job)
        elif certain or not self.request_id:
            # It is gone, or its id has a new life: the awaited job has ended and its outcome is unknown.
            self.ended.set_result(None)
        else:
            self._unsure = True

    def _is_ours(self, job: Job) -> bool:
        if self.request_id:
            return job.envelope.request_id == self.request_id
        if self._seq is None:
            self._seq = job.seq
        return job.seq == self._seq


class Waits:
    """All jobs that one Queue waits for. It listens only while there are any."""

    def __init__(self, tenant: str, subscribe: Subscribe, get: Get) -> None:
        self._tenant = tenant
        self._subscribe = subscribe
        self._get = get
        self._watches: dict[JobKey, dict[str, Watch]] = {}
        self._unsubscribe: Callable[[], None] | None = None

    @contextmanager
    def watch(self, key: JobKey, request_id: str = "") -> Generator[Watch]:
        """Listen for the end of a job inside the block. The last waiter that leaves frees everything. [RESULT-3]

        With a request id, it waits for the job of that request, not for an earlier or later one of the same id.
        """
        if self._unsubscribe is None:
            self._unsubscribe = self._subscribe(self._on_hint, _DONE)
        lives = self._watches.setdefault(key, {})
        watch = lives.get(request_id)
        if watch is None or watch.ended.done():
            watch = lives[request_id] = Watch(key, self._get, request_id)
        watch.holders += 1
        try:
            yield watch
        finally:
            watch.holders -= 1
            if watch.holders == 0:
                self._drop(watch)

    def close(self) -> None:
        """End every wait with an error."""
        for watch in [watch for lives in self._watches.values() for watch in lives.values()]:
            watch.fail(StoreUnavailable("the queue was closed while a job was waited for"))

    def _drop(self, watch: Watch) -> None:
        watch.drop()
        lives = self._watches.get(watch.key, {})
        if lives.get(watch.request_id) is watch:
            del lives[watch.request_id]
        if not lives:
            self._watches.pop(watch.key, None)
        if not self._watches and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _on_hint(self, signal: Signal) -> None:
        if signal.tenant not in ("", self._tenant):
            return
        if signal.queue and signal.id:
            for watch in self._watches.get(JobKey(self._tenant, signal.queue, signal.id), {}).values():
                watch.job_ended(signal.job)
            return
        for key, lives in self._watches.items():
            if signal.queue in ("", key.queue) and signal.id in ("", key.id):
                for watch in lives.values():
                    watch.look()
