"""What `standing` reads does not grow with the backlog. Counted are the commands that the server ran, not the time."""

from holdfast.core.explain import AHEAD_LIMIT, OTHERS_LIMIT, OTHERS_SCAN
from holdfast.core.job import ClaimRequest, JobKey
from holdfast.stores.redis import shards
from holdfast.stores.redis.scripts import SCRIPTS
from tests.stores.load import new
from tests.stores.redis.test_many_queues import counted

TENANT, QUEUE = "acme", "mail"


async def fill(store, count, name, **fields):
    for first in range(0, count, 1000):
        jobs = [
            new(f"{name}-{n}", tenant=TENANT, queue=QUEUE, priority=n % 10, **fields)
            for n in range(first, min(count, first + 1000))
        ]
        await store.enqueue(jobs)


async def commands_of(store, valkey, id):
    """The standing of a job, and how many commands its script ran."""
    key = JobKey(TENANT, QUEUE, id)
    await store.standing(key)  # The first call sends the script.
    await store.enforcer.close()  # Nothing else reads meanwhile.
    before = counted(valkey)
    found = await store.standing(key)
    after = counted(valkey)
    assert after[1] - before[1] == 1
    return found, after[0] - before[0]


async def test_standing_runs_the_same_commands_whatever_is_waiting_delayed_or_leased(store, valkey):
    await fill(store, AHEAD_LIMIT + 200, "few")
    await store.enqueue([new("last", tenant=TENANT, queue=QUEUE, priority=0)])
    _, small = await commands_of(store, valkey, "last")
    await fill(store, 10_000, "more")
    await fill(store, 2_000, "delayed", delay_ms=3_600_000)
    await store.claim(ClaimRequest(TENANT, (QUEUE,), 1_000, 60_000, "w"))
    found, large = await commands_of(store, valkey, "last")
    assert found.ahead == AHEAD_LIMIT + 1
    assert large <= small <= 40


async def test_standing_looks_at_a_bounded_number_of_tenants(store, valkey):
    await store.enqueue([new("last", tenant=TENANT, queue=QUEUE)])
    await store.enqueue([new("theirs", tenant=f"t{n}", queue=QUEUE, delay_ms=1) for n in range(3 * OTHERS_SCAN)])
    await store.shift_clock(1000)
    found, commands = await commands_of(store, valkey, "last")
    assert found.others == OTHERS_LIMIT + 1
    assert commands <= 40 + 2 * OTHERS_SCAN


def test_the_server_lets_the_script_write_nothing():
    assert shards.SCRIPTS is SCRIPTS
    assert SCRIPTS["standing"].text.startswith("#!lua flags=no-writes\n")
