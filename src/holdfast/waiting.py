"""Waiting for jobs to end, without polling: subscribe first, then look, then look again at each hint. [RESULT-2]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from holdfast.core.errors import StoreUnavailable, WaitTimeout
from holdfast.core.job import TERMINAL, Job, JobKey
from holdfast.store import Hint, Listener, Signal

Subscribe = Callable[[Listener, frozenset[Hint]], Callable[[], None]]
Get = Callable[[JobKey], Awaitable[Job | None]]

_DONE = frozenset({Hint.DONE})


class Watch:
    """One job being waited for, by one waiter or many. [RESULT-3]"""

    def __init__(self, key: JobKey, get: Get) -> None:
        self.key = key
        self.seen = False
        """Whether a look has found the job: if it is gone afterwards, it was forgotten."""
        self.holders = 0
        self.ended: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()
        self._get = get
        self._looking: asyncio.Task[None] | None = None
        self._again = False

    def look(self) -> None:
        """See whether the job has ended; a look under way is followed by another."""
        self._again = True
        if self._looking is None and not self.ended.done():
            self._looking = asyncio.create_task(self._look())

    async def wait(self, timeout_s: float | None) -> Job | None:
        """The job as it ended, or None if there is none. Raises WaitTimeout, and the job goes on."""
        await asyncio.wait([self.ended], timeout=timeout_s)
        if not self.ended.done():
            raise WaitTimeout(self.key.queue, self.key.id, timeout_s or 0.0)
        return self.ended.result()

    def fail(self, error: Exception) -> None:
        """End the wait of everyone who waits here."""
        if not self.ended.done():
            self.ended.set_exception(error)
            # Fetched here, so that a waiter who left in the meantime leaves no warning behind.
            self.ended.exception()

    def drop(self) -> None:
        """Nobody waits any more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        try:
            while self._again and not self.ended.done():
                self._again = False
                job = await self._get(self.key)
                if job is None and self._again:
                    # Somebody asked after this look had left, and may have enqueued the job in between.
                    continue
                if job is None or job.state in TERMINAL:
                    self.ended.set_result(job)
                else:
                    self.seen = True
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            self.fail(error)
        finally:
            self._looking = None


class Waits:
    """All the jobs that one Queue waits for. It listens only while there are any."""

    def __init__(self, tenant: str, subscribe: Subscribe, get: Get) -> None:
        self._tenant = tenant
        self._subscribe = subscribe
        self._get = get
        self._watches: dict[JobKey, Watch] = {}
        self._unsubscribe: Callable[[], None] | None = None

    @contextmanager
    def watch(self, key: JobKey) -> Generator[Watch]:
        """Listen for the end of a job from here on. Leaving frees everything, for the last waiter. [RESULT-3]"""
        if self._unsubscribe is None:
            self._unsubscribe = self._subscribe(self._hear, _DONE)
        watch = self._watches.get(key)
        if watch is None or watch.ended.done():
            watch = self._watches[key] = Watch(key, self._get)
        watch.holders += 1
        try:
            yield watch
        finally:
            watch.holders -= 1
            if watch.holders == 0:
                self._drop(watch)

    def close(self) -> None:
        """End every wait with an error."""
        for watch in list(self._watches.values()):
            watch.fail(StoreUnavailable("the queue was closed while a job was waited for"))

    def _drop(self, watch: Watch) -> None:
        watch.drop()
        if self._watches.get(watch.key) is watch:
            del self._watches[watch.key]
        if not self._watches and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _hear(self, signal: Signal) -> None:
        if signal.tenant not in ("", self._tenant):
            return
        if signal.queue and signal.id:
            watch = self._watches.get(JobKey(self._tenant, signal.queue, signal.id))
            if watch is not None:
                watch.look()
            return
        for key, watch in self._watches.items():
            if signal.queue in ("", key.queue) and signal.id in ("", key.id):
                watch.look()
