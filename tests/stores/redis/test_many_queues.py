"""One tenant with many queue names: what one script does does not grow with them. [TENANT-5]

Counted are the commands that the server ran, not the time.
"""

import contextlib
import random

import pytest

from holdfast.core.job import AttemptError, Cancel, ClaimRequest, Finish, JobKey
from holdfast.store import TenantSettings
from holdfast.stores.redis.records import encode
from tests.stores.load import new

TENANT = "acme"
MANY = 1500
SECOND = 1000


def counted(valkey):
    """How many commands the server has run in all, and how many of them were scripts."""
    stats = {
        name: dict(part.split("=") for part in text.split(",")) for name, text in valkey.info("commandstats").items()
    }
    calls = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    scripts = calls.get("evalsha", 0) + calls.get("eval", 0)
    return sum(calls.values()), scripts


@contextlib.contextmanager
def no_script_over(valkey, most):
    """The scripts in this block run at most this many commands each, on average."""
    before = counted(valkey)
    yield
    after = counted(valkey)
    commands, scripts = after[0] - before[0], after[1] - before[1]
    assert commands / scripts <= most, (commands, scripts)


def queue_name(number):
    return f"user-{number:05}"


async def fill(store, count, first=0):
    jobs = [new("job", tenant=TENANT, queue=queue_name(number), delay_ms=3_600_000) for number in range(first, count)]
    await store.enqueue(jobs)


def waiting_by_index(valkey, prefix):
    return sum(valkey.command("ZCARD", name) for name in valkey.command("KEYS", f"{prefix}:{{0}}:w:4:acme*"))


def waiting_by_count(valkey, prefix):
    return int(valkey.command("HGET", f"{prefix}:{{0}}:W", TENANT))


async def test_an_enqueue_under_a_quota_of_the_tenant_does_not_read_its_queues(store, valkey):
    await fill(store, MANY)
    await store.set_tenant(TENANT, TenantSettings(max_waiting=10**6))
    with no_script_over(valkey, 50):
        await store.enqueue([new("one", tenant=TENANT, queue=queue_name(0))])


async def test_a_quota_is_set_in_steps(store, valkey, prefix):
    await fill(store, MANY)
    with no_script_over(valkey, 600):
        await store.set_tenant(TENANT, TenantSettings(max_waiting=10**6))
    assert waiting_by_count(valkey, prefix) == MANY


async def test_a_prune_sweeps_some_queues_and_continues_with_the_others(store, valkey, prefix):
    await fill(store, MANY)
    await store.cancel([Cancel(JobKey(TENANT, queue_name(number), "job")) for number in range(MANY)])
    await store.shift_clock(400 * 24 * 3600 * SECOND)
    while (await store.prune(1000)).jobs:
        pass
    with no_script_over(valkey, 300 * 12):
        for _ in range(2 * MANY // 300):
            await store.prune(1000)
    assert valkey.command("EXISTS", f"{prefix}:{{0}}:Q:{TENANT}", f"{prefix}:{{0}}:T") == 0


async def test_queues_and_tenants_are_listed_in_pages(store, valkey):
    await fill(store, MANY)
    await store.enqueue([new("job", tenant=f"tenant-{number:03}") for number in range(250)])
    with no_script_over(valkey, 100 * 30):
        assert [stats.queue for stats in await store.stats(TENANT)] == [queue_name(number) for number in range(MANY)]
    with no_script_over(valkey, 1000 + 300):
        assert await store.tenants() == [TENANT, *(f"tenant-{number:03}" for number in range(250))]


async def test_a_tenant_with_many_empty_queues_is_read_in_pages(store, valkey):
    """It has jobs in the last of them, or in none."""
    await fill(store, MANY)
    await store.enqueue([new("job", tenant="zeta")])
    await store.set_tenant("beta", TenantSettings(weight=2.0))
    await store.cancel([Cancel(JobKey(TENANT, queue_name(number), "job")) for number in range(MANY - 1)])
    await store.shift_clock(400 * 24 * 3600 * SECOND)
    while (await store.prune(1000)).jobs:
        pass
    # The pruner lets go of empty queues: put them back, as they are before it comes.
    for paused in (True, False):
        for number in range(MANY - 1):
            await store.pause(TENANT, queue_name(number), paused=paused)
    with no_script_over(valkey, 1000 + 300):
        assert await store.tenants() == [TENANT, "beta", "zeta"]
    page = await store.tenant_page(limit=2)
    assert (page.tenants, page.cursor is not None) == ([], True)
    page = await store.queue_page(TENANT)
    assert (page.queues, page.cursor) == ([], queue_name(99))
    assert [stats.queue for stats in await store.stats(TENANT)] == [queue_name(MANY - 1)]


@pytest.mark.parametrize("seed", range(3))
async def test_the_count_of_waiting_jobs_is_that_of_the_index(store, valkey, prefix, seed):
    """Whatever happens, before, while and after the count begins."""
    chance = random.Random(seed)
    queues = [queue_name(number) for number in range(1200)]
    busy = [queues[0], queues[1], queues[600], queues[-1]]
    await fill(store, len(queues))
    held, number = [], 0
    for round_ in range(120):
        if round_ == 30:  # The count begins, and is not carried on but by enqueues.
            await store._opened.run("settings", 0, encode(("set", TENANT, "t", False, False, 10**6, {})))
        what = chance.choice(["enqueue", "batch", "claim", "claim all", "finish", "cancel"])
        if what in ("enqueue", "batch") and round_ not in range(30, 60):
            ids = [f"{number + n}" for n in range(1 if what == "enqueue" else chance.randrange(2, 9))]
            number += len(ids)
            await store.enqueue([new(id_, tenant=TENANT, queue=chance.choice(busy)) for id_ in ids])
        elif what in ("claim", "claim all"):
            tenant = TENANT if what == "claim" else None
            wish = ClaimRequest(tenant, tuple(chance.sample(busy, 2)), chance.choice([1, 2, 7]), 60_000, "w")
            held += (await store.claim(wish)).jobs
        elif what == "finish" and held:
            outcome = chance.choice(["complete", "retry", "release", "fail"])
            found = held.pop(chance.randrange(len(held)))
            error = None if outcome in ("complete", "release") else AttemptError("E", "e")
            await store.finish([Finish(found.key, found.token, outcome, error=error)])
        elif what == "cancel" and number:
            await store.cancel([Cancel(JobKey(TENANT, queue, f"{chance.randrange(number)}")) for queue in busy])
    while not await store._opened.run("settings", 0, encode(("count", TENANT))):
        pass
    assert waiting_by_count(valkey, prefix) == waiting_by_index(valkey, prefix)
