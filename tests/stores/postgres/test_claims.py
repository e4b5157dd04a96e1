"""What a claim makes of what it hears while it is under way, and of what others have locked.

Invariants verified:
- a wake-up is never lost: a hint leads to a read, also during a claim [CLAIM-3]
- visible jobs that another transaction has locked are read again soon, not at the next fallback poll [CLAIM-3]
- an expired lease that is locked is not asked for again and again
- a tenant with jobs that are due later keeps no other from its turns [TENANT-4]
"""

import asyncio
import random
import threading
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import asyncpg
import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import ClaimRequest, Envelope, Finished, JobKey, JobState, NewJob
from holdfast.store import Hint
from holdfast.stores.postgres import claims, lanes
from holdfast.stores.postgres.claims import HELD_MS, LOCKED_MS
from holdfast.stores.postgres.turns import MIN_LANES
from tests.eventually import eventually
from tests.stores.postgres.support import apart, claim, complete, fill, new, opened

HOUR_MS = int(timedelta(hours=1).total_seconds() * 1000)


def wish(limit, tenant=None, lease_ms=60_000):
    return ClaimRequest(tenant, ("mail",), limit, lease_ms, "worker")


def later(id_, tenant="acme"):
    return NewJob(JobKey(tenant, "mail", id_), Envelope("send", b"{}", request_id=f"r-{id_}"), delay_ms=HOUR_MS)


@asynccontextmanager
async def locked(url):
    """All jobs, locked by a transaction that changes nothing."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM holdfast.jobs FOR UPDATE")
            yield
    finally:
        await connection.close()


@pytest.fixture
def always_looks(monkeypatch):
    monkeypatch.setattr(lanes, "FULL_SCAN_S", 0.0)


@pytest.fixture
def never_looks(monkeypatch):
    """After the first time."""
    monkeypatch.setattr(lanes, "FULL_SCAN_S", 3600.0)


def meanwhile(store, name, act):
    """Do something once, after the server has answered this statement and before the answer is read."""
    ask = store._client.rows

    async def rows(asked, *args, **options):
        found = await ask(asked, *args, **options)
        if asked == name:
            store._client.rows = ask
            await act()
        return found

    store._client.rows = rows


async def test_a_job_enqueued_during_a_claim_is_found_by_the_next(postgres, database):
    """What the claim found out was true before the job came: it must not be taken for what is true now."""
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("a")])
        assert [job.id for job in await claim(store, 1, tenant=None)] == ["a"]
        meanwhile(store, "claim", lambda: store.enqueue([new("b")]))
        assert await claim(store, 5, tenant=None) == []
        assert [job.id for job in await claim(store, 5, tenant=None)] == ["b"]


async def test_a_tenant_notified_during_a_claims_search_is_found_by_the_next(postgres, database, never_looks):
    url = postgres.url(database)
    async with apart(url) as other, opened(url) as store:
        await other.enqueue([later("a")])

        async def comes():
            await other.enqueue([new("b", tenant="late")])
            store._cache.note_hint(Hint.READY, "late", "mail")

        meanwhile(store, "lanes_with_work", comes)
        assert await claim(store, 5, tenant=None) == []
        assert [job.id for job in await claim(store, 5, tenant=None)] == ["b"]


async def test_a_visible_job_is_found_when_only_a_later_one_is_cached(postgres, database, always_looks):
    """Without a notification: this process does not listen."""
    url = postgres.url(database)
    async with apart(url) as other, opened(url) as store:
        await other.enqueue([later("later")])
        assert await claim(store, 5, tenant=None) == []
        await other.enqueue([new("now")])
        assert [job.id for job in await claim(store, 5, tenant=None)] == ["now"]


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_locked_jobs_are_scanned_again_soon(postgres, database, tenant):
    async with opened(postgres.url(database)) as store:
        await fill(store, 3)
        async with locked(postgres.url(database)):
            answer = await store.claim(wish(5, tenant))
            assert (answer.jobs, answer.next_at) == ([], answer.now + LOCKED_MS)
        assert len(await eventually(lambda: claim(store, 5, tenant))) == 3
        assert (await store.claim(wish(5, tenant))).next_at > answer.now + LOCKED_MS


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_locked_jobs_are_scanned_again_after_a_claim_took_others(postgres, database, tenant):
    async with opened(postgres.url(database)) as store:
        await fill(store, 3)
        async with locked(postgres.url(database)):
            await fill(store, 2, start=3)
            answer = await store.claim(wish(5, tenant))
            assert [job.id for job in answer.jobs] == ["job-0000003", "job-0000004"]
            assert answer.next_at == answer.now + LOCKED_MS


@pytest.fixture
def looks_often(monkeypatch):
    monkeypatch.setattr(lanes, "FULL_SCAN_S", 0.3)


async def tick(store):
    """Advance the store's clock."""
    then = await store.now()
    await eventually(store.now, lambda now: now > then)


async def wait_for_one(store, tenant):
    """Claim when the claim before said so, as a worker without notifications does."""
    async with asyncio.timeout(10):
        while True:
            answer = await store.claim(wish(5, tenant))
            if answer.jobs:
                return [job.id for job in answer.jobs]
            await asyncio.sleep((answer.next_at - answer.now) / 1000)


@pytest.mark.parametrize("limit", [1, 5])
@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_locked_job_is_found_after_younger_ones_were_claimed(postgres, database, looks_often, tenant, limit):
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        assert len(await claim(store, 5, tenant)) == 1
        await store.enqueue([new("old")])
        async with locked(postgres.url(database)):
            await tick(store)
            await store.enqueue([new("young")])
            assert [job.id for job in await claim(store, limit, tenant)] == ["young"]
        assert await wait_for_one(store, tenant) == ["old"]


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_job_of_a_long_transaction_is_found(postgres, database, monkeypatch, looks_often, tenant):
    monkeypatch.setattr(lanes, "LATE_COMMIT_MS", 0)
    url = postgres.url(database)
    async with opened(url) as store:
        connection = await asyncpg.connect(url)
        heard = asyncio.Event()
        stop = store.listen(lambda _: heard.set(), {Hint.READY})
        async with asyncio.timeout(10):
            await heard.wait()
        async with connection.transaction():
            await store.enqueue([new("late")], connection=connection)
            await tick(store)
            await store.enqueue([new("young")])
            assert [job.id for job in await claim(store, 5, tenant)] == ["young"]
            heard.clear()
        async with asyncio.timeout(10):
            await heard.wait()
        assert await wait_for_one(store, tenant) == ["late"]
        stop()
        await connection.close()


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_paused_queue_is_not_scanned_as_a_locked_one(postgres, database, tenant):
    async with opened(postgres.url(database)) as store:
        await fill(store, 3)
        await store.pause("acme", "mail", paused=True)
        store._cache.note_hint(Hint.READY, "acme", "mail")
        answer = await store.claim(wish(5, tenant))
        assert (answer.jobs, answer.next_at) == ([], None)


async def test_a_locked_expired_lease_is_not_claimed_in_a_loop(postgres, database, never_looks):
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("a")])
        (job,) = (await store.claim(wish(1, lease_ms=1))).jobs
        await eventually(store.now, lambda now: now > job.deadline)
        reaps, reap = [], store._claims._reap

        async def counted(*args):
            reaps.append(args)
            return await reap(*args)

        store._claims._reap = counted
        async with locked(postgres.url(database)):
            store._cache.reap_scanned_at = lanes.NEVER
            for _ in range(5):
                claimed = await store.claim(wish(1))
                assert claimed.jobs == []
                assert claimed.next_at == claimed.now + HELD_MS
            assert len(reaps) == 1
        store._cache.reap_scanned_at = lanes.NEVER
        (again,) = (await store.claim(wish(1))).jobs
        assert again.attempts == 2


async def test_hundreds_of_tenants_with_later_jobs_delay_no_turn(postgres, database, never_looks):
    """They are first by name, and were notified of; each has a backlog, so that no claim is short."""
    url = postgres.url(database)
    async with apart(url) as other, opened(url) as store:
        tenants = [f"later-{n:03}" for n in range(500)]
        await other.enqueue([later("a", tenant) for tenant in tenants])
        await fill(other, 100, tenant="big")
        assert [job.tenant for job in await claim(store, 5, tenant=None)] == ["big"] * 5
        await other.enqueue([new("a", tenant="newcomer")])
        for tenant in [*tenants, "newcomer"]:
            store._cache.note_hint(Hint.READY, tenant, "mail")
        store._cache.queue("mail").scanned_at = lanes.NEVER
        served = [job.tenant for _ in range(4) for job in await claim(store, 5, tenant=None)]
        assert served.count("newcomer") == 1
        assert len(served) == 20


async def test_a_claim_reads_only_the_new_tenants_of_its_queues(postgres, database, never_looks):
    """All are thought to have work: those that are not read enter, too, and have their turns in order."""
    async with opened(postgres.url(database)) as store:
        tenants = [f"t-{n:03}" for n in range(150)]
        await store.enqueue([new(id_, tenant) for id_ in ("a", "b") for tenant in tenants])
        served = [job.tenant for job in await claim(store, 20, tenant=None)]
        sizes, ask = [], store._client.rows

        async def counted(name, *args, **options):
            if name == "claim":
                sizes.append(args[0].count(",") + 1)
            return await ask(name, *args, **options)

        await store.enqueue([new("a", f"u-{n:03}") for n in range(150)])
        await tick(store)
        assert await claim(store, 1, tenant=None, queue="other") == []  # By now it is known that they are visible.
        store._client.rows = counted
        while len(served) < 450:
            served += [job.tenant for job in await claim(store, 20, tenant=None)]
        assert served[:150] == tenants
        assert sorted(served[150:300]) == sorted(f"u-{n:03}" for n in range(150))
        assert served[300:] == tenants
        assert sizes[0] <= 20 + MIN_LANES + 1


def test_a_lane_is_not_added_during_an_iteration():
    cache = lanes.LaneCache()
    thread = threading.Thread(target=cache.queue, args=("mail",))
    with cache.lock:
        thread.start()
        thread.join(0.1)
        assert cache.queues == {}
    thread.join()
    assert list(cache.queues) == ["mail"]


@pytest.mark.parametrize("seed", range(20))
def test_the_indexes_of_a_queue_agree_with_its_lanes(seed):
    chance = random.Random(seed)
    cache = lanes.LaneCache()
    known = [cache.learn(cache.fingerprint(), n, 1, 1, f"t{n}", "mail") for n in range(8)]
    queue_lanes = cache.queue("mail")
    for _ in range(200):
        lane, at = chance.choice(known), chance.randrange(5)
        if not lane.in_turns:
            lane.enter(at)
        elif at:
            lane.move(lane.time + at)
        else:
            lane.leave()
        lane = chance.choice(known)
        acts = [partial(lane.pause, paused=True), partial(lane.pause, paused=False), partial(lane.look_at, None)]
        chance.choice([*acts, lane.hinted, partial(lane.arrive, at), partial(lane.look_at, at)])()
        assert list(queue_lanes.turns) == sorted((lane.time, lane.tenant) for lane in known if lane.in_turns)
        waiting = [lane for lane in known if not lane.in_turns and lane.next_at is not None]
        assert list(queue_lanes.due) == sorted((lane.next_at, lane.tenant) for lane in waiting)


@pytest.mark.parametrize("statement", ["claim", "next_deadline"])
async def test_a_claim_keeps_what_it_got_when_a_later_statement_fails(postgres, database, monkeypatch, statement):
    """The server went away in between. What was granted would lose its attempt."""
    monkeypatch.setattr(claims, "MAX_BATCH", 1)
    async with opened(postgres.url(database)) as store:
        await fill(store, 1 if statement == "next_deadline" else 2)
        client, ran = store._client, []

        def failing(ask):
            async def asked(name, *args, **options):
                ran.append(name)
                if name == statement and ran.count("claim") > 1:
                    raise StoreUnavailable("away")
                store._cache.next_deadline = 0  # So that it has to be asked for.
                return await ask(name, *args, **options)

            return asked

        with monkeypatch.context() as patch:
            patch.setattr(client, "rows", failing(client.rows))
            patch.setattr(client, "value", failing(client.value))
            found = await store.claim(ClaimRequest("acme", ("mail",), 5, 60_000, "worker"))
        assert ran[-1] == statement
        assert [job.id for job in found.jobs] == ["job-0000000"]
        assert found.next_at == found.now + 1
        assert store._cache.leased([found.jobs[0].token]) == [found.jobs[0].seq]
        assert await complete(store, found.jobs) == [Finished(JobState.COMPLETED)]


async def test_a_claim_without_jobs_raises_the_error(postgres, database, monkeypatch):
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)

        async def away(*_, **__):
            raise StoreUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(store._client, "rows", away)
            with pytest.raises(StoreUnavailable, match="away"):
                await claim(store, 1)
