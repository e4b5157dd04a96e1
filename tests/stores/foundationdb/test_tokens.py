"""No two leases have the same token, whatever their handles, and those of one job grow. [LEASE-5]"""

import asyncio
from random import Random

import pytest

from holdfast.core.job import Finish, Finished, JobState, Purge
from holdfast.stores.foundationdb import numbers
from holdfast.stores.foundationdb.database import CLUSTER_VERSION_CHANGED, COMMIT_UNKNOWN_RESULT
from holdfast.testing.fdb import SOME
from tests.log import all_events
from tests.stores.load import key, new, wish


async def lease(store, count=1, **options):
    return (await store.claim(wish(count, **options))).jobs


async def lease_one(store):
    (job,) = await lease(store)
    return job.token


async def give_back(store, jobs):
    answers = await store.finish([Finish(job.key, job.token, "release") for job in jobs])
    assert answers == [Finished(JobState.READY)] * len(jobs)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(numbers, "BLOCK", 3)


@pytest.mark.parametrize("seed", range(20))
async def test_handles_on_a_bad_day_never_give_one_token_twice(cluster, small_blocks, seed):
    """Also not for claims that run again, and claims of more jobs than a block has tokens."""
    database = cluster(faults=SOME, seed=seed)
    chance = Random(seed)
    stores = [await database.handle(test_clock=1) for _ in range(3)]
    await stores[0].enqueue([new(f"job-{n}", max_attempts=1000) for n in range(40)])

    async def work(store):
        for _ in range(15):
            await give_back(store, await lease(store, chance.randint(1, 6)))

    await asyncio.gather(*(work(store) for store in stores for _ in range(2)))
    claimed = [event for event in await all_events(stores[0]) if event.kind == "claimed"]
    assert len({event.token for event in claimed}) == len(claimed) > 100
    for n in range(40):
        tokens = [event.token for event in claimed if event.job_id == f"job-{n}"]
        assert tokens == sorted(tokens)


async def test_claimers_that_take_blocks_do_not_stop_each_other(cluster, small_blocks):
    database = cluster()
    stores = [await database.handle() for _ in range(4)]
    for n, store in enumerate(stores):
        await store.enqueue([new(f"{n}-{m}", tenant=f"t{n}") for m in range(20)])

    async def work(store, tenant):
        while await lease(store, tenant=tenant):
            pass

    await asyncio.gather(*(work(store, f"t{n}") for n, store in enumerate(stores)))
    assert sum(store._transactions.conflicts for store in stores) == 0


async def test_a_job_that_wanders_gets_larger_tokens_from_handles_with_older_blocks(cluster):
    database = cluster()
    stores = [await database.handle() for _ in range(3)]
    await stores[0].enqueue([new("a")])
    tokens = []
    for store in [*stores, *stores, *reversed(stores)]:
        jobs = await lease(store)
        tokens.append(jobs[0].token)
        await give_back(store, jobs)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("way", ["purged", "replaced", "forgotten"])
async def test_a_new_life_of_an_id_gets_a_larger_token_from_any_handle(cluster, way):
    database = cluster()
    older, newer = [await database.handle(test_clock=1) for _ in range(2)]
    await older.enqueue([new("first")])
    assert await lease_one(older)
    await older.enqueue([new("job", result_ttl_ms=1_000)])
    (job,) = await lease(newer)
    await newer.finish([Finish(job.key, job.token, "complete")])
    if way == "purged":
        assert await newer.purge([Purge(key("job"))]) == ["purged"]
    else:
        await newer.shift_clock(2_000)
    if way == "forgotten":
        await newer.prune(10)
    await older.enqueue([new("job")])
    assert await lease_one(older) > job.token


@pytest.mark.parametrize("applied", [True, False])
async def test_a_block_with_an_unknown_outcome_is_left(cluster, applied):
    database = cluster(frozen=True)
    one, two = [await database.handle() for _ in range(2)]
    await one.enqueue([new(f"job-{n}") for n in range(4)])
    tokens = []
    for code in (COMMIT_UNKNOWN_RESULT, CLUSTER_VERSION_CHANGED):
        for store in (one, two):
            store._transactions.tokens = numbers.LeaseTokens(store._transactions.take_block)
            database.fail_commit(code, applied=applied)
            tokens.append(await lease_one(store))
    assert len(set(tokens)) == 4
    counted = await counter(one)
    assert counted > max(tokens)
    assert counted - min(tokens) == numbers.BLOCK * (7 if applied else 4)


async def test_a_counter_that_went_back_gives_no_token_again(cluster):
    """A backup was restored while processes went on with their blocks."""
    database = cluster()
    one, two = [await database.handle() for _ in range(2)]
    await one.enqueue([new(f"job-{n}") for n in range(100)])
    before = await counter(one)
    tokens = [await lease_one(one), await lease_one(two)]
    database.advance(1)
    await set_counter(one, before)
    third = await database.handle()
    tokens += [await lease_one(store) for store in (third, one, two) * 5]
    assert len(set(tokens)) == len(tokens)


async def test_an_idle_claim_takes_no_block(cluster):
    database = cluster()
    store = await database.handle()
    assert await lease(store) == []
    assert await counter(store) == 0


@pytest.mark.parametrize("version", [0, 1_000_000, 1 << 49, 1 << 55])
def test_blocks_follow_versions_and_stay_small_when_these_do_not(version):
    block = numbers.block(0, version, 1, 0)
    assert block.start == min(8 * version, 1 << 52) or (version, block.start) == (0, 1)
    following = numbers.block(block.stop, version, 20_000, 0)
    assert block.stop <= following.start < following.stop < 2**53
    assert len(following) == 20_000
    assert numbers.block(0, version, 1, block.stop).start > block.stop


async def counter(store):
    transactions = store._transactions
    raw = await transactions.database.transaction().get(transactions.keys.meta_of("tokens"))
    return int.from_bytes(raw or b"", "little")


async def set_counter(store, value):
    transactions = store._transactions
    transaction = transactions.database.transaction()
    transaction.set(transactions.keys.meta_of("tokens"), value.to_bytes(8, "little"))
    await transaction.commit()
