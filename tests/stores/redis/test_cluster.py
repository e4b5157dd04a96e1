"""The store on a cluster with a dead node."""

import pytest

from holdfast import StoreUnavailable
from holdfast.core.job import ClaimRequest, Envelope, JobKey, NewJob
from holdfast.opening import open_store
from holdfast.testing.servers import ValkeyCluster

TENANTS = [f"tenant-{number}" for number in range(30)]


def new(tenant):
    return NewJob(JobKey(tenant, "q", "job"), Envelope("t", b"{}", request_id=f"r-{tenant}"))


async def test_a_dead_node_does_not_affect_the_others():
    with ValkeyCluster(3, cluster_require_full_coverage=False) as cluster:
        store = await open_store(f"{cluster.url(shards=16, timeout_s=1, connect_timeout_s=1)}")
        await store.enqueue([new(tenant) for tenant in TENANTS])
        cluster.nodes[0].kill()
        reachable = set()
        for tenant in TENANTS:
            try:
                await store.stats(tenant, ["q"])
                reachable.add(tenant)
            except StoreUnavailable:
                pass
        assert 0 < len(reachable) < len(TENANTS)
        claimed = await store.claim(ClaimRequest(None, ("q",), len(TENANTS), 30_000, "w"))
        assert {job.tenant for job in claimed.jobs} == reachable
        assert claimed.next_at is not None
        assert claimed.next_at <= claimed.now + 1000
        await store.reap(100, 0.5)
        await store.close()


async def test_a_cluster_that_is_down_is_an_error():
    with ValkeyCluster(3) as cluster:
        store = await open_store(cluster.url(timeout_s=1, connect_timeout_s=1))
        for node in cluster.nodes:
            node.kill()
        with pytest.raises(StoreUnavailable):
            await store.claim(ClaimRequest(None, ("q",), 1, 30_000, "w"))
        await store.close()
