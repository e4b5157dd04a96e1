"""The clock of the server jumps by an hour, forward and back. [TIME-1]

Invariants verified:
- nothing is lost: every job ends, though it may be an hour late by the new clock
- a lease is bounded: a dead worker loses it, at the latest after the jump and the lease
- a lease that has run out by the new clock is over, and its late acknowledgement changes nothing
- tokens and the numbers of events grow on, whichever way the clock goes
"""

import asyncio

import pytest

from holdfast import Queue
from holdfast.core.errors import LeaseExpired, LeaseLost
from holdfast.core.job import HOUR, Cancel, Extend, Extended, Finish, Finished, JobState
from holdfast.opening import open_store
from tests.chaos import ledger
from tests.chaos.workers import notes, work
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.load import (
    LEASE_MS,
    claim_one,
    complete,
    drained,
    end_gently,
    key,
    new,
    seeded,
    under_way,
    wish,
)


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant="acme") as queue:
        yield queue


async def test_an_hour_forward_ends_leases_and_makes_delayed_jobs_due(store):
    await store.enqueue([new("held"), new("later", delay_ms=HOUR // 2), new("much later", delay_ms=3 * HOUR)])
    job = await claim_one(store)
    await store.shift_clock(HOUR)
    (answer,) = await store.finish([complete(job)])
    assert isinstance(answer, LeaseExpired)
    jobs = (await store.claim(wish())).jobs
    assert {(j.id, j.attempts) for j in jobs} >= {("later", 1)}
    # The held one comes back by its own policy of retries.
    await store.shift_clock(HOUR)
    jobs += (await store.claim(wish())).jobs
    again = next(j for j in jobs if j.id == "held")
    assert again.attempts == 2
    assert again.token > job.token
    (answer,) = await store.finish([complete(job)])
    assert isinstance(answer, LeaseLost)
    (waiting,) = await store.get([key("much later")])
    assert waiting.state is JobState.SCHEDULED


async def test_an_hour_back_keeps_leases_and_bounds_them(store):
    await store.enqueue([new("kept"), new("dead")])
    kept, dead = (await store.claim(wish())).jobs
    await store.shift_clock(-HOUR)
    # The holder continues as before: the lease is longer now, not shorter.
    (answer,) = await store.extend([Extend(kept.key, kept.token, LEASE_MS)])
    assert isinstance(answer, Extended)
    assert answer.deadline >= kept.deadline
    assert answer.deadline - await store.now() <= HOUR + LEASE_MS
    assert isinstance((await store.finish([complete(kept)]))[0], Finished)
    # That of the dead one ends when the new clock gets there: an hour and a lease, and not never.
    assert (await store.claim(wish())).jobs == []
    await store.shift_clock(HOUR + LEASE_MS)
    await store.reap(100, 0.0)
    await store.shift_clock(HOUR)
    again = await claim_one(store)
    assert (again.id, again.attempts) == ("dead", 2)
    assert again.token > dead.token


async def test_after_an_hour_back_new_jobs_run_at_once_and_old_ones_in_an_hour(store):
    await store.enqueue([new("old")])
    offset = await store.last_offset()
    await store.shift_clock(-HOUR)
    await store.enqueue([new("new")])
    job = await claim_one(store)
    assert job.id == "new"
    await store.finish([complete(job)])
    claimed = await store.claim(wish())
    if not claimed.jobs:
        # It became visible at a moment that is ahead again; a waiting worker knows when.
        assert claimed.next_at is not None
        assert 0 < claimed.next_at - claimed.now <= HOUR
        await store.shift_clock(HOUR)
        claimed = await store.claim(wish())
    assert [job.id for job in claimed.jobs] == ["old"]
    page = await store.events(None, offset, 100)
    assert [(e.job_id, e.kind) for e in page.events] == [
        ("new", "enqueued"),
        ("new", "claimed"),
        ("new", "completed"),
        ("old", "claimed"),
    ], "a reader that resumes misses nothing"


async def test_tokens_and_events_grow_in_both_directions_of_the_clock(store):
    tokens = []
    for number, hours in enumerate([0, 1, -1, -1, 2, -5, 3, 0]):
        await store.shift_clock(hours * HOUR)
        await store.enqueue([new(f"{number}")])
        job = await claim_one(store)
        tokens.append(job.token)
        await store.finish([Finish(job.key, job.token, "release")])
        again = await claim_one(store)
        assert (again.id, again.attempts) == (job.id, 1)
        tokens.append(again.token)
        await store.finish([complete(again)])
    assert tokens == sorted(set(tokens))
    assert max(tokens) < 2**53
    events = await all_events(store)
    assert len(events) == 5 * 8
    assert len({event.offset for event in events}) == len(events)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("page", [1, 3, 100])
async def test_a_reader_of_the_log_misses_nothing_and_sees_nothing_twice(valkey, prefix, shards, page):
    """The log is in the order of the changes, not of the clock; a reader that resumes misses nothing. [EVENT-2]"""
    tenants = [f"t{n}" for n in range(6)]
    store = await open_store(valkey.url(prefix=prefix, shards=shards, test_clock=1))
    try:
        for number, hours in enumerate([0, -1, 2, -1, -1]):
            await store.shift_clock(hours * HOUR)
            for tenant in tenants:
                await store.enqueue([new(f"{number}", tenant=tenant, priority=9 - number)])
                await store.shift_clock(-HOUR if number % 2 else HOUR)
                await store.cancel([Cancel(key(f"{number}", tenant=tenant))])
                await store.shift_clock(HOUR if number % 2 else -HOUR)
        expected = [(f"{number}", kind) for number in range(5) for kind in ("enqueued", "canceled")]
        for whose in (None, *tenants[:2]):
            found = await read(store, whose, page)
            for tenant in tenants if whose is None else [whose]:
                assert [(e.job_id, e.kind) for e in found if e.tenant == tenant] == expected
            assert len({event.offset for event in found}) == len(found)
    finally:
        await store.close()


async def read(store, tenant, page):
    """The whole log, a page after the other; it must come to an end."""
    found, after = [], None
    for _ in range(500):
        answer = await store.events(tenant, after, page)
        found += answer.events
        if not answer.more:
            return found
        after = answer.next
    raise AssertionError(f"the log of {tenant} does not end: {len(found)} events so far")


async def test_results_and_dead_letters_are_kept_for_their_time_or_longer(store):
    """A jump back keeps them longer, a jump forward shorter: never for ever, and never is a waiting job forgotten."""
    await store.enqueue([new("done"), new("waits", delay_ms=100 * HOUR)])
    await store.finish([complete(await claim_one(store))])
    await store.shift_clock(-HOUR)
    await store.prune(1000)
    assert [job is not None for job in await store.get([key("done"), key("waits")])] == [True, True]
    await store.shift_clock(3 * HOUR)
    await store.prune(1000)
    assert [job is not None for job in await store.get([key("done"), key("waits")])] == [False, True]


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_waiting_worker_follows_the_new_clock(zygote, queue, url, log, hours):
    pid = await zygote.start(url, log=log)
    await eventually(lambda: queue.store.workers("acme"))
    delayed = await queue.enqueue(work.message(log), id="delayed", delay=1800)
    await queue.store.shift_clock(hours * HOUR)
    await (await queue.enqueue(work.message(log), id="new")).wait(timeout=10)
    if hours < 0:
        await queue.store.shift_clock(2 * HOUR)
    await delayed.wait(timeout=10)
    await end_gently(zygote, pid)
    await ledger.check(queue.store, "acme", ["delayed", "new"])


async def test_no_job_is_lost_while_the_clock_jumps_under_load(zygote, queue, url, log):
    """Two workers and a producer, and an hour this way or that every few moments."""
    chance = seeded()
    pids = [await zygote.start(url, log=log, lease_s=10, concurrency=5) for _ in range(2)]
    producer = await zygote.start(url, role="produce", log=log, name="p")
    await under_way(log, [producer], pids)
    for _ in range(20):
        before = len(notes(log, "queued"))
        await queue.store.shift_clock(chance.choice([-HOUR, HOUR]))
        await eventually(lambda before=before: len(notes(log, "queued")) > before + 5)
    await end_gently(zygote, producer)
    # All that was delayed by jumps back becomes due again.
    await drained(queue.store, "acme", "default", step_ms=HOUR)
    await end_gently(zygote, *pids)
    ids = [id_ for id_, *_ in notes(log, "queued")]
    jobs = await ledger.check(queue.store, "acme", ids)
    assert {job.state for job in jobs.values()} == {JobState.COMPLETED}
    effects = {(id_, fence) for id_, _, fence, _ in notes(log, "effect")}
    assert all((job.id, job.token) in effects for job in jobs.values())


async def test_two_handles_agree_on_the_clock_after_a_jump(store, url):
    other = await open_store(url)
    try:
        for hours in (1, -2, 1):
            await store.shift_clock(hours * HOUR)
            mine, theirs = await asyncio.gather(store.now(), other.now())
            assert abs(mine - theirs) < 60_000
    finally:
        await other.close()
