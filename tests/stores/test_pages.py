"""A list looks at a bounded number of names, whatever it finds: a page may be empty and have a cursor. [TENANT-1]"""

import pytest

from holdfast.core.job import Cancel, JobKey, Purge
from holdfast.opening import open_store
from holdfast.paging import QUEUES_READ
from holdfast.store import PAGE_LIMIT, TenantSettings
from tests.stores.load import new

MANY = QUEUES_READ + 2 * PAGE_LIMIT
TENANT = "acme"


@pytest.fixture(params=["valkey", "postgres", "file"])
def kind(request):
    return request.param


async def test_queues_without_jobs_are_skipped_in_bounded_reads(plain_url):
    store = await open_store(plain_url)
    names = [f"q-{number:05}" for number in range(MANY)]
    keys = [JobKey(TENANT, name, "job") for name in names]
    await store.enqueue([new("job", tenant=TENANT, queue=name) for name in names])
    await store.enqueue([new("job", tenant="zeta")])
    await store.set_tenant("beta", TenantSettings(weight=2.0))
    await store.cancel([Cancel(key) for key in keys[:-1]])
    await store.purge([Purge(key) for key in keys[:-1]])

    page = await store.queue_page(TENANT)
    assert (page.queues, page.cursor) == ([], names[PAGE_LIMIT - 1])
    assert [stats.queue for stats in await store.stats(TENANT)] == [names[-1]]

    page = await store.tenant_page()
    assert page.tenants == []
    assert page.cursor is not None
    assert await store.tenants() == [TENANT, "beta", "zeta"]
    await store.close()
