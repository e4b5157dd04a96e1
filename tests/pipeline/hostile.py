"""Jobs of tenants with hostile names."""

import random

from holdfast.core.job import AttemptError, ClaimRequest, Envelope, Finish, JobKey, NewJob

# Names that are allowed, and as bad as such names can be.
TENANTS = ("acme", "ünïcödé-家族", "a" * 100)
QUEUES = ("mail", "video-" + "x" * 80)
HOSTILE = "<img src=https://example.com/x onerror=alert(1)><script>alert(2)</script>"
JOBS = 90


async def make_hostile(store):
    """Some jobs that complete, retry and fail, with errors that try to break out of the page."""
    chance = random.Random(7)
    for n in range(JOBS):
        key = JobKey(TENANTS[n % 3], QUEUES[n % 2], f"job-{n}")
        await store.enqueue([NewJob(key, Envelope("resize<b>", b"{}", max_attempts=2))])
        claimed = await store.claim(ClaimRequest(None, QUEUES, 2, 60_000, "w1", chance.random()))
        await store.finish([_finish(job, n, chance) for job in claimed.jobs])


def _finish(job, n, chance):
    outcome = "complete" if n % 4 else "retry" if n % 8 else "fail"
    error = None if outcome == "complete" else AttemptError("Boom</style><script>", f"{HOSTILE} {n} " + "y" * 400)
    return Finish(job.key, job.token, outcome, None, error, delay_ms=0, random=chance.random())
