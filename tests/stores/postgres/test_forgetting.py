"""A process forgets its lanes while a change is under way: a statement elsewhere in it has found one stale.

Invariants verified:
- the change goes on with the lanes it began with, as its own statements compare them with the database
- or it is made again from the beginning; it never answers that there is no such job, and never makes a second life of
  an id beside the first
- the same where the lanes of other data were learned in between [TENANT-3]
"""

import pytest

from holdfast.core.job import Cancel, Finish, IdempotencyKey, JobKey, JobState, Queued, Replayed
from holdfast.store import TenantSettings
from holdfast.stores.postgres.connection import AsyncpgSession
from holdfast.stores.postgres.enqueue import add_queue
from holdfast.stores.postgres.errors import StaleCache
from tests.stores.load import new, wish
from tests.stores.postgres.support import claim, judge

KEY = JobKey("acme", "mail", "x")


def wiped(cache):
    """A lane was stale, in the same generation."""
    cache.set_data(cache.data_id, stale=True)


def replaced(cache):
    """Another connection leads to other data, where the numbers are those of other lanes."""
    number = cache.find("acme", "mail").number
    cache.set_data(f"{cache.data_id.split()[0]} another-generation")
    cache.learn(cache.fingerprint(), number, 1, 1023, "mallory", "hers")
    cache.learn(cache.fingerprint(), number + 1, 1, 1023, "acme", "mail")


@pytest.fixture(params=[wiped, replaced])
def forgetting(request, store, monkeypatch):
    """Have the memory forget, once, when the statement of this name has been answered."""
    due = set()

    def watch(ask):
        async def asked(session, name, *args):
            found = await ask(session, name, *args)
            if name in due:
                due.discard(name)
                request.param(store._cache)
            return found

        return asked

    monkeypatch.setattr(AsyncpgSession, "rows", watch(AsyncpgSession.rows))
    monkeypatch.setattr(AsyncpgSession, "value", watch(AsyncpgSession.value))
    yield due.add
    assert due == set(), "the statement was not run"


async def failed(store, **fields):
    await store.enqueue([new("x", max_attempts=1, **fields)])
    (job,) = await claim(store, 1)
    await store.finish([Finish(KEY, job.token, "fail")])


async def lives(asked):
    tables = "(SELECT id FROM holdfast.jobs UNION ALL SELECT id FROM holdfast.done) j"
    return await asked(f"SELECT count(*) FROM {tables} WHERE id = 'x'")


@pytest.mark.parametrize("moment", ["find", "lock_keys", "lock_jobs", "find_locked", "quotas", "find_keys"])
async def test_a_replay_finds_its_job(store, forgetting, moment):
    await store.set_tenant("acme", TenantSettings(None, None, 1000))
    await failed(store, idempotency=IdempotencyKey("k"))
    forgetting(moment)
    assert await store.replay([KEY]) == [Replayed()]
    await judge(store)


@pytest.mark.parametrize(
    "moment", ["find", "try_lock_keys", "find_keys", "take_ids", "quotas", "next_seqs", "move_ids"]
)
async def test_an_enqueue_of_an_ended_id_leaves_one_life(store, asked, forgetting, moment):
    await store.set_tenant("acme", TenantSettings(None, None, 1000))
    await store.enqueue([new("x")])
    await store.cancel([Cancel(KEY)])
    again = new("x", idempotency=IdempotencyKey("k"))
    forgetting(moment)
    assert await store.enqueue([again]) == [Queued("x", JobState.READY)]
    assert await lives(asked) == 1
    await judge(store)


@pytest.mark.parametrize("moment", ["lock_jobs", "find_locked"])
async def test_a_cancel_finds_its_job(store, forgetting, moment):
    await store.enqueue([new("x")])
    forgetting(moment)
    assert await store.cancel([Cancel(KEY)]) == ["canceled"]


async def test_a_reap_ends_the_lease_of_the_right_job(store, forgetting):
    await store.enqueue([new("x")])
    await claim(store, 1)
    await store.shift_clock(120_000)
    forgetting("lock_expired")
    assert (await store.reap(10, 0.5)).jobs == [KEY]


async def test_a_batch_over_two_queues_has_a_lane_for_each_job(store, forgetting):
    await store.enqueue([new("0")])
    forgetting("add_lane")
    items = [new("1"), new("2", queue="new")]
    assert await store.enqueue(items) == [Queued(item.key.id, JobState.READY) for item in items]


async def test_a_claim_looks_in_all_its_queues(store, forgetting):
    await store.enqueue([new("x"), new("y", queue="other")])
    store._cache.set_data(store._cache.data_id, stale=True)
    await store.get([KEY])
    forgetting("find_lanes")
    claimed = await store.claim(wish(9, queues=("mail", "other")))
    assert {job.id for job in claimed.jobs} == {"x", "y"}


async def test_the_number_of_a_queue_is_cached_for_one_generation_of_data(store, asked, forgetting):
    await store.enqueue([new("x")])
    generation = store._cache.generation
    forgetting("find_queue")
    try:
        number = await add_queue(store._client, store._cache, "new")
    except StaleCache:
        number = None
    assert store._cache.queue("new").number == number
    right = await asked("SELECT queue_id FROM holdfast.queues WHERE queue = 'new'")
    assert number == (right if store._cache.generation == generation else None)
