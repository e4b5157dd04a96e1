"""Dead letters to work with."""

from collections import Counter

from holdfast.core.job import AttemptError, ClaimRequest, Envelope, Finish, JobKey, NewJob
from tests.log import all_events
from tests.pipeline.traffic import QUEUES, TENANTS


async def make_dead(store, count=40):
    """`count` jobs that have failed, of two kinds of errors; some others wait and have completed."""
    keys = [JobKey(TENANTS[n % 2], QUEUES[n % 2], f"dead-{n}") for n in range(count)]
    await store.enqueue([
        NewJob(key, Envelope(f"type{n % 3}", b"{}", max_attempts=1)) for n, key in enumerate(keys)
    ])  # fmt: skip
    await fail_waiting(store)
    others = [JobKey(TENANTS[0], QUEUES[0], f"fine-{n}") for n in range(5)]
    await store.enqueue([NewJob(key, Envelope("fine", b"{}")) for key in others])
    return keys


async def fail_waiting(store):
    """Claim all that waits and fail it for good."""
    while claimed := (await store.claim(ClaimRequest(None, QUEUES, 100, 60_000, "failing", 0.5))).jobs:
        await store.finish([
            Finish(job.key, job.token, "fail", None, AttemptError(_error(job.id), f"no luck with {job.id}"))
            for job in claimed
        ])  # fmt: skip


def _error(id_):
    return "ValueError" if id_.endswith(("0", "2", "4", "6", "8")) else "KeyError"


async def replays(store):
    """How often each job was replayed, by the log."""
    return Counter(event.job_id for event in await all_events(store) if event.kind == "replayed")
