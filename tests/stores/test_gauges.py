"""The gauges of a store say what its `stats` say, on every store."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import AttemptError, Finish, JobState
from holdfast.core.names import GAUGES, OPERATOR
from holdfast.maintenance import Maintenance, gauges
from holdfast.maintenance.handlers import system_handlers
from holdfast.store import ListQuery
from holdfast.telemetry import gauges as exported
from holdfast.telemetry.gauges import MAX_EXPIRED, STATES
from tests.eventually import eventually
from tests.stores.load import new, wish

TENANTS = ("acme", "globex")
QUEUES = ("mail", "other")


@pytest.fixture(params=["memory", "file", "valkey", "postgres"])
def kind(request):
    return request.param


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(gauges, "MIN_PAUSE_S", 0.01)
    yield
    exported.disable()


@asynccontextmanager
async def maintaining(store, monkeypatch, **options):
    """Maintenance with gauges of its own, as in a process of its own, in the block. Gives their values."""
    registry = CollectorRegistry()
    with monkeypatch.context() as patch:
        patch.setattr(exported, "current", None)
        made = exported.enable(registry, every_s=0.0, **options)
        # The handlers are chosen here: what it exports need not stay `current`.
        maintenance = Maintenance(store)
    task = asyncio.create_task(maintenance.run())
    made.value = lambda name, **labels: registry.get_sample_value(f"holdfast_{name}", labels)
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


async def fill(store):
    """Jobs in every state, for two tenants in two queues. Expired leases last: a claim would end them."""
    for tenant in TENANTS:
        for queue in QUEUES:
            await store.enqueue([new(f"soon-{n}", tenant=tenant, queue=queue) for n in range(9)])
            await store.enqueue([new(f"later-{n}", tenant=tenant, queue=queue, delay_ms=3_600_000) for n in range(2)])
    for tenant in TENANTS:
        options = {"tenant": tenant, "queues": ("mail",)}
        jobs = (await store.claim(wish(4, **options, lease_ms=3_600_000))).jobs
        error = AttemptError("ValueError", "no")
        await store.finish([Finish(job.key, job.token, "fail", error=error) for job in jobs[:2]])
        await store.finish([Finish(jobs[2].key, jobs[2].token, "retry", error=error, delay_ms=3_600_000)])
    await store.claim(wish(3, tenant="globex", queues=("mail",), lease_ms=1_000))
    await store.shift_clock(2_000)


async def summed(store, tenants=TENANTS):
    """The stats of some tenants, by queue and state, and the age of the oldest ready job."""
    found, oldest = {}, {}
    for tenant in tenants:
        for stats in await store.stats(tenant):
            for state in STATES:
                key = stats.queue, state
                found[key] = found.get(key, 0) + stats.counts[state]
            age = 0 if stats.oldest_ready_at is None else (stats.now - stats.oldest_ready_at) / 1000
            oldest[stats.queue] = max(oldest.get(stats.queue, 0), age)
    return found, oldest


async def test_a_round_equals_the_stats_at_rest(store):
    await fill(store)
    counts, oldest = await summed(store)
    found = await gauges.read(store, ("acme", "nobody"))
    _, oldest_after = await summed(store)
    assert {(name, state): one.jobs[state] for name, one in found.queues.items() for state in STATES} == counts
    assert {counts["mail", state] for state in STATES} == {7, 4, 5, 2}
    for name in QUEUES:
        assert oldest[name] <= found.queues[name].oldest_ready_s <= oldest_after[name]
    assert {name: one.expired_leases for name, one in found.queues.items()} == {"mail": 3, "other": 0}

    assert found.tenants["nobody"].jobs.total() == 0
    acme, _ = await summed(store, ["acme"])
    by_state = {state: sum(acme[queue, state] for queue in QUEUES) for state in STATES}
    assert dict(found.tenants["acme"].jobs) == by_state


async def test_expired_leases_are_counted_up_to_a_bound(store):
    await store.enqueue([new(f"{n}") for n in range(MAX_EXPIRED + 20)])
    await store.claim(wish(MAX_EXPIRED - 5, lease_ms=1_000))
    await store.claim(wish(5, lease_ms=3_600_000))
    await store.shift_clock(2_000)
    assert await gauges.expired_leases(store, "acme", "mail") == MAX_EXPIRED - 5
    await store.reap(1_000, 0.5)
    await store.shift_clock(3_600_000)
    assert await gauges.expired_leases(store, "acme", "mail") == 5
    await store.claim(wish(MAX_EXPIRED + 15, lease_ms=1_000))
    await store.shift_clock(2_000)
    assert await gauges.expired_leases(store, "acme", "mail") == MAX_EXPIRED


async def test_under_load_every_round_is_as_new_as_the_last_interval(store, monkeypatch):
    """Jobs only come: a round that begins after one look and is seen before another is between the two."""
    stop = asyncio.Event()

    async def load():
        for n in range(100_000):
            await store.enqueue([new(f"{n}-{part}") for part in range(5)])
            if stop.is_set():
                return

    async with maintaining(store, monkeypatch) as made:
        loading = asyncio.create_task(load())
        for _ in range(3):
            (low,), began = await store.stats("acme", ["mail"]), time.monotonic()
            await eventually(lambda began=began: made.published is not None and made.published.started_at > began)
            shown = made.value("queue_jobs", queue="mail", state="ready") or 0  # None: no job had come when it began.
            (high,) = await store.stats("acme", ["mail"])
            assert low.counts[JobState.READY] <= shown <= high.counts[JobState.READY]
        stop.set()
        await loading


async def test_one_process_exports_and_another_takes_over(store, monkeypatch):
    await store.enqueue([new("x")])
    async with maintaining(store, monkeypatch) as second:
        sibling = await store.sibling()
        async with maintaining(sibling, monkeypatch) as first:
            await eventually(lambda: [one.published is not None for one in (first, second)].count(True) == 1)
            leader, other = (first, second) if first.published else (second, first)
            seen = leader.published
            await eventually(lambda: leader.published is not seen)
            assert leader.value("queue_jobs", queue="mail", state="ready") == 1
            assert other.value("queue_jobs", queue="mail", state="ready") is None
            assert other.value("gauges_age_seconds") is None
        # The first has ended, whether it led or not.
        if sibling is not store:
            await sibling.close()
        await eventually(lambda: second.published is not None)
        assert first.published is None
        assert second.value("queue_jobs", queue="mail", state="ready") == 1


async def test_the_system_job_is_nowhere_in_the_numbers(store, monkeypatch):
    await store.enqueue([new("x")])
    async with maintaining(store, monkeypatch, tenants=["acme"]) as made:
        await eventually(lambda: made.published is not None)
        assert list(made.published.queues) == ["mail"]
        assert made.value("tenant_jobs", tenant="acme", state="ready") == 1
        page = await store.list(ListQuery(OPERATOR, GAUGES))
        assert [(job.id, job.state) for job in page.jobs] == [("gauges", JobState.LEASED)]
    page = await store.list(ListQuery(OPERATOR, GAUGES))
    assert [job.state for job in page.jobs] == [JobState.READY], "released for another process"


async def test_a_job_that_lost_too_many_leases_is_enqueued_again(store):
    await gauges.ensure_job(store)
    (job,) = (await store.claim(wish(1, tenant=OPERATOR, queues=(GAUGES,)))).jobs
    await store.finish([Finish(job.key, job.token, "fail", error=AttemptError("LeaseExpired", "crashed"))])
    await gauges.ensure_job(store)
    await gauges.ensure_job(store)
    (job,) = (await store.claim(wish(10, tenant=OPERATOR, queues=(GAUGES,)))).jobs
    assert job.attempts == 1


@pytest.mark.parametrize("kind", ["memory"])
async def test_the_numbers_stay_and_age_while_the_store_is_away(store, monkeypatch):
    await store.enqueue([new("x")])
    real, asked = store.tenant_page, asyncio.Event()

    async def away(*_):
        asked.set()
        raise StoreUnavailable("gone")

    async with maintaining(store, monkeypatch) as made:
        await eventually(lambda: made.published is not None)
        store.tenant_page = away
        await asked.wait()
        kept = made.published
        assert kept is not None
        age = made.value("gauges_age_seconds")
        await eventually(lambda: made.value("gauges_age_seconds") > age)
        assert made.published is kept
        store.tenant_page = real
        await eventually(lambda: made.published is not kept)


@pytest.mark.parametrize("kind", ["memory"])
async def test_a_round_asks_as_often_for_many_jobs_as_for_one(store):
    asked = []

    def counting(name):
        real = getattr(store, name)

        async def call(*args):
            asked.append(name)
            return await real(*args)

        setattr(store, name, call)

    for name in ("tenant_page", "queue_page", "list", "get", "events"):
        counting(name)
    await store.enqueue([new("x")])
    await gauges.read(store)
    few, asked[:] = asked.copy(), []
    await store.enqueue([new(f"{n}") for n in range(2_000)])
    await store.claim(wish(1_000))
    await gauges.read(store)
    # One more, for the leases of the queue.
    assert (few, asked) == (["tenant_page", "queue_page"], ["tenant_page", "queue_page", "list"])


def test_a_worker_of_one_tenant_does_not_read_the_others():
    exported.enable(CollectorRegistry())
    assert GAUGES in system_handlers(None)
    assert GAUGES not in system_handlers("acme")
    exported.disable()
    assert GAUGES not in system_handlers(None)
