"""Tenants: their settings, pauses and usage, and the workers that serve them. [TENANT-4, TENANT-5]"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict, replace

from holdfast.core import fairness
from holdfast.core.budgets import Budgets, Usage
from holdfast.core.names import check_id
from holdfast.paging import name_cursor
from holdfast.store import PAGE_LIMIT, TenantSettings, WorkerInfo, WorkerPage
from holdfast.stores.redis.keys import lane_of
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.shards import Shards

_decode_worker = msgspec.json.Decoder(WorkerInfo).decode


async def pause(shards: Shards, tenant: str, queue: str, *, paused: bool) -> None:
    """Pause or resume a queue."""
    await shards.run("pause", shards.of(tenant), encode((lane_of(tenant, queue), paused)))


async def set_tenant(shards: Shards, tenant: str, settings: TenantSettings) -> None:
    """Change settings; None leaves a setting as it is."""
    field = "t" if settings.queue is None else f"q{settings.queue}"
    weight = False if settings.weight is None else settings.weight
    cost = False if settings.weight is None else fairness.cost(settings.weight)
    max_waiting = False if settings.max_waiting is None else settings.max_waiting
    budgets = {name: value for name, value in asdict(settings.budgets or Budgets()).items() if value is not None}
    request = encode(("set", tenant, field, cost, weight, max_waiting, budgets))
    # The first call stores the settings. A new quota also needs the number of the tenant's waiting jobs: each further
    # call counts some of its queues, until the script says that all are counted.
    while not await shards.run("settings", shards.of(tenant), request):
        request = encode(("count", tenant))


async def tenant_settings(shards: Shards, tenant: str) -> Sequence[TenantSettings]:
    """The settings of a tenant and its queues."""
    found = await shards.run("settings", shards.of(tenant), encode(("get", tenant)))
    settings: list[TenantSettings] = []
    for field, raw in zip(found[::2], found[1::2], strict=True):
        _, weight, max_waiting, budgets = msgspec.msgpack.decode(raw)
        settings.append(
            TenantSettings(
                None if field == b"t" else field[1:].decode(),
                None if weight is False else float(weight),
                None if max_waiting is False else max_waiting,
                Budgets(**budgets) if budgets else None,
            )
        )
    return sorted(settings, key=lambda setting: setting.queue or "")


async def usage(shards: Shards, tenant: str) -> Usage:
    """What a tenant keeps, as of the last upkeep."""
    return Usage(*await shards.run("usage", shards.of(tenant), encode((tenant,))))


async def beat(shards: Shards, worker: WorkerInfo, ttl_ms: int) -> None:
    """Note that a worker is alive; with 0, that it has left."""
    description = msgspec.json.encode(worker).decode()
    await shards.run("workers", 0, encode(("beat", worker.worker_id, description, ttl_ms)))


async def worker_page(shards: Shards, tenant: str | None, cursor: str | None, limit: int) -> WorkerPage:
    """Some of the live workers that serve a tenant, or any."""
    request = encode(("list", name_cursor(cursor, check_id), min(limit, PAGE_LIMIT)))
    following, *found = await shards.run("workers", 0, request)
    workers: list[WorkerInfo] = []
    for at in range(0, len(found), 3):
        started_at, seen_at, description = found[at : at + 3]
        worker = replace(_decode_worker(description), started_at=started_at, seen_at=seen_at)
        if tenant is None or worker.tenant in (None, tenant):
            workers.append(worker)
    return WorkerPage(workers, following.decode() or None)
