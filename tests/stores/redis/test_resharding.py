"""A slot that moves from node to node while jobs are enqueued and worked on there."""

import asyncio
from contextlib import contextmanager

import pytest
from redis.crc import key_slot

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.job import (
    AttemptError,
    Cancel,
    ClaimRequest,
    Envelope,
    Extend,
    Finish,
    Finished,
    JobKey,
    NewJob,
    Progress,
    Purge,
    Report,
    Result,
    SetResultTtl,
)
from holdfast.opening import open_store
from holdfast.store import Reader, TenantSettings, WorkerInfo
from holdfast.testing.servers import ValkeyCluster

TENANTS = 60
JOBS = 600


async def insist(call):
    """Call until the store takes it."""
    while True:
        try:
            return await call()
        except StoreError:
            await asyncio.sleep(0.005)


async def test_no_job_is_lost_while_a_slot_moves_key_by_key():
    """As operators reshard a live cluster: calls may be refused meanwhile, and what was refused was not half done."""
    with ValkeyCluster(3) as cluster:
        store = await open_store(cluster.url(shards=1, test_clock=1))
        slot = key_slot(b"hf:{0}:c")
        acknowledged, done = set(), set()

        async def produce(first):
            for number in range(first, JOBS, 3):
                key = JobKey(f"t{number % TENANTS}", "q", f"job-{number}")
                new = NewJob(key, Envelope("t", b"{}", request_id=f"r{number}"))
                await insist(lambda new=new: store.enqueue([new]))
                acknowledged.add(key)

        async def work(limit):
            while True:
                try:
                    jobs = (await store.claim(ClaimRequest(None, ("q",), limit, 1000, "w"))).jobs
                except StoreError:
                    jobs = []
                if not jobs:
                    await asyncio.sleep(0.002)
                    continue
                items = [Finish(job.key, job.token, "complete") for job in jobs]
                answers = await insist(lambda items=items: store.finish(items))
                done.update(job.key for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, Finished))

        def reshard():
            place = cluster.nodes.index(cluster.owner(slot))
            cluster.move_slot(slot, cluster.nodes[(place + 1) % 3])

        workers = [asyncio.create_task(work(limit)) for limit in (1, 7, 50)]
        await asyncio.gather(asyncio.to_thread(reshard), *(produce(first) for first in range(3)))
        async with asyncio.timeout(60):
            while acknowledged - done:
                await insist(lambda: store.shift_clock(400_000))  # Leases whose reply was lost run out.
                await asyncio.sleep(0.05)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert len(done) == JOBS
        await store.close()


# A slot on its way, all of whose keys are still at its old node. ------------------------------------------------

QUEUE = "q"
LARGE = 5000
CHANGES = {
    "enqueue": lambda store, held: store.enqueue([job("new", LARGE)]),
    "enqueue in place of a canceled job": lambda store, held: store.enqueue([job("canceled", LARGE + 1)]),
    "enqueue of one small job": lambda store, held: store.enqueue([job("small")]),
    "claim of a tenant": lambda store, held: store.claim(claiming("acme", 5)),
    "claim of one job": lambda store, held: store.claim(claiming("acme", 1)),
    "claim of all tenants": lambda store, held: store.claim(claiming(None, 5)),
    "complete": lambda store, held: store.finish([Finish(held.key, held.token, "complete", Result(b"1"))]),
    "release": lambda store, held: store.finish([Finish(held.key, held.token, "release")]),
    "extend": lambda store, held: store.extend([Extend(held.key, held.token, 60_000)]),
    "report": lambda store, held: store.report([Report(held.key, held.token, Progress(0.5, "half"))]),
    "cancel": lambda store, held: store.cancel([Cancel(held.key)]),
    "replay": lambda store, held: store.replay([key("failed")]),
    "purge": lambda store, held: store.purge([Purge(key("failed"))]),
    "set_result_ttl": lambda store, held: store.set_result_ttl([SetResultTtl(key("failed"), 1000)]),
    "reap": lambda store, held: store.reap(10, 0.5),
    "prune": lambda store, held: store.prune(10),
    "pause": lambda store, held: store.pause("acme", QUEUE, paused=True),
    "resume": lambda store, held: store.pause("other", QUEUE, paused=False),
    "set_tenant": lambda store, held: store.set_tenant("acme", TenantSettings(None, 2.0, 10)),
    "set_reader": lambda store, held: store.set_reader(Reader("acme", "more", "0")),
    "beat": lambda store, held: store.beat(WorkerInfo("w", "acme", "host", 1, (QUEUE,), 1, 0), 1000),
}


def key(id_, tenant="acme"):
    return JobKey(tenant, QUEUE, id_)


def job(id_, size=0, tenant="acme"):
    return NewJob(key(id_, tenant), Envelope("t", b'"' + b"x" * size + b'"', max_attempts=1, request_id=f"r-{id_}"))


def claiming(tenant, limit):
    return ClaimRequest(tenant, (QUEUE,), limit, 30_000, "w")


@contextmanager
def slot_on_its_way(cluster, slot):
    """The old node of the slot, which refuses the keys that it does not have, until the end."""
    source = cluster.owner(slot)
    target = next(node for node in cluster.nodes if node is not source)
    source_id, target_id = (str(node.command("CLUSTER", "MYID")) for node in (source, target))
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    try:
        yield source
    finally:
        for node in (target, source):
            node.command("CLUSTER", "SETSLOT", slot, "STABLE")


async def ended(store, id_, outcome, **result):
    await store.enqueue([job(id_)])
    (held,) = (await store.claim(claiming("acme", 1))).jobs
    await store.finish([Finish(held.key, held.token, outcome, **result)])
    return held


async def fill(store):
    """Jobs in all states, few enough that most changes empty a key. One that is leased is answered."""
    await ended(store, "failed", "fail", error=AttemptError("E", "no"))
    await ended(store, "done", "complete", result=Result(b"1"))
    await ended(store, "blob", "complete", result=Result(b"", blob="name"))
    await store.purge([Purge(key("blob"))])  # Its name waits for the pruner.
    await store.enqueue([job("canceled", LARGE)])
    await store.cancel([Cancel(key("canceled"))])
    await store.pause("other", QUEUE, paused=True)
    await store.enqueue([job("held")])
    (held,) = (await store.claim(claiming("acme", 1))).jobs
    await store.enqueue([job("waiting"), job("waiting", tenant="third")])
    return held


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_refused_as_a_whole_while_its_slot_moves(cluster, prefix, change):
    """All keys are still here, so a script would get as far as the first one that it has emptied itself."""
    store = await open_store(cluster.url(shards=1, prefix=prefix))
    held = await fill(store)
    slot = key_slot(f"{prefix}:{{0}}:c".encode())
    with slot_on_its_way(cluster, slot) as node:
        keys = sorted(node.command("CLUSTER", "GETKEYSINSLOT", slot, 1000))
        before = {name: node.command("DUMP", name) for name in keys}
        with pytest.raises(StoreUnavailable, match="moving to another node"):
            await CHANGES[change](store, held)
        assert {name: node.command("DUMP", name) for name in keys} == before
        assert sorted(node.command("CLUSTER", "GETKEYSINSLOT", slot, 1000)) == keys
    await CHANGES[change](store, held)
    await store.close()
