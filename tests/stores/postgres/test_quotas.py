"""TENANT-5: a quota that is far away costs no count of the backlog, and is none the less kept."""

import pytest

from holdfast.core.errors import QuotaExceeded
from holdfast.core.job import Cancel, Finish, NewJob, Queued, Replayed
from holdfast.store import TenantSettings
from holdfast.stores.postgres import quotas
from holdfast.stores.postgres.connection import AsyncpgSession
from tests.stores.postgres.support import claim, fill, new, opened

WAITING = 1500


@pytest.fixture
def counts(monkeypatch):
    """The counts of a backlog that are made."""
    made = []

    def noting(run):
        async def noted(self, name, *args):
            if name in ("lane_waiting", "tenant_waiting"):
                made.append(name)
            return await run(self, name, *args)

        return noted

    for name in ("rows", "value"):
        monkeypatch.setattr(AsyncpgSession, name, noting(getattr(AsyncpgSession, name)))
    return made


@pytest.mark.parametrize("queue", ["mail", None])
async def test_a_backlog_far_from_its_quota_is_counted_once(postgres, database, counts, queue):
    async with opened(postgres.url(database)) as store:
        await fill(store, WAITING)
        await store.set_tenant("acme", TenantSettings(queue, None, 10 * WAITING))
        for n in range(20):
            assert isinstance((await store.enqueue([new(f"one-{n}")]))[0], Queued)
        await fill(store, 100, start=WAITING)
        assert len(counts) == 1


@pytest.mark.parametrize("queue", ["mail", None])
async def test_a_quota_is_reached_exactly(postgres, database, queue):
    """Whatever others enqueue, retry, release and replay meanwhile, and however it was found before."""
    room = 40
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        # As two processes would: neither knows what the other has counted.
        other._cache = type(store._cache)()
        other._cache.set_data(store._cache.data_id)
        await fill(store, WAITING)
        jobs = await claim(store, 20)
        await store.finish([Finish(job.key, job.token, "fail") for job in jobs[:10]])
        await store.set_tenant("acme", TenantSettings(queue, None, WAITING + room))
        assert isinstance((await store.enqueue([new("first")]))[0], Queued)
        # Of 20 that were taken away ten come back one way, ten the other; then there is room for 39.
        await other.finish([Finish(job.key, job.token, "release") for job in jobs[10:]])
        assert {type(answer) for answer in await other.replay([job.key for job in jobs[:10]])} == {Replayed}
        for n in range(room - 1):
            handle = (store, other)[n % 3 == 0]
            assert isinstance((await handle.enqueue([new(f"next-{n}")]))[0], Queued), n
        for handle in (store, other):
            (refused,) = await handle.enqueue([new("over")])
            assert isinstance(refused, QuotaExceeded)
            assert (refused.waiting, refused.limit) == (WAITING + room, WAITING + room)
        await store.cancel([Cancel(new("first").key)])
        answers = await store.enqueue([new("a"), new("b")])
        assert [type(answer) for answer in answers] == [Queued, QuotaExceeded]


async def test_a_count_inside_a_callers_transaction_is_not_cached(postgres, database):
    """It may be seen as it was when the transaction began."""
    async with opened(postgres.url(database)) as store:
        await fill(store, WAITING)
        await store.set_tenant("acme", TenantSettings("mail", None, WAITING + 600))
        async with store.own_transaction() as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await connection.fetchval("SELECT count(*) FROM holdfast.jobs")
            await store.enqueue([new(f"before-{n}") for n in range(500)])
            quotas._counted.clear()
            assert isinstance((await store.enqueue([new("joined")], connection=connection))[0], Queued)
        answers = await store.enqueue([NewJob(new(f"after-{n}").key, new("x").envelope) for n in range(100)])
        assert [type(answer) for answer in answers] == [Queued] * 99 + [QuotaExceeded]


async def test_an_interrupted_count_is_not_cached(postgres, database, monkeypatch):
    monkeypatch.setattr(quotas, "MARGIN", 10)
    async with opened(postgres.url(database)) as store:
        await fill(store, WAITING)
        for limit in (WAITING - 400, WAITING - 200):
            await store.set_tenant("acme", TenantSettings("mail", None, limit))
            (refused,) = await store.enqueue([new("over")])
            assert isinstance(refused, QuotaExceeded)
            assert (refused.waiting, refused.limit) == (limit + 10, limit)


async def test_jobs_in_flight_during_a_count_use_the_quota_when_they_commit(postgres, database, monkeypatch):
    monkeypatch.setattr(quotas, "MIN_REMEMBERED", 1)
    async with opened(postgres.url(database)) as store:
        await store.set_tenant("acme", TenantSettings("mail", None, 30))
        await fill(store, 9)
        async with store.own_transaction() as connection:
            await store.enqueue([new(f"joined-{n}") for n in range(19)], connection=connection)
            await store.enqueue([new("beside")])
        answers = await store.enqueue([new(f"after-{n}") for n in range(5)])
        assert [type(answer) for answer in answers] == [Queued] + [QuotaExceeded] * 4
