"""What is over leaves nothing behind: no key grows for ever."""

from holdfast.core.job import (
    AttemptError,
    Cancel,
    ClaimRequest,
    Envelope,
    Finish,
    IdempotencyKey,
    JobKey,
    NewJob,
    Purge,
    Result,
)
from holdfast.store import Reader, WorkerInfo

DAY = 24 * 3600 * 1000
TENANTS = ("acme", "globex", "initech")
KEYS = (None, IdempotencyKey("k1"), IdempotencyKey("k2", "until_started"), IdempotencyKey("k3", "ttl", DAY))


def new(tenant, number):
    payload = b"x" * (10_000 if number % 3 == 0 else 10)
    envelope = Envelope("t", payload, max_attempts=2, request_id=f"r{number}", idempotency=KEYS[number % len(KEYS)])
    return NewJob(JobKey(tenant, f"q{number % 2}", f"job-{number}"), envelope, delay_ms=number % 5)


async def live_through(store, round_):
    """Jobs of three tenants that end in every way there is."""
    jobs = [new(tenant, round_ * 100 + number) for number in range(40) for tenant in TENANTS]
    await store.enqueue(jobs)
    await store.cancel([Cancel(job.key) for job in jobs[:9]])
    await store.shift_clock(10)
    while taken := (await store.claim(ClaimRequest(None, ("q0", "q1"), 10, 30_000, "w"))).jobs:
        done, failed, released = taken[::3], taken[1::3], taken[2::3]
        await store.finish([Finish(job.key, job.token, "complete", Result(b"null")) for job in done])
        await store.finish([Finish(job.key, job.token, "fail", error=AttemptError("E", "e")) for job in failed])
        await store.finish([Finish(job.key, job.token, "retry", error=AttemptError("E", "e")) for job in released])
        await store.shift_clock(400_000)
    await store.purge([Purge(job.key) for job in jobs[:30]])
    await store.beat(WorkerInfo("w", None, "host", 1, ("q0",), 1, 0), 1000)


async def forget(store):
    """Let all retentions end, and prune until nothing is left to do."""
    await store.shift_clock(40 * DAY)
    for _ in range(30):
        await store.prune(1000)


def lasting(valkey, prefix):
    """The keys on the server, but for the answers to cancels: these go by themselves within a minute."""
    keys = valkey.command("KEYS", f"{prefix}:*")
    return sorted(key for key in keys if ":a:" not in key or valkey.command("PTTL", key) not in range(60_001))


async def test_the_server_is_empty_again_after_all_jobs_are_forgotten(store, valkey, prefix):
    await store.set_reader(Reader(None, "audit", "0"))
    for round_ in range(3):
        await live_through(store, round_)
    assert len(valkey.command("KEYS", f"{prefix}:*")) > 20
    await forget(store)
    await store.workers(None)
    assert await store.drop_reader(None, "audit")
    await forget(store)
    assert await store.tenants() == []
    # The counters stay, those of purges until a later purge drops them, the log without events, up to where tenants
    # lost theirs, and the turns of tenants that had one, until a claim finds them idle.
    assert (await store.claim(ClaimRequest(None, ("q0", "q1"), 1, 30_000, "w"))).jobs == []
    await forget(store)
    assert lasting(valkey, prefix) == [f"{prefix}:{{0}}:{name}" for name in "GKMce"]
    assert valkey.command("XLEN", f"{prefix}:{{0}}:e") == 0


async def test_a_thousand_lives_of_an_id_use_no_more_memory_than_one(store, valkey, prefix):
    """Tokens, sequences and the log's numbers are counters: they leave nothing behind."""
    sizes = []
    for _ in range(4):
        for round_ in range(3):
            await live_through(store, round_)
        await forget(store)
        sizes.append(sum(int(valkey.command("MEMORY", "USAGE", key)) for key in lasting(valkey, prefix)))
    assert max(sizes[1:]) <= sizes[0] * 1.1
