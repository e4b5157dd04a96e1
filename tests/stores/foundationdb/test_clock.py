"""The store clock follows versions, but not their jumps. [TIME-1]"""

import pytest

from holdfast.core.job import ClaimRequest, Finish, Finished, JobState
from holdfast.stores.foundationdb import clock
from holdfast.testing.fdb import FORCED_RECOVERY_VERSIONS, RECOVERY_VERSIONS
from tests.stores.load import new

REQUEST = ClaimRequest("t", ("q",), 10, 30_000, "w")
CLOSE_MS = 20
IDLE_MS = 2_000
"""How far the versions of an idle cluster lag."""


async def pass_time(database, machine, ms, store=None):
    """Let time pass, and look at the store from time to time."""
    for _ in range(0, ms, 1_000):
        database.advance(1)
        machine.advance(1_000)
        if store is not None:
            await store.now()


@pytest.mark.parametrize("versions", [RECOVERY_VERSIONS, FORCED_RECOVERY_VERSIONS])
@pytest.mark.parametrize("who", ["the one that leased", "one that saw nothing before"])
async def test_a_recovery_ends_no_lease(cluster, machine, versions, who):
    """Versions jump by 100 s, after a forced recovery by a week. The lease of 30 s goes on."""
    database = cluster(frozen=True)
    store = await database.handle()
    await store.enqueue([new("job", tenant="t", queue="q")])
    (job,) = (await store.claim(REQUEST)).jobs
    await pass_time(database, machine, 10_000, store)
    before = await store.now()
    database.recover(versions)
    database.advance(1)
    machine.advance(1_000)
    first = store if who == "the one that leased" else await database.handle()
    assert before <= await first.now() <= before + 1_000 + IDLE_MS
    assert (await first.reap(10, 0.0)).jobs == []
    assert await store.finish([Finish(job.key, job.token, "complete")]) == [Finished(JobState.COMPLETED)]


async def test_a_lease_ends_in_time_although_no_process_looked(cluster, machine):
    """A minute in which no process used the store is no jump of versions."""
    database = cluster(frozen=True)
    store = await database.handle()
    await store.enqueue([new("job", tenant="t", queue="q")])
    await store.claim(REQUEST)
    await pass_time(database, machine, 60_000)
    assert len((await store.reap(10, 0.0)).jobs) == 1


async def test_the_clock_of_a_store_made_on_an_idle_cluster_is_not_ahead(cluster, machine):
    """The first version that is read lags, and the next commit would jump."""
    database = cluster(frozen=True)
    database.advance(IDLE_MS / 1000 - 0.1)
    machine.advance(IDLE_MS - 100)
    store = await database.handle()
    await store._transactions.tick()
    assert abs(await store.now() - machine.wall) < CLOSE_MS


async def test_a_job_on_an_idle_cluster_is_claimed_when_it_is_due(cluster, machine):
    """Its read version is up to two seconds old: a claim commits something to learn the time."""
    database = cluster(frozen=True)
    store = await database.handle()
    await pass_time(database, machine, 4_000, store)
    await store.enqueue([new("job", tenant="t", queue="q", delay_ms=1_000)])
    first = await store.claim(REQUEST)
    assert first.jobs == []
    database.advance(1.001)
    machine.advance(1_001)
    assert [job.id for job in (await store.claim(REQUEST)).jobs] == ["job"]


async def test_a_wrong_clock_moves_the_store_clock_by_five_milliseconds_a_second_at_most(cluster, machine):
    database = cluster(frozen=True)
    store = await database.handle()
    await pass_time(database, machine, 10_000, store)
    before, wall = await store.now(), machine.wall
    machine.wall += 3_600_000
    await pass_time(database, machine, 100_000, store)
    gained = await store.now() - before - (machine.wall - 3_600_000 - wall)
    assert 300 <= gained <= 500 + CLOSE_MS


async def test_one_wrong_clock_among_three_moves_nothing(cluster, machine, monkeypatch):
    database = cluster(frozen=True)
    stores = [await database.handle() for _ in range(3)]
    start, wall = await stores[0].now(), machine.wall
    for number in range(120):
        machine.advance(1_000)
        database.advance(1)
        monkeypatch.setattr(clock, "_ME", f"process {number % 3}")
        off = 3_600_000 if number % 3 == 0 and number > 30 else 0
        monkeypatch.setattr(clock, "wall_ms", lambda off=off: machine.wall + off)
        # Each of them is the one that renews the anchor now and then.
        await stores[number % 3]._transactions.tick()
    assert abs(await stores[1].now() - start - (machine.wall - wall)) <= 2_000


async def test_the_store_clock_never_runs_back(cluster, machine):
    database = cluster(frozen=True)
    store = await database.handle()
    last = await store.now()
    for number in range(60):
        machine.wall += 900 if number % 2 else 1_400
        machine.steady += 1_000
        database.advance(1)
        now = await store.now()
        assert now >= last
        last = now
