"""The line is cut after the request and before the reply: nobody knows whether it was done. It was.

Invariants verified:
- an enqueue that is repeated, by the store or by the caller with the same request, is queued once and says so [ENQ-8]
- an acknowledgement that is repeated gets the first answer again, with no second event [LEASE-1]
- of every other call too: done once, one event, whoever repeats it
- a claim is never repeated: its lost reply costs one lease, never a job [ENQ-8, LEASE-3]
- under load with cuts at random nothing is lost and nothing doubled
"""

import asyncio
import contextlib

import pytest

from holdfast import Queue
from holdfast.core.errors import NotReplayable, StoreBusy, StoreUnavailable
from holdfast.core.job import (
    AttemptError,
    Cancel,
    Extend,
    Extended,
    Finish,
    Finished,
    IdempotencyKey,
    JobState,
    Progress,
    Purge,
    Queued,
    Replayed,
    Report,
    Reported,
    Result,
    SetResultTtl,
)
from holdfast.store import TenantSettings, open_store
from holdfast.stores.redis.keys import shard_of
from holdfast.stores.redis.scripts import SCRIPTS
from holdfast.testing.proxy import Proxy
from holdfast.testing.servers import HOST
from tests.chaos import ledger
from tests.chaos.workers import notes
from tests.eventually import eventually
from tests.stores.load import (
    LEASE_MS,
    claim_one,
    complete,
    drained,
    end_gently,
    judge,
    key,
    kinds,
    new,
    seeded,
    under_way,
    wish,
)

SCRIPT = b"EVALSHA"


async def known(store):
    """Have the server know all scripts: so that the first reply cut is not just that it does not."""
    await store.enqueue([new("w", queue="warm")])
    job = await claim_one(store, queues=("warm",))
    await store.extend([Extend(job.key, job.token, LEASE_MS)])
    await store.report([Report(job.key, job.token, Progress(0.5))])
    await store.finish([Finish(job.key, job.token, "fail")])
    await store.replay([job.key])
    await store.cancel([Cancel(job.key)])
    await store.set_result_ttl([SetResultTtl(job.key, 1000)])
    await store.purge([Purge(job.key)])
    await store.pause("acme", "warm", paused=False)
    await store.set_tenant("acme", TenantSettings("warm", weight=1.0))
    await store.reap(10, 0.0)
    await store.prune(10)


async def insist(proxy, call):
    """Make a call whose first reply is lost; the caller repeats it if the store does not. The answer, and how often."""
    before = proxy.counts.replies_cut
    proxy.cut_replies(when=SCRIPT)
    times = 0
    while True:
        times += 1
        try:
            answer = await call()
        except StoreUnavailable:
            assert times == 1, "it fails although the line is whole again"
            continue
        assert proxy.counts.replies_cut == before + 1, "no reply was lost"
        return answer, times


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize("count", [1, 300])
async def test_an_enqueue_is_queued_once_and_says_so(proxy, far, store, count, with_key):
    await known(store)
    items = [new(f"{n}", idempotency=IdempotencyKey(f"k{n}") if with_key else None) for n in range(count)]
    answers, _ = await insist(proxy, lambda: far.enqueue(items))
    assert [(type(answer), answer.id) for answer in answers] == [(Queued, f"{n}") for n in range(count)]
    # And again, much later, by a caller who has kept the request.
    assert await store.enqueue(items) == answers
    for item in items[:10]:
        assert await kinds(store, item.key) == ["enqueued"]
    (stats,) = await store.stats("acme", ["mail"])
    assert stats.counts[JobState.READY] == count


async def test_an_enqueue_through_a_queue_needs_no_help(proxy, far_url, store):
    await known(store)
    async with Queue(far_url, tenant="acme") as queue:
        proxy.cut_replies(when=SCRIPT)
        assert (await queue.enqueue({}, id="x")).status == "queued"
        proxy.cut_replies(when=SCRIPT)
        assert [ticket.status for ticket in await queue.enqueue_many([{}] * 50)] == ["queued"] * 50
        assert proxy.counts.replies_cut == 2
    (stats,) = await store.stats("acme", ["default"])
    assert stats.counts[JobState.READY] == 51


OUTCOMES = {
    "complete": (Finish(key("x"), 0, "complete", Result(b"1")), JobState.COMPLETED, "completed"),
    "fail": (Finish(key("x"), 0, "fail", error=AttemptError("Boom", "it broke")), JobState.FAILED, "failed"),
    "retry": (Finish(key("x"), 0, "retry", error=AttemptError("Boom", "it broke")), JobState.RETRYING, "retried"),
    "release": (Finish(key("x"), 0, "release"), JobState.READY, "released"),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_an_acknowledgement_is_accepted_once_and_says_so(proxy, far, store, outcome):
    await known(store)
    finish, state, kind = OUTCOMES[outcome]
    await store.enqueue([new("x")])
    job = await claim_one(store)
    item = Finish(job.key, job.token, outcome, finish.result, finish.error, random=0.5)
    answers, _ = await insist(proxy, lambda: far.finish([item]))
    assert answers == [Finished(state)]
    assert await store.finish([item]) == [Finished(state)]
    assert await kinds(store, job.key) == ["enqueued", "claimed", kind]
    (now,) = await store.get([job.key])
    assert (now.attempts, len(now.errors)) == (0 if outcome == "release" else 1, 1 if finish.error else 0)


async def test_a_lease_is_extended_and_progress_is_reported(proxy, far, store):
    await known(store)
    await store.enqueue([new("x")])
    job = await claim_one(store, lease_ms=5_000)
    (answer,), _ = await insist(proxy, lambda: far.extend([Extend(job.key, job.token, LEASE_MS)]))
    assert isinstance(answer, Extended)
    assert job.deadline < answer.deadline <= await store.now() + LEASE_MS
    (answer,), _ = await insist(proxy, lambda: far.report([Report(job.key, job.token, Progress(0.25, "on"))]))
    assert isinstance(answer, Reported)
    (now,) = await store.get([job.key])
    assert (now.progress, now.token) == (Progress(0.25, "on"), job.token)


@pytest.mark.parametrize("running", [False, True])
async def test_a_cancel_cancels_once(proxy, far, store, running):
    await known(store)
    await store.enqueue([new("x")])
    if running:
        await claim_one(store)
    answers, _ = await insist(proxy, lambda: far.cancel([Cancel(key("x"))]))
    assert answers == ["canceled"]
    assert await kinds(store, key("x")) == ["enqueued", *(["claimed"] if running else []), "canceled"]


async def test_a_replay_replays_once(proxy, far, store):
    await known(store)
    await store.enqueue([new("x")])
    job = await claim_one(store)
    await store.finish([Finish(job.key, job.token, "fail")])
    (answer,), times = await insist(proxy, lambda: far.replay([job.key]))
    # Who repeats it himself may learn that the job is no dead letter any more.
    assert isinstance(answer, Replayed) or (times == 2 and isinstance(answer, NotReplayable))
    assert await kinds(store, job.key) == ["enqueued", "claimed", "failed", "replayed"]
    (now,) = await store.get([job.key])
    assert (now.state, now.attempts, now.replays) == (JobState.READY, 0, 1)


async def test_a_purge_forgets_once_and_a_result_gets_its_time(proxy, far, store):
    await known(store)
    await store.enqueue([new("x"), new("y")])
    x, y = (await store.claim(wish())).jobs
    await store.finish([complete(x), complete(y)])
    (answer,), times = await insist(proxy, lambda: far.purge([Purge(x.key)]))
    assert answer == "purged" or (times == 2 and answer == "not_found")
    assert await kinds(store, x.key) == ["enqueued", "claimed", "completed", "purged"]
    (answer,), _ = await insist(proxy, lambda: far.set_result_ttl([SetResultTtl(y.key, 5000)]))
    assert answer == "updated"
    (now,) = await store.get([y.key])
    assert 0 < now.expires_at - await store.now() <= 5000


async def test_a_pause_and_settings_hold(proxy, far, store):
    await known(store)
    await store.enqueue([new("x")])
    await insist(proxy, lambda: far.pause("acme", "mail", paused=True))
    assert (await store.claim(wish())).jobs == []
    await insist(proxy, lambda: far.pause("acme", "mail", paused=False))
    await insist(proxy, lambda: far.set_tenant("acme", TenantSettings("mail", weight=3.0, max_waiting=7)))
    assert TenantSettings("mail", 3.0, 7) in await store.tenant_settings("acme")
    assert (await claim_one(store)).id == "x"


async def test_reaping_and_pruning_go_on(proxy, far, store):
    await known(store)
    await store.enqueue([new(f"{n}") for n in range(5)])
    held = (await store.claim(wish())).jobs
    await store.shift_clock(LEASE_MS + 1)
    await insist(proxy, lambda: far.reap(10, 0.0))
    for job in held:
        assert await kinds(store, job.key) == ["enqueued", "claimed", "expired"]
    await store.cancel([Cancel(job.key) for job in held])
    await store.shift_clock(30 * 24 * 3600 * 1000)
    await insist(proxy, lambda: far.prune(10))
    while (await store.prune(100)).more:
        pass
    assert await store.get([job.key for job in held]) == [None] * 5


async def test_a_lost_claim_costs_a_lease_and_never_a_job(proxy, far, store):
    await known(store)
    ids = [f"{n}" for n in range(10)]
    await store.enqueue([new(id_) for id_ in ids])
    proxy.cut_replies(when=SCRIPT)
    with pytest.raises(StoreUnavailable):
        await far.claim(wish(10))
    assert proxy.counts.replies_cut == 1
    leased = await store.get([key(id_) for id_ in ids])
    assert {(job.state, job.attempts) for job in leased} == {(JobState.LEASED, 1)}
    assert (await far.claim(wish(10))).jobs == []
    await store.shift_clock(LEASE_MS + 1)
    await store.reap(100, 0.0)
    await store.shift_clock(600_000)
    again = (await far.claim(wish(10))).jobs
    assert sorted(job.id for job in again) == ids
    assert {job.attempts for job in again} == {2}
    assert min(job.token for job in again) > max(job.token for job in leased)
    await judge(store, whole=False)


async def test_a_request_that_never_arrives_changes_nothing(proxy, far, store):
    """Cut before the server: an enqueue and an acknowledgement still get there, a claim holds nothing."""
    await known(store)
    proxy.cut_requests(when=SCRIPT)
    with contextlib.suppress(StoreUnavailable):
        await far.enqueue([new("x")])
    assert proxy.counts.requests_cut == 1
    await store.enqueue([new("y")])
    proxy.cut_requests(when=SCRIPT)
    with pytest.raises(StoreUnavailable):
        await far.claim(wish())
    assert await kinds(store, key("y")) == ["enqueued"]
    job = await claim_one(store)
    assert job.attempts == 1


async def test_under_load_with_cuts_at_random_nothing_is_lost_and_nothing_doubled(zygote, valkey, url, store, log):
    """Producers and workers in processes of their own, each reply in fifteen lost."""
    chance = seeded()
    async with Proxy(HOST, valkey.port) as proxy, Queue(url, tenant="acme") as queue:
        far_url = url.replace(f":{valkey.port}/", f":{proxy.port}/") + "&timeout_s=1"
        producers = [await zygote.start(far_url, role="produce", log=log, name=f"p{n}") for n in range(2)]
        workers = [await zygote.start(far_url, log=log, lease_s=1, concurrency=4) for _ in range(2)]
        await under_way(log, producers, workers)
        proxy.cut_replies(when=lambda chunk: SCRIPT in chunk and chance.random() < 1 / 15, times=None)
        await eventually(lambda: proxy.counts.replies_cut > 60)
        await proxy.heal()
        await end_gently(zygote, *producers)
        counts = await drained(queue.store, "acme", "default", step_ms=300)
        await end_gently(zygote, *workers)
    ids = [id_ for id_, *_ in notes(log, "queued")]
    assert len(ids) == len(set(ids))
    jobs = {k.id: job for k, job in (await judge(store)).items()}
    assert counts == {JobState.COMPLETED: len(jobs)}
    # What was acknowledged is there, and beside it at most the one that each producer was at when it ended.
    assert set(ids) <= set(jobs)
    assert len(jobs) <= len(ids) + len(producers)
    await ledger.check(store, "acme", list(jobs))
    for id_, _, token, _ in notes(log, "completed"):
        assert jobs[id_].token == token, "an acknowledged completion was undone"
    effects = {(id_, fence) for id_, _, fence, _ in notes(log, "effect")}
    assert all((job.id, job.token) in effects for job in jobs.values())


async def test_every_call_may_be_cut_anywhere(proxy, far, store):
    """A random walk over all the calls of one handle with cuts in between: its answers stay true to the log."""
    chance = seeded()
    proxy.cut_replies(when=lambda chunk: chance.random() < 0.1, times=None)
    ids, held = [], {}

    async def settled(call):
        with contextlib.suppress(StoreUnavailable):
            return await call

    for step in range(400):
        move = chance.randrange(8)
        if move <= 2:
            item = new(f"{step}", max_attempts=3)
            while await settled(far.enqueue([item])) is None:
                pass
            ids.append(item.key.id)
        elif move == 3:
            claimed = await settled(far.claim(wish(3, lease_ms=1000)))
            held |= {job.id: job for job in claimed.jobs} if claimed else {}
        elif move == 4 and held:
            _, job = held.popitem()
            outcome = chance.choice(["complete", "fail", "retry", "release"])
            await settled(far.finish([Finish(job.key, job.token, outcome, random=chance.random())]))
        elif move == 5 and ids:
            await settled(far.cancel([Cancel(key(chance.choice(ids)), only_waiting=chance.random() < 0.5)]))
        elif move == 6 and ids:
            await settled(far.replay([key(chance.choice(ids))]))
        elif held:
            job = chance.choice(list(held.values()))
            await settled(far.extend([Extend(job.key, job.token, 2000)]))
    assert proxy.counts.replies_cut > 20
    await proxy.heal()
    jobs = await judge(store)
    assert sorted(k.id for k in jobs) == sorted(ids)


async def test_a_cut_in_the_middle_of_many_at_once_fails_only_those(proxy, far_url, store):
    """Calls on other connections go on; those that were cut are told so, or were repeated."""
    await known(store)
    other = await open_store(far_url)
    try:
        items = [new(f"{n}") for n in range(200)]
        await asyncio.gather(*(other.enqueue([item]) for item in items[:20]))
        proxy.cut_replies(when=SCRIPT, after=10, times=5)
        answers = await asyncio.gather(*(other.enqueue([item]) for item in items[20:]), return_exceptions=True)
        assert proxy.counts.replies_cut == 5
        unsure = [item for item, answer in zip(items[20:], answers, strict=True) if isinstance(answer, Exception)]
        assert all(isinstance(answer, list | StoreUnavailable | StoreBusy) for answer in answers)
        for item in unsure:
            assert [type(answer) for answer in await other.enqueue([item])] == [Queued]
        (stats,) = await store.stats("acme", ["mail"])
        assert stats.counts[JobState.READY] == 200
    finally:
        await other.close()


@pytest.mark.parametrize("lost", range(4))
async def test_a_claim_over_many_shards_loses_the_reply_of_one_and_no_more(valkey, proxy, prefix, lost):
    """The shards are asked side by side: what the others leased is not lost with the one whose reply is."""
    near = await open_store(valkey.url(prefix=prefix, shards=4, test_clock=1))
    far = await open_store(f"redis://{HOST}:{proxy.port}/0?prefix={prefix}&shards=4&test_clock=1&timeout_s=1")
    try:
        tenants = [f"t{n}" for n in range(20)]
        await near.enqueue([new("warm", tenant=tenant, queue="warm") for tenant in tenants])
        await far.claim(wish(100, tenant=None, queues=("warm",)))
        await near.enqueue([new("x", tenant=tenant) for tenant in tenants])
        claim, shard = SCRIPTS["claim"].sha.encode(), f"{prefix}:{{{lost}}}:c".encode()
        proxy.cut_replies(when=lambda chunk: claim in chunk and shard in chunk)
        claimed = {job.tenant for job in (await far.claim(wish(40, tenant=None))).jobs}
        assert proxy.counts.replies_cut == 1
        mine = {tenant for tenant in tenants if shard_of(tenant, 4) != lost}
        assert claimed == mine
        # The others come back after their lease.
        await near.shift_clock(LEASE_MS + 1)
        await near.reap(100, 0.0)
        await near.shift_clock(600_000)
        again = (await far.claim(wish(40, tenant=None))).jobs
        assert {(job.tenant, job.attempts) for job in again} == {(tenant, 2) for tenant in tenants}
    finally:
        await far.close()
        await near.close()
