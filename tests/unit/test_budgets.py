"""What a process knows of a tenant's budgets, when reads and changes overlap."""

import asyncio

from holdfast.core.budgets import Budgets, TenantSettings
from holdfast.core.errors import QuotaExceeded
from holdfast.opening import open_store
from holdfast.queue.queue import Queue


async def test_a_slow_read_of_budgets_does_not_undo_a_change_made_meanwhile(monkeypatch):
    store = await open_store("memory:slow-read-of-budgets")
    async with Queue(store=store, tenant="acme") as queue:
        read = store.tenant_settings
        has_read, changed = asyncio.Event(), asyncio.Event()

        async def slow_read(tenant):
            found = await read(tenant)
            has_read.set()
            await changed.wait()
            return found

        monkeypatch.setattr(store, "tenant_settings", slow_read)
        slow = asyncio.create_task(store.enforcer.refresh("acme"))
        await has_read.wait()
        monkeypatch.setattr(store, "tenant_settings", read)
        await store.set_tenant("acme", TenantSettings(budgets=Budgets(max_jobs=1)))
        changed.set()
        await slow
        await queue.enqueue({"n": 1})
        (refused,) = await queue.enqueue_many([{"n": 2}], on_refused="return")
        assert isinstance(refused.error, QuotaExceeded)
