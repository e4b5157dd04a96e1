"""The room of the log is shared by level: what that costs the server, and what holds whatever happens. [EVENT-2]

Counted are commands and entries, not the time.
"""

import asyncio
import random
from collections import Counter

import pytest

from holdfast.core.errors import EventsTrimmed
from holdfast.core.job import Cancel, JobKey
from holdfast.core.trimming import level
from holdfast.opening import open_store
from holdfast.store import Reader
from holdfast.stores.redis import trimming
from tests.stores.load import new
from tests.stores.redis.test_many_queues import counted, no_script_over

KEEP = 3000
ENTRIES = 500
"""How many entries one script looks at."""


@pytest.fixture
async def store(server, prefix):
    store = await open_store(server.url(prefix=prefix, test_clock=1, keep_events=KEEP))
    yield store
    await store.close()


async def flood(store, tenant, count, batch=500):
    """This many events of a tenant, in batches."""
    for done in range(0, count, batch):
        jobs = [new(f"{random.random()}", tenant=tenant) for _ in range(min(batch, count - done))]
        await store.enqueue(jobs)


async def prune_all(store):
    gone = 0
    while True:
        pruned = await store.prune(1000)
        gone += pruned.events
        if not pruned.more:
            return gone


async def events_of(store, tenant, after=None):
    found, gaps = [], []
    while True:
        page = await store.events(tenant, after, 500)
        found, gaps, after = found + page.events, gaps + page.gaps, page.next
        if not page.more:
            return found, gaps


def calls_of(valkey, command):
    stat = valkey.info("commandstats").get(f"cmdstat_{command}", "calls=0")
    return int(dict(part.split("=") for part in stat.split(","))["calls"])


def kept(valkey, prefix, name):
    found = valkey.command("HGETALL", f"{prefix}:{{0}}:n:{name}")
    return {tenant: int(count) for tenant, count in zip(found[::2], found[1::2], strict=True)}


async def test_a_flood_is_trimmed_in_steps_and_removes_no_event_of_others(store, valkey):
    start = await store.last_offset()
    for _ in range(20):
        await flood(store, "victim", 2, 1)
        await flood(store, "flooder", 1000)
    with no_script_over(valkey, 4 * ENTRIES):
        gone = await prune_all(store)
    assert gone == 20_040 - KEEP
    assert len((await events_of(store, "victim", start))[0]) == 40
    assert len((await events_of(store, "flooder"))[0]) == KEEP - 40
    assert (await store.usage("flooder")).events == KEEP - 40


async def test_surviving_entries_are_not_scanned_again(store, valkey, prefix):
    """Each surviving event is moved once, however often others after it are trimmed."""
    await flood(store, "victim", 1100, 1)
    await flood(store, "flooder", 4000)
    await prune_all(store)
    assert valkey.command("XLEN", f"{prefix}:{{0}}:a") == 1100
    for _ in range(3):
        await flood(store, "flooder", 1000)
        await flood(store, "victim", 10, 1)
        moved = calls_of(valkey, "xadd")
        assert await prune_all(store) >= 1000
        assert calls_of(valkey, "xadd") - moved <= 10
    assert len((await events_of(store, "victim"))[0]) == 1130


async def test_a_few_excess_events_among_many_survivors_wait(store, valkey, prefix):
    """Until they are worth the way through the others; then the tenant is cut to the level exactly."""
    await flood(store, "large", 1300, 1)
    await flood(store, "small", 500, 1)
    await flood(store, "flooder", 4000)
    await prune_all(store)
    aside = valkey.command("XLEN", f"{prefix}:{{0}}:a")
    assert (aside, kept(valkey, prefix, "a")) == (1750, {"large": 1250, "small": 500})
    await flood(store, "large", 100, 1)
    await prune_all(store)
    assert kept(valkey, prefix, "e")["large"] == 1350
    await flood(store, "large", aside // trimming.ENTRIES_PER_EVENT, 1)
    await prune_all(store)
    assert kept(valkey, prefix, "e") == {"large": 1250, "small": 500, "flooder": 1250}
    assert len((await events_of(store, "large"))[0]) == 1250


async def test_processes_that_trim_at_once_remove_nothing_twice(store, server, prefix):
    others = [await open_store(server.url(prefix=prefix, test_clock=1, keep_events=KEEP)) for _ in range(3)]
    await flood(store, "small", 200, 1)
    await flood(store, "flooder", 8000)
    gone = await asyncio.gather(*(prune_all(one) for one in (store, *others)))
    assert sum(gone) == 8200 - KEEP
    assert (await store.usage("flooder")).events == KEEP - 200
    assert len((await events_of(store, None))[0]) == KEEP
    for other in others:
        await other.close()


async def test_a_reader_of_all_tenants_gets_many_gaps_at_once(store, valkey):
    """No page names more than a thousand tenants: before that they are one gap for all."""
    start = await store.last_offset()
    tenants = [f"t{number}" for number in range(1200)]
    await flood(store, "early", 1)
    for _ in range(4):
        await store.enqueue([new(f"{random.random()}", tenant=tenant) for tenant in tenants])
    with no_script_over(valkey, 10 * ENTRIES):
        await prune_all(store)
    with pytest.raises(EventsTrimmed) as gap:
        await store.events(None, start, 100)
    found, gaps = await events_of(store, None, gap.value.to)
    assert 0 < len({gap.tenant for gap in gaps}) <= 1000
    assert Counter(event.tenant for event in found) <= Counter(dict.fromkeys(tenants, 2))  # "early" is before that.
    assert Counter([len((await events_of(store, tenant))[0]) for tenant in tenants[::100]]) == {2: 12}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", range(4))
async def test_each_tenant_always_keeps_its_last_events(server, prefix, monkeypatch, seed, shards):
    """Batches of several tenants, readers and cuts, also with waiting survivors: the counts are right at every step."""
    chance = random.Random(f"{seed}-{shards}")
    monkeypatch.setattr(trimming, "ALWAYS_RESCANNED", 0 if seed % 2 else 1000)
    monkeypatch.setattr(trimming, "MAX_STEPS", 2 if seed % 4 > 1 else 50)
    keep = 40
    store = await open_store(server.url(prefix=prefix, test_clock=1, keep_events=keep, shards=shards))
    tenants = ["a", "b", "c", "d", "e"]
    written = {tenant: [] for tenant in tenants}
    log, after = [], await store.last_offset()
    offsets = [after]
    for _ in range(60):
        for _ in range(chance.randrange(4)):
            some = chance.choices(tenants, (30, 8, 3, 1, 1), k=chance.randrange(1, 9))
            jobs = [new(f"{chance.random()}", tenant=tenant) for tenant in some]
            await store.enqueue(jobs)
            await store.cancel([Cancel(job.key) for job in chance.sample(jobs, len(jobs) // 3)])
        # Nothing of this is trimmed before it is read.
        fresh, _ = await events_of(store, None, after)
        for event in fresh:
            written[event.tenant].append(reported(event))
        log += map(reported, fresh)
        after = (await store.events(None, after, 10_000)).next
        offsets.append(after)
        if chance.random() < 0.3:
            whose = chance.choice([None, *tenants])
            if chance.random() < 0.5:
                await store.set_reader(Reader(whose, "reader", chance.choice(offsets[-8:])))
            else:
                await store.drop_reader(whose, "reader")
        await prune_all(store)
        lost = {}
        left = set()
        for tenant in tenants:
            found = [reported(event) for event in (await events_of(store, tenant))[0]]
            assert found == written[tenant][len(written[tenant]) - len(found) :]
            assert (await store.usage(tenant)).events == len(found)
            lost[tenant] = len(written[tenant]) - len(found)
            left.update(found)
        if shards == 1:
            soft = level([len(events) for events in written.values()], keep)
            assert all(len(written[t]) - lost[t] >= min(len(written[t]), soft) for t in tenants)
        await check_all(store, chance.choice(offsets), left)
    await store.close()


def reported(event):
    return event.tenant, event.job_id, event.number


async def check_all(store, after, left):
    """A reader of all tenants gets their kept events, and the gaps of the others by name."""
    try:
        found, gaps = await events_of(store, None, after)
    except EventsTrimmed as gap:
        after = gap.to
        found, gaps = await events_of(store, None, after)
    names = {gap.tenant for gap in gaps}
    for tenant in "abcde":
        try:
            own, _ = await events_of(store, tenant, after)
            assert tenant not in names
        except EventsTrimmed as gap:
            assert tenant in names
            own, _ = await events_of(store, tenant, gap.to)
        assert [reported(event) for event in found if event.tenant == tenant] == list(map(reported, own))
    assert set(map(reported, found)) <= left


async def test_usage_reads_a_bounded_number_of_queues(store, valkey):
    """The count of queues is an estimate then. [TENANT-5]"""
    jobs = [new("job", tenant="acme", queue=f"q{number}", delay_ms=10**9) for number in range(3000)]
    await store.enqueue(jobs)
    await store.cancel([Cancel(JobKey("acme", f"q{number}", "job")) for number in range(0, 3000, 2)])
    await store.shift_clock(3 * 24 * 3600 * 1000)
    await prune_all(store)
    before = counted(valkey)[0]
    usage = await store.usage("acme")
    assert counted(valkey)[0] - before <= 1020
    assert usage.jobs == 1500
    assert 1200 <= usage.queues <= 1800
