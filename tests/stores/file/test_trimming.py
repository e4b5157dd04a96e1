"""The bounds of a log that a check cannot reach: the hard level, and how much one call looks at."""

import pytest

from holdfast.core.job import Envelope, JobKey, NewJob
from holdfast.ids import new_id
from holdfast.opening import open_store
from holdfast.store import Reader
from holdfast.stores.file import trimming
from holdfast.tables import log


@pytest.fixture(params=["memory", "file"])
def url(request, fast):
    return {"memory": f"memory:{fast.name}-hard", "file": f"file:{fast}/hard"}[request.param] + "?keep_events=0"


async def add(store, tenant, count, batch=5):
    for _ in range(0, count, batch):
        await store.enqueue([NewJob(JobKey(tenant, "q", new_id()), Envelope("t", b"")) for _ in range(batch)])


async def test_a_reader_keeps_its_tenants_events_up_to_the_hard_level(url, monkeypatch):
    """[EVENT-2]"""
    for module in (log, trimming):
        monkeypatch.setattr(module, "EVENTS_BOUND", 50)
    store = await open_store(url)
    start = await store.last_offset()
    for tenant in ("a", "b", "c"):
        await store.set_reader(Reader(tenant, "slow", start))
    await add(store, "a", 10)
    await add(store, "b", 100)
    await add(store, "a", 5)
    await add(store, "d", 5)
    while (await store.prune(100)).more:
        pass
    kept = [(await store.usage(tenant)).events for tenant in ("a", "b", "d")]
    # By the hard level, 15 of a and 5 of d leave 30 for b. No reader waits for d: the soft level applies.
    assert kept == [15, 30, 0]
    await store.close()


async def test_a_trim_scans_a_bounded_part_and_the_next_continues(fast, monkeypatch):
    """Kept events of other tenants are not scanned again by every call."""
    monkeypatch.setattr(trimming, "TRIM", 100)
    monkeypatch.setattr(trimming, "BATCH", 3)
    store = await open_store(f"file:{fast}/bounded?keep_events=60")
    for round_ in range(20):
        await add(store, "quiet", 2, 2)
        await add(store, "loud", 20 + round_, 1)
    calls = 0
    while (pruned := await store.prune(100)).more:
        calls += 1
        assert pruned.events <= 100
    assert calls > 10
    assert [(await store.usage(tenant)).events for tenant in ("quiet", "loud")] == [30, 30]
    for _ in range(3):
        await add(store, "loud", 7, 1)
        gone = 0
        for _ in range(2):  # It goes on at its own cut: two calls are enough.
            gone += (await store.prune(100)).events
        assert gone == 7
    await store.close()
