"""A worker that waits at a store with direct hand-off: the jobs it received, and a way to wait for them.

A job that was handed off is leased in the store. So a check that expects no delivery reads the state and need not wait;
a check that expects one waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from holdfast.core.job import Claimed, ClaimRequest, Finish, Job, JobState, NewJob, Queued
from holdfast.extensions import DirectHandoff, WorkerInbox
from holdfast.opening import open_store
from holdfast.store import Store
from holdfast.testing.conformance import harness
from holdfast.testing.conformance.expect import Broken, Skipped, expect, expect_equal
from holdfast.testing.conformance.harness import LEASE, Harness

_PROBE_S = 0.05


class WaitingWorker:
    """One waiting worker and its inbox."""

    def __init__(self, h: Harness, store: Store, worker: str) -> None:
        if not isinstance(store, DirectHandoff):
            raise Skipped("the store has no direct hand-off: it has no `open_inbox`")
        self.jobs: list[Job] = []
        """What was delivered, in order."""
        self.times: list[int] = []
        """The store's time at each delivery."""
        self._h = h
        self._worker = worker
        self._came = asyncio.Event()
        inbox = store.open_inbox(self._take)
        if inbox is None:
            raise Skipped("no direct hand-off in this deployment: `open_inbox` gives None")
        self._inbox: WorkerInbox = inbox

    @property
    def ids(self) -> list[str]:
        """The ids of what was delivered."""
        return [job.id for job in self.jobs]

    async def claim(
        self,
        limit: int = 1,
        *,
        queue: str | Sequence[str] | None = None,
        tenant: str | None = "",
        lease_ms: int = LEASE,
        free: int | None = None,
    ) -> list[Job]:
        """Claim; if there is less than `limit`, the rest may be delivered, as far as `free` goes."""
        queues = (queue or self._h.queue,) if queue is None or isinstance(queue, str) else tuple(queue)
        whose = self._h.tenant if tenant == "" else tenant
        return (await self._inbox.claim(ClaimRequest(whose, queues, limit, lease_ms, self._worker), free)).jobs

    async def register(
        self, limit: int = 1, *, queue: str | Sequence[str] | None = None, tenant: str | None = ""
    ) -> None:
        """Claim where there is nothing yet: up to `limit` jobs may be delivered."""
        expect_equal([job.id for job in await self.claim(limit, queue=queue, tenant=tenant)], [], "an idle claim")

    async def received(self, count: int) -> list[Job]:
        """Wait until exactly `count` jobs have been delivered in all, and return them."""
        try:
            async with asyncio.timeout(harness.PATIENCE_S):
                while len(self.jobs) < count:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise Broken(f"{len(self.jobs)} of {count} jobs were delivered: {self.ids}") from None
        expect_equal(len(self.jobs), count, "jobs that were delivered")
        return self.jobs

    async def close(self) -> None:
        """Close the inbox."""
        await self._inbox.close()

    async def warm_up(self) -> None:
        """Return when deliveries come here: the store may need a moment to know this worker."""
        tenant, queue = self._h.name("probe"), self._h.name("probe")
        end = time.monotonic() + harness.PATIENCE_S
        for number in range(1_000_000):
            await self.register(1, tenant=tenant, queue=queue)
            await self._h.queued(f"p{number}", tenant=tenant, queue=queue)
            if (await self._h.get(self._h.key(f"p{number}", tenant=tenant, queue=queue))).state is JobState.LEASED:
                break
            for job in await self.claim(1, tenant=tenant, queue=queue):
                self._h.accepted(await self._h.complete(job))
            if time.monotonic() > end:
                raise Broken("a store that has `open_inbox` delivered nothing")
            await asyncio.sleep(_PROBE_S)
        (job,) = await self.received(1)
        self._h.accepted((await self._h.store.finish([Finish(job.key, job.token, "complete")]))[0])
        self.jobs.clear()
        self.times.clear()

    def _take(self, claimed: Claimed, since: float) -> None:
        self.jobs += claimed.jobs
        self.times.append(claimed.now)
        self._came.set()
        expect(since <= time.monotonic(), "a lease is to be counted from a moment that is still to come")


@asynccontextmanager
async def waiting_worker(
    h: Harness, worker: str = "worker-1", store: Store | None = None
) -> AsyncGenerator[WaitingWorker]:
    """A worker that the store knows. Raises Skipped where a store has no direct hand-off."""
    made = WaitingWorker(h, store or h.store, worker)
    try:
        await made.warm_up()
        yield made
    finally:
        await made.close()


def enqueue_elsewhere(h: Harness, *batches: Sequence[NewJob]) -> None:
    """Enqueue, call by call, while this event loop is blocked: nothing that is sent to it arrives yet."""
    failures: list[BaseException] = []

    async def enqueue() -> None:
        store = await open_store(h.url)
        try:
            for batch in batches:
                for answer in await store.enqueue(batch):
                    expect(isinstance(answer, Queued), f"an enqueue answered {answer!r}")
        finally:
            await store.close()

    def run() -> None:
        try:
            asyncio.run(enqueue())
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
