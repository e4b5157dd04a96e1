"""A worker that waits at a store with direct hand-off: the jobs it received, and a way to wait for them.

A job that was handed off is leased in the store. So a check that expects no hand-off reads the job's state and does not
wait. A check that expects one waits for it.
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
        """The jobs that were handed off to it, in order."""
        self.times: list[int] = []
        """The store's time of each hand-off."""
        self._h = h
        self._worker = worker
        self._came = asyncio.Event()
        inbox = store.open_inbox(self._take)
        if inbox is None:
            raise Skipped("no direct hand-off in this deployment: `open_inbox` gives None")
        self._inbox: WorkerInbox = inbox

    @property
    def ids(self) -> list[str]:
        """The ids of the jobs that were handed off to it."""
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
        """Claim. If there are fewer jobs than `limit`, the rest may be handed off later, up to `free`."""
        queues = (queue or self._h.queue,) if queue is None or isinstance(queue, str) else tuple(queue)
        whose = self._h.tenant if tenant == "" else tenant
        return (await self._inbox.claim(ClaimRequest(whose, queues, limit, lease_ms, self._worker), free)).jobs

    async def register(
        self, limit: int = 1, *, queue: str | Sequence[str] | None = None, tenant: str | None = ""
    ) -> None:
        """Claim from an empty queue: from then on up to `limit` jobs may be handed off."""
        expect_equal([job.id for job in await self.claim(limit, queue=queue, tenant=tenant)], [], "an idle claim")

    async def received(self, count: int) -> list[Job]:
        """Wait until exactly `count` jobs in total were handed off, and return them."""
        try:
            async with asyncio.timeout(harness.PATIENCE_S):
                while len(self.jobs) < count:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise Broken(f"{len(self.jobs)} of {count} jobs were handed off: {self.ids}") from None
        expect_equal(len(self.jobs), count, "jobs that were handed off")
        return self.jobs

    async def close(self) -> None:
        """Close the inbox."""
        await self._inbox.close()

    async def warm_up(self) -> None:
        """Wait until jobs are handed off to it: the store may need a moment to know this worker."""
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
                raise Broken("a store that has `open_inbox` handed off nothing")
            await asyncio.sleep(_PROBE_S)
        (job,) = await self.received(1)
        self._h.accepted((await self._h.store.finish([Finish(job.key, job.token, "complete")]))[0])
        self.jobs.clear()
        self.times.clear()

    def _take(self, claimed: Claimed, since: float) -> None:
        self.jobs += claimed.jobs
        self.times.append(claimed.now)
        self._came.set()
        expect(since <= time.monotonic(), "a lease begins in the future")


@asynccontextmanager
async def waiting_worker(
    h: Harness, worker: str = "worker-1", store: Store | None = None
) -> AsyncGenerator[WaitingWorker]:
    """A worker that the store knows. Raises Skipped if the store has no direct hand-off."""
    made = WaitingWorker(h, store or h.store, worker)
    try:
        await made.warm_up()
        yield made
    finally:
        await made.close()


def enqueue_elsewhere(h: Harness, *batches: Sequence[NewJob]) -> None:
    """Enqueue each batch while this event loop is blocked, so that no message arrives in it meanwhile."""
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
