"""The upkeep of a store: reaping and pruning. [LEASE-3, KEEP-1]"""

import asyncio
import itertools

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, JobState, NewJob, Result
from holdfast.maintenance import Maintenance, maintain
from holdfast.maintenance.backoff import Pause
from holdfast.maintenance.pruner import prune
from holdfast.maintenance.reaper import reap
from holdfast.opening import open_store
from tests.eventually import eventually

_numbers = itertools.count()


@pytest.fixture
async def store():
    return await open_store(f"memory:maintenance-{next(_numbers)}?test_clock=1")


async def leased(store, count, lease_ms=1000, **envelope):
    keys = [JobKey("acme", "default", str(n)) for n in range(count)]
    await store.enqueue([NewJob(key, Envelope("", b"1", **envelope)) for key in keys])
    return (await store.claim(ClaimRequest("acme", ("default",), count, lease_ms, "w"))).jobs


async def states(store, jobs):
    return {job.state for job in await store.get([job.key for job in jobs]) if job}


async def test_every_one_of_many_expired_leases_is_ended(store):
    jobs = await leased(store, 2500, max_attempts=1)
    await store.shift_clock(2000)
    assert await reap(store) == 5.0
    assert await states(store, jobs) == {JobState.FAILED}


async def test_the_reaper_runs_again_when_the_next_lease_expires(store):
    await leased(store, 1, lease_ms=3000)
    assert 2.5 < await reap(store) <= 3.0
    await leased(store, 1, lease_ms=60_000)
    assert await reap(store) <= 5.0


async def test_a_lease_is_reaped_as_soon_as_it_expires(store):
    jobs = await leased(store, 1, lease_ms=1000, max_attempts=1)
    task = asyncio.create_task(Maintenance(store).run())
    await eventually(lambda: states(store, jobs), lambda found: found == {JobState.FAILED}, patience_s=60)
    task.cancel()
    await asyncio.wait([task])


class Blobs:
    def __init__(self):
        self.deleted = []

    async def delete(self, names):
        [name] = names
        if name == "blob-3":
            raise StoreUnavailable("gone")
        self.deleted.append(name)


async def test_the_blobs_of_forgotten_results_are_deleted(store):
    jobs = await leased(store, 5, lease_ms=60_000)
    await store.finish([Finish(job.key, job.token, "complete", Result(b"", "json", f"blob-{job.id}")) for job in jobs])
    blobs = Blobs()
    await prune(store, blobs)
    assert blobs.deleted == []
    await store.shift_clock(2 * 3600 * 1000)
    await prune(store, blobs)
    assert sorted(blobs.deleted) == ["blob-0", "blob-1", "blob-2", "blob-4"], "one could not be deleted, and is logged"
    assert await states(store, jobs) == set()


async def test_many_jobs_are_forgotten_in_batches(store):
    jobs = await leased(store, 2500, lease_ms=60_000)
    await store.finish([Finish(job.key, job.token, "complete", Result(b"1")) for job in jobs])
    await store.shift_clock(2 * 3600 * 1000)
    assert 6 <= await prune(store) <= 10
    assert await states(store, jobs) == set()


async def test_maintenance_survives_errors_of_its_store_and_logs_them(store):
    real, errors, reaped = store.reap, [], asyncio.Event()

    async def reap(limit, random):
        if len(errors) < 3:
            raise StoreUnavailable("gone")
        reaped.set()
        return await real(limit, random)

    store.reap = reap
    stop = asyncio.Event()
    task = asyncio.create_task(maintain(store, stop=stop, on_error=errors.append))
    await asyncio.wait_for(reaped.wait(), 15)
    stop.set()
    await asyncio.wait_for(task, 15)
    assert [type(error) for error in errors] == [StoreUnavailable] * 3


async def test_maintenance_opens_and_closes_a_store_given_by_url():
    stop = asyncio.Event()
    task = asyncio.create_task(maintain("memory:by-url", stop=stop))
    await asyncio.sleep(0.05)
    assert not task.done()
    stop.set()
    await asyncio.wait_for(task, 15)


def test_pauses_grow_to_the_maximum_and_start_again():
    pause = Pause()
    pauses = [pause.next_s() for _ in range(12)]
    assert 0.05 <= pauses[0] <= 0.1
    assert all(2.5 <= one <= 5 for one in pauses[-3:])
    pause.reset()
    assert pause.next_s() <= 0.1
