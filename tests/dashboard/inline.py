"""A dashboard on a store whose clock and workers the test moves."""

from contextlib import asynccontextmanager

from holdfast.core.job import AttemptError, ClaimRequest, Finish
from holdfast.dashboard import Dashboard, OnLoopback
from holdfast.testing import inline_queue
from tests.dashboard.support import Site


@asynccontextmanager
async def inline(access=None):
    async with inline_queue(tenant="acme") as queue:
        dashboard = Dashboard(queue.store, OnLoopback() if access is None else access(queue.store))
        async with dashboard.lifespan():
            yield Site(dashboard, queue.store), queue


async def fail(queue, name):
    """Claim a job of a queue, and end it for good."""
    (held,) = (await queue.store.claim(ClaimRequest("acme", (name,), 1, 30_000, "w"))).jobs
    error = AttemptError("Gone", "the <b>disk</b> is full")
    await queue.store.finish([Finish(held.key, held.token, "fail", error=error)])
    return held
