"""A connection is cut at a script: before the server gets it, at one of many calls, at one shard of several.

Invariants verified:
- a claim that never arrives holds nothing, and is never repeated [ENQ-8]
- a cancel or a change of the result TTL that is repeated reaches the life that it reached at first, and no later one
- of calls that are made at once only those that were cut fail, and of several shards only the one that was cut
"""

import asyncio
import contextlib

import pytest

from holdfast.core.errors import StoreBusy, StoreUnavailable
from holdfast.core.job import Cancel, JobState, Queued, SetResultTtl
from holdfast.opening import open_store
from holdfast.stores.redis import client
from holdfast.stores.redis.keys import shard_of
from holdfast.stores.redis.scripts import SCRIPTS
from holdfast.testing.servers import HOST
from tests.stores.load import LEASE_MS, claim_one, key, kinds, new, wish

SCRIPT = b"EVALSHA"


@pytest.fixture(autouse=True)
def known(valkey):
    """The server knows all scripts, so that the first reply that is cut is not just that it does not."""
    for script in SCRIPTS.values():
        valkey.command("SCRIPT", "LOAD", script.text)


async def test_a_request_that_is_lost_changes_nothing(proxy, far, store):
    """Cut before the server: an enqueue and an acknowledgement still get there, a claim holds nothing."""
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


@pytest.mark.parametrize("what", ["cancel", "set_result_ttl"])
async def test_a_repeated_request_changes_one_life_of_an_id(proxy, far, store, monkeypatch, what):
    """The reply is lost; before the store sends it again, the id has a new life, which ends as well."""
    await store.enqueue([new("x")])
    send, sent = client.RedisClient._send, []

    async def slow(self, *args, **options):
        sent.append(self)
        if self is far._client and sent.count(self) == 2:
            await store.enqueue([new("x")])
            if what == "set_result_ttl":
                await store.cancel([Cancel(key("x"))])
        return await send(self, *args, **options)

    if what == "set_result_ttl":
        await store.cancel([Cancel(key("x"))])
    monkeypatch.setattr(client.RedisClient, "_send", slow)
    proxy.cut_replies(when=SCRIPT)
    if what == "cancel":
        assert await far.cancel([Cancel(key("x"))]) == ["canceled"]
    else:
        assert await far.set_result_ttl([SetResultTtl(key("x"), 0)]) == ["updated"]
    assert (proxy.counts.replies_cut, sent.count(far._client)) == (1, 2)
    (job,) = await store.get([key("x")])
    assert job is not None
    assert job.state is (JobState.READY if what == "cancel" else JobState.CANCELED)


async def test_a_cut_during_pipelined_calls_fails_only_those(proxy, far_url, store):
    """Calls on other connections continue. Calls whose connection was cut fail or are repeated."""
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
async def test_a_claim_over_many_shards_loses_only_the_reply_of_one(valkey, proxy, prefix, lost):
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
