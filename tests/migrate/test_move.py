"""Moves between real stores: what arrives, what stays, and what is refused."""

from __future__ import annotations

import pytest

from holdfast.core.job import JobState
from holdfast.migrate.mover import Plan, move
from holdfast.store import TenantSettings
from tests.migrate.filling import HOUR, RICH, TENANT, both, fill, names, run_all, waiting

WAYS = [("file_url", "valkey_url"), ("valkey_url", "postgres_url"), ("postgres_url", "file_url")]


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: "-to-".join(way.partition("_")[0] for way in ways))
async def test_what_waits_moves_whole_and_in_order(ways, request):
    source, target = (request.getfixturevalue(name) for name in ways)
    async with both(source, target) as (here, there):
        await fill(here)
        await here.set_tenant(TENANT, TenantSettings(None, 2.5, 1000))
        await here.pause(TENANT, "video", paused=True)
        before = await names(here, "mail", "video", "odd")
        visible = {job.id: job.visible_at for job in await waiting(here, "video")}
        done = await move(Plan(source, target, TENANT))
        assert done.jobs == 16
        assert done.left == 0
        assert all(one.source_sum == one.target_sum for one in done.queues)
        assert {one.queue: one.jobs for one in done.queues if one.jobs} == {"mail": 13, "video": 2, "odd": 1}
        assert await names(there, "mail", "video", "odd") == before
        assert await names(here, "mail", "video", "odd") == {"mail": [], "video": [], "odd": []}
        rich, late = await waiting(there, "video")
        assert rich.envelope.payload == RICH.payload
        assert (rich.envelope.idempotency, rich.envelope.headers) == (RICH.idempotency, RICH.headers)
        assert (rich.envelope.backoff, rich.envelope.timeout_ms) == (RICH.backoff, RICH.timeout_ms)
        assert {job.id: job.visible_at for job in (rich, late)} == visible
        (again,) = await waiting(there, "odd")
        assert (again.envelope.max_attempts, again.envelope.backoff.base_ms) == (3, 10_000)
        assert (await there.tenant_settings(TENANT))[0] == TenantSettings(None, 2.5, 1000)
        paused = {one.queue for one in await there.stats(TENANT) if one.paused}
        assert paused == {"video"}
        assert {one.queue for one in await here.stats(TENANT) if one.paused} == {"video"}
        assert await run_all(there, "mail") == before["mail"][:-1]
        await there.shift_clock(2 * HOUR)
        assert await run_all(there, "mail", "odd") == ["later", "again"]
        assert (await here.stats(TENANT, ["odd"]))[0].counts[JobState.COMPLETED] == 1
