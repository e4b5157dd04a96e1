"""A server that has no memory left takes no new work, and lets the old be finished."""

import pytest

from holdfast import StoreUnavailable
from holdfast.core.job import (
    AttemptError,
    Cancel,
    ClaimRequest,
    Envelope,
    Finish,
    Finished,
    JobKey,
    JobState,
    NewJob,
    Queued,
    Result,
)
from holdfast.opening import open_store


def new(number):
    return NewJob(JobKey("acme", "q", f"job-{number}"), Envelope("t", b"x" * 1000, request_id=f"r{number}"))


def wish(limit):
    return ClaimRequest("acme", ("q",), limit, 30_000, "w")


@pytest.fixture
async def full(durable, prefix):
    """A store with ten jobs waiting, one dead letter and one running job, on a server that is full."""
    url = durable.url(prefix=prefix, test_clock=1)
    store = await open_store(url)
    await store.enqueue([new(number) for number in range(12)])
    dead, running = (await store.claim(wish(2))).jobs
    await store.finish([Finish(dead.key, dead.token, "fail", error=AttemptError("Boom", "it broke"))])
    durable.command("CONFIG", "SET", "maxmemory", "1mb")
    yield store, dead, running, url
    await store.close()


async def test_new_jobs_are_refused_and_not_stored(full):
    store, dead, _, _ = full
    for call in (store.enqueue([new(99), new(100)]), store.replay([dead.key])):
        with pytest.raises(StoreUnavailable, match="out of memory"):
            await call
    assert await store.get([new(99).key, new(100).key]) == [None, None]
    assert (await store.stats("acme", ["q"]))[0].counts[JobState.FAILED] == 1


async def test_existing_jobs_can_be_finished_by_old_and_new_workers(full, durable):
    store, _, running, url = full
    assert await store.finish([Finish(running.key, running.token, "complete", Result(b"null"))]) == [
        Finished(JobState.COMPLETED)
    ]
    other = await open_store(url)
    jobs = (await other.claim(wish(5))).jobs
    assert len(jobs) == 5
    answers = await other.finish([Finish(job.key, job.token, "complete", Result(b"null")) for job in jobs])
    assert answers == [Finished(JobState.COMPLETED)] * 5
    waiting = [job.key for job in (await other.claim(wish(1))).jobs]
    assert await other.cancel([Cancel(waiting[0])]) == ["canceled"]
    await other.shift_clock(2 * 24 * 3600 * 1000)
    assert (await other.prune(100)).jobs == 7
    durable.command("CONFIG", "SET", "maxmemory", "0")
    assert await other.enqueue([new(99)]) == [Queued("job-99", JobState.READY)]
    await other.close()
