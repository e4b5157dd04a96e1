"""The line is cut at each round trip of each call: before the server hears of it, or after it has done it.

Invariants verified:
- an enqueue that is repeated, by the store or by the caller with the same request, is queued once and says so [ENQ-8]
- an acknowledgement that is repeated gets the first answer again, with no second event [LEASE-1]
- of every other call too: done once, one event, also when it is repeated; also when the reply to a COMMIT is lost
- a claim is never repeated: its lost reply costs one lease, never a job [ENQ-8, LEASE-3]
- under load with cuts at random nothing is lost and nothing doubled
"""

import contextlib
from typing import NamedTuple

import pytest

from holdfast import Queue
from holdfast.core.errors import NotReplayable, StoreUnavailable
from holdfast.core.job import (
    AttemptError,
    Cancel,
    Extend,
    Extended,
    Finish,
    Finished,
    IdempotencyKey,
    JobState,
    Progress,
    Purge,
    Queued,
    Replayed,
    Report,
    Reported,
    Result,
    SetResultTtl,
)
from holdfast.store import TenantSettings
from tests.chaos import ledger
from tests.chaos.workers import notes
from tests.eventually import eventually
from tests.stores.load import (
    LEASE_MS,
    claim_one,
    complete,
    drained,
    end_gently,
    key,
    kinds,
    new,
    seeded,
    under_way,
    wish,
)

BOOM = AttemptError("Boom", "it broke")
MOST = 40
"""No call has that many round trips."""


class Line(NamedTuple):
    meant: bytes
    """What is in a request that may be cut."""
    share: float
    """How many of those are cut under load."""
    many: int
    steps: int


LINES = {"valkey": Line(b"EVALSHA", 1 / 15, 300, 300), "postgres": Line(b"", 1 / 30, 50, 150)}


@pytest.fixture
def line(kind, backend):
    backend.load_scripts()
    return LINES[kind]


class Cuts:
    """One call after the other, cut at its first round trip, at its second and so on, until one comes through."""

    def __init__(self, proxy, how, meant):
        self._proxy = proxy
        self._cut = proxy.cut_replies if how == "replies" else proxy.cut_requests
        self._meant = meant

    @property
    def _count(self):
        counts = self._proxy.counts
        return counts.replies_cut + counts.requests_cut

    async def insist(self, call):
        """The answer of a call that is repeated by the caller if the store does not; and how often it was made."""
        times = 0
        while True:
            times += 1
            try:
                return await call(), times
            except StoreUnavailable:
                assert times == 1, "it fails although the line is whole again"

    async def each(self, prepare, call, check):
        """`prepare(n)` gives what `call` gets; `check` gets that, the answer, and how often it was asked for."""
        for n in range(1, MOST):
            thing = await prepare(n)
            before = self._count
            self._cut(self._meant, after=n)
            answer, times = await self.insist(lambda thing=thing: call(thing))
            whole = self._count == before
            await self._proxy.heal()
            await check(thing, answer, times)
            if whole:
                assert n > 1, "it was never cut"
                return
        raise AssertionError("a call that has no end")


@pytest.fixture(params=["replies", "requests"])
def cuts(request, proxy, far, line):
    return Cuts(proxy, request.param, line.meant)


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize("many", [False, True])
async def test_an_enqueue_with_a_lost_reply_is_queued_once(cuts, far, store, judge, line, many, with_key):
    count = line.many if many else 1

    async def prepare(n):
        keys = [IdempotencyKey(f"k{n}-{m}") if with_key else None for m in range(count)]
        return [new(f"{n}-{m}", queue=f"q{n}", idempotency=key) for m, key in enumerate(keys)]

    async def check(items, answers, _):
        assert [(type(answer), answer.id) for answer in answers] == [(Queued, item.key.id) for item in items]
        # And again, much later, by a caller who has kept the request.
        assert await store.enqueue(items) == answers
        (stats,) = await store.stats("acme", [items[0].key.queue])
        assert stats.counts[JobState.READY] == count
        for item in items[:10]:
            assert await kinds(store, item.key) == ["enqueued"]

    await cuts.each(prepare, far.enqueue, check)
    await judge(store)


async def leased(store, n, **options):
    await store.enqueue([new(f"{n}", queue=f"q{n}")])
    return await claim_one(store, queues=(f"q{n}",), **options)


OUTCOMES = {
    "complete": (JobState.COMPLETED, "completed"),
    "fail": (JobState.FAILED, "failed"),
    "retry": (JobState.RETRYING, "retried"),
    "release": (JobState.READY, "released"),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_an_acknowledgement_with_a_lost_reply_is_accepted_once(cuts, far, store, judge, outcome):
    state, kind = OUTCOMES[outcome]
    error = BOOM if outcome in ("fail", "retry") else None

    async def prepare(n):
        job = await leased(store, n)
        return [Finish(job.key, job.token, outcome, Result(b"1") if state == "completed" else None, error, random=0.5)]

    async def check(items, answers, _):
        assert answers == await store.finish(items) == [Finished(state)]
        assert await kinds(store, items[0].key) == ["enqueued", "claimed", kind]
        (now,) = await store.get([items[0].key])
        assert (now.attempts, len(now.errors)) == (0 if outcome == "release" else 1, 1 if error else 0)

    await cuts.each(prepare, far.finish, check)
    await judge(store)


async def test_a_batch_of_acknowledgements_is_accepted_once(cuts, far, store, judge):
    async def prepare(n):
        await store.enqueue([new(f"{m}", queue=f"q{n}") for m in range(20)])
        return [complete(job) for job in (await store.claim(wish(20, queues=(f"q{n}",)))).jobs]

    async def check(items, answers, _):
        assert answers == [Finished(JobState.COMPLETED)] * 20
        (stats,) = await store.stats("acme", [items[0].key.queue])
        assert stats.counts[JobState.COMPLETED] == 20

    await cuts.each(prepare, far.finish, check)
    await judge(store)


async def test_a_lease_is_extended(cuts, far, store, judge):
    async def prepare(n):
        return await leased(store, n, lease_ms=5_000)

    async def check(job, answers, _):
        assert isinstance(answers[0], Extended)
        assert job.deadline < answers[0].deadline <= await store.now() + LEASE_MS

    await cuts.each(prepare, lambda job: far.extend([Extend(job.key, job.token, LEASE_MS)]), check)
    await judge(store)


async def test_progress_is_reported(cuts, far, store):
    async def check(job, answers, _):
        assert isinstance(answers[0], Reported)
        (now,) = await store.get([job.key])
        assert (now.progress, now.token) == (Progress(0.25, "on"), job.token)

    report = Progress(0.25, "on")
    await cuts.each(lambda n: leased(store, n), lambda job: far.report([Report(job.key, job.token, report)]), check)


@pytest.mark.parametrize("running", [False, True])
async def test_a_cancel_cancels_once(cuts, far, store, judge, running):
    async def prepare(n):
        if running:
            return (await leased(store, n)).key
        await store.enqueue([new(f"{n}")])
        return key(f"{n}")

    async def check(key_, answers, _):
        assert answers == ["canceled"]
        assert await kinds(store, key_) == ["enqueued", *(["claimed"] if running else []), "canceled"]

    await cuts.each(prepare, lambda key_: far.cancel([Cancel(key_)]), check)
    await judge(store)


async def test_a_replay_replays_once(cuts, far, store, judge):
    async def prepare(n):
        job = await leased(store, n)
        await store.finish([Finish(job.key, job.token, "fail")])
        return job.key

    async def check(key_, answers, times):
        # A caller that repeats it itself may learn that the job is no dead letter any more.
        assert isinstance(answers[0], Replayed) or (times == 2 and isinstance(answers[0], NotReplayable))
        assert await kinds(store, key_) == ["enqueued", "claimed", "failed", "replayed"]
        (now,) = await store.get([key_])
        assert (now.state, now.attempts, now.replays) == (JobState.READY, 0, 1)

    await cuts.each(prepare, lambda key_: far.replay([key_]), check)
    await judge(store)


async def finished(store, n):
    job = await leased(store, n)
    await store.finish([complete(job)])
    return job.key


async def test_a_purge_forgets_once(cuts, far, store, judge):
    async def check(key_, answers, times):
        assert answers == ["purged"] or (times == 2 and answers == ["not_found"])
        assert await kinds(store, key_) == ["enqueued", "claimed", "completed", "purged"]

    await cuts.each(lambda n: finished(store, n), lambda key_: far.purge([Purge(key_)]), check)
    await judge(store, whole=False)


async def test_a_result_gets_its_time(cuts, far, store):
    async def check(key_, answers, _):
        assert answers == ["updated"]
        (now,) = await store.get([key_])
        assert 0 < now.expires_at - await store.now() <= 5000

    await cuts.each(lambda n: finished(store, n), lambda key_: far.set_result_ttl([SetResultTtl(key_, 5000)]), check)


async def test_a_pause_and_settings_with_a_lost_reply_take_effect(cuts, far, store):
    async def prepare(n):
        await store.enqueue([new(f"{n}", queue=f"q{n}")])
        return f"q{n}"

    async def prepare_paused(n):
        await store.pause("acme", f"p{n}", paused=True)
        await store.enqueue([new(f"{n}", queue=f"p{n}")])
        return f"p{n}"

    async def is_paused(queue, *_):
        assert (await store.claim(wish(queues=(queue,)))).jobs == []

    async def goes_on(queue, *_):
        assert (await claim_one(store, queues=(queue,))).id == queue[1:]

    async def are_set(queue, *_):
        assert TenantSettings(queue, 3.0, 7) in await store.tenant_settings("acme")

    await cuts.each(prepare, lambda queue: far.pause("acme", queue, paused=True), is_paused)
    await cuts.each(prepare_paused, lambda queue: far.pause("acme", queue, paused=False), goes_on)
    await cuts.each(prepare, lambda queue: far.set_tenant("acme", TenantSettings(queue, 3.0, 7)), are_set)


async def test_reaping_continues_after_a_lost_reply(cuts, far, store, judge):
    async def prepare(n):
        await store.enqueue([new(f"{n}-{m}", queue=f"q{n}") for m in range(5)])
        held = (await store.claim(wish(5, queues=(f"q{n}",)))).jobs
        await store.shift_clock(LEASE_MS + 1)
        return held

    async def check(held, *_):
        for job in held:
            assert await kinds(store, job.key) == ["enqueued", "claimed", "expired"]

    await cuts.each(prepare, lambda _: far.reap(10, 0.0), check)
    await judge(store)


async def test_pruning_continues_after_a_lost_reply(cuts, far, store):
    async def prepare(n):
        canceled = [key(f"canceled-{n}-{m}") for m in range(5)]
        await store.enqueue([new(key_.id) for key_ in canceled])
        await store.cancel([Cancel(key_) for key_ in canceled])
        completed = await finished(store, n)
        await store.shift_clock(30 * 24 * 3_600_000)
        return [*canceled, completed]

    async def check(keys, *_):
        while (await store.prune(100)).more:
            pass
        assert await store.get(keys) == [None] * len(keys)
        # Their ids are free again.
        answers = await store.enqueue([new(key_.id, queue=key_.queue) for key_ in keys])
        assert {type(answer) for answer in answers} == {Queued}

    await cuts.each(prepare, lambda _: far.prune(10), check)


async def test_a_lost_claim_costs_a_lease_but_never_a_job(proxy, far, store, judge, line):
    """Cut at each round trip: either no job was leased, or all are, and are claimable again after the lease."""
    lost = 0
    for n in range(1, MOST):
        queue, ids = f"q{n}", [f"{m}" for m in range(10)]
        await store.enqueue([new(id_, queue=queue) for id_ in ids])
        # PostgreSQL's hint of the last claim goes by itself, and would be cut instead.
        notifier = getattr(getattr(far, "_transactions", None), "notifier", None)
        await eventually(lambda notifier=notifier: getattr(notifier, "_sending", None) is None)
        before = proxy.counts.replies_cut
        proxy.cut_replies(line.meant, after=n)
        jobs = None
        with contextlib.suppress(StoreUnavailable):
            jobs = (await far.claim(wish(10, queues=(queue,)))).jobs
        whole = proxy.counts.replies_cut == before
        await proxy.heal()
        now = await store.get([key(id_, queue=queue) for id_ in ids])
        if jobs is None:
            assert {(job.state, job.attempts) for job in now} in ({(JobState.LEASED, 1)}, {(JobState.READY, 0)})
            leased = now[0].state is JobState.LEASED
            lost += leased
            if leased:
                assert (await far.claim(wish(10, queues=(queue,)))).jobs == []
            await store.shift_clock(LEASE_MS + 1)
            await store.reap(1000, 0.0)
            await store.shift_clock(600_000)
            again = (await far.claim(wish(10, queues=(queue,)))).jobs
            assert sorted(job.id for job in again) == ids
            assert {job.attempts for job in again} == {1 + leased}
            assert min(job.token for job in again) > max(job.token for job in now)
            jobs = again
        assert sorted(job.id for job in jobs) == ids
        await store.finish([complete(job) for job in jobs])
        if whole:
            break
    assert lost > 0, "the round trip that leases was never cut"
    await judge(store)


async def test_a_queue_repeats_an_enqueue_with_a_lost_reply(proxy, far_url, store, line):
    async with Queue(far_url, tenant="acme") as queue:
        for n in range(1, 6):
            proxy.cut_replies(line.meant, after=n)
            assert (await queue.enqueue({}, id=f"{n}")).status == "queued"
            assert [ticket.status for ticket in await queue.enqueue_many([{}] * 50)] == ["queued"] * 50
        assert proxy.counts.replies_cut > 1
    (stats,) = await store.stats("acme", ["default"])
    assert stats.counts[JobState.READY] == 5 * 51


async def test_random_cuts_under_load_lose_and_duplicate_no_job(zygote, proxy, far_url, store, judge, line, log):
    """Producers and workers in processes of their own, which lose one reply after the other."""
    chance = seeded()
    url = far_url.removesuffix("&connect_timeout_s=1")
    producers = [await zygote.start(url, role="produce", log=log, name=f"p{n}") for n in range(2)]
    workers = [await zygote.start(url, log=log, lease_s=1, concurrency=4) for _ in range(2)]
    await under_way(log, producers, workers)
    proxy.cut_replies(when=lambda chunk: line.meant in chunk and chance.random() < line.share, times=None)
    await eventually(lambda: proxy.counts.replies_cut > 60, patience_s=60)
    await proxy.heal()
    await end_gently(zygote, *producers)
    counts = await drained(store, "acme", "default", step_ms=300, patience_s=60)
    await end_gently(zygote, *workers)
    ids = [id_ for id_, *_ in notes(log, "queued")]
    assert len(ids) == len(set(ids))
    jobs = {k.id: job for k, job in (await judge(store)).items()}
    assert counts == {JobState.COMPLETED: len(jobs)}
    # What was acknowledged is there, and beside it at most the one that each producer was at when it ended.
    assert set(ids) <= set(jobs)
    assert len(jobs) <= len(ids) + len(producers)
    await ledger.check(store, "acme", list(jobs))
    for id_, _, token, _ in notes(log, "completed"):
        assert jobs[id_].token == token, "an acknowledged completion was undone"
    effects = {(id_, fence) for id_, _, fence, _ in notes(log, "effect")}
    assert all((job.id, job.token) in effects for job in jobs.values())


async def test_every_call_survives_a_cut_anywhere(proxy, far, store, judge, line):
    """A random walk over all the calls of one handle with cuts in between: its answers stay true to the log."""
    chance = seeded()
    proxy.cut_replies(when=lambda _: chance.random() < 0.1, times=None)
    ids, held = [], {}

    async def settled(call):
        with contextlib.suppress(StoreUnavailable):
            return await call

    for step in range(line.steps):
        move = chance.randrange(8)
        if move <= 2:
            item = new(f"{step}", max_attempts=3)
            while await settled(far.enqueue([item])) is None:
                pass
            ids.append(item.key.id)
        elif move == 3:
            claimed = await settled(far.claim(wish(3, lease_ms=1000)))
            held |= {job.id: job for job in claimed.jobs} if claimed else {}
        elif move == 4 and held:
            _, job = held.popitem()
            outcome = chance.choice(["complete", "fail", "retry", "release"])
            await settled(far.finish([Finish(job.key, job.token, outcome, random=chance.random())]))
        elif move == 5 and ids:
            await settled(far.cancel([Cancel(key(chance.choice(ids)), only_waiting=chance.random() < 0.5)]))
        elif move == 6 and ids:
            await settled(far.replay([key(chance.choice(ids))]))
        elif held:
            job = chance.choice(list(held.values()))
            await settled(far.extend([Extend(job.key, job.token, 2000)]))
    assert proxy.counts.replies_cut > 20
    await proxy.heal()
    jobs = await judge(store)
    assert sorted(k.id for k in jobs) == sorted(ids)
