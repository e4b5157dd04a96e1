"""Values, transactions and windows stay within FoundationDB's limits, and nothing hides behind them."""

from holdfast.core.job import AttemptError, ClaimRequest, Finish, Finished, JobKey, JobState, Purge, Result
from holdfast.core.listing import ListQuery
from holdfast.stores.foundationdb.database import TRANSACTION_TOO_LARGE
from tests.stores.load import new

TENANT, QUEUE = "t", "q"
REQUEST = ClaimRequest(TENANT, (QUEUE,), 16, 30_000, "w")
LIMIT = 256 * 1024


async def test_payloads_results_and_errors_over_the_limit_of_a_value_are_kept_in_pieces(cluster):
    """FoundationDB takes 100,000 bytes for a value. They come back whole, and leave nothing behind."""
    database = cluster()
    store = await database.handle(test_clock=1)
    nothing = len(database)
    payload, result = bytes(range(256)) * 1024, b"r" * LIMIT
    errors = [AttemptError("E", "m" * 1_000, "t" * 60_000) for _ in range(3)]
    await store.enqueue([new("job", payload, tenant=TENANT, queue=QUEUE, max_attempts=9)])
    for error in errors:
        (job,) = (await store.claim(REQUEST)).jobs
        assert job.envelope.payload == payload
        await store.finish([Finish(job.key, job.token, "retry", error=error, delay_ms=0)])
    (job,) = (await store.claim(REQUEST)).jobs
    await store.finish([Finish(job.key, job.token, "complete", result=Result(result))])
    (ended,) = await store.get([job.key])
    assert ended.envelope.payload == payload
    assert ended.result.data == result
    assert [error.traceback for error in ended.errors] == [error.traceback for error in errors]
    assert all(len(value) < 100_000 for _, value in database.pairs())
    await store.purge([Purge(job.key)])
    await store.shift_clock(8 * 24 * 3_600_000)
    await store.prune(100)
    await store.prune(100)
    keys = store._transactions.keys
    assert not database.pairs(keys.job(job.key), keys.job(job.key) + b"\xff")
    assert not database.pairs(keys.payload(job.key), keys.payload(job.key) + b"\xff")
    assert len(database) < nothing + 40


async def test_a_batch_over_the_limit_of_a_transaction_is_cut(cluster):
    """60 payloads of 256 KiB are 15 MiB; a transaction takes 10 MB."""
    store = await cluster().handle()
    payload = b"p" * LIMIT
    answers = await store.enqueue([new(f"{n:02}", payload, tenant=TENANT, queue=QUEUE) for n in range(60)])
    assert [answer.id for answer in answers] == [f"{n:02}" for n in range(60)]
    (stats,) = await store.stats(TENANT, [QUEUE])
    assert stats.counts[JobState.READY] == 60
    claimed = (await store.claim(ClaimRequest(TENANT, (QUEUE,), 60, 30_000, "w"))).jobs
    assert [job.id for job in claimed] == [f"{n:02}" for n in range(60)]


async def test_a_batch_that_the_cluster_finds_too_large_is_halved(cluster):
    database = cluster()
    store = await database.handle()
    for _ in range(2):
        database.fail_commit(TRANSACTION_TOO_LARGE)
    answers = await store.enqueue([new(f"{n:02}", tenant=TENANT, queue=QUEUE) for n in range(8)])
    assert len(answers) == 8
    page = await store.list(ListQuery(TENANT, QUEUE))
    assert [job.id for job in page.jobs] == [f"{n:02}" for n in range(8)]


async def test_leased_jobs_do_not_fill_the_window_of_a_claim(cluster):
    """A claim of 16 finds the 17th job, whatever was leased or is due later before it. [CLAIM-2]"""
    store = await cluster().handle()
    await store.enqueue([new(f"{n:03}", tenant=TENANT, queue=QUEUE) for n in range(40)])
    await store.enqueue([new(f"later-{n}", tenant=TENANT, queue=QUEUE, delay_ms=60_000, priority=9) for n in range(40)])
    got = [job.id for _ in range(3) for job in (await store.claim(REQUEST)).jobs]
    assert got == [f"{n:03}" for n in range(40)]


async def test_an_attempt_counts_also_if_its_lease_expires(cluster):
    """A job whose worker dies each time is a dead letter in the end. [RETRY-1]"""
    store = await cluster().handle(test_clock=1)
    await store.enqueue([new("job", tenant=TENANT, queue=QUEUE, max_attempts=3)])
    for attempt in (1, 2, 3):
        (job,) = (await store.claim(REQUEST)).jobs
        assert job.attempts == attempt
        await store.shift_clock(3_600_000)
        await store.reap(10, 0.0)
        await store.shift_clock(3_600_000)
    (job,) = await store.get([JobKey(TENANT, QUEUE, "job")])
    assert (job.state, job.reason) == (JobState.FAILED, "lease_expired")


async def test_jobs_of_one_instant_and_one_number_do_not_collide(cluster, monkeypatch):
    """Two processes may take the same sequence number: the id is part of every index."""
    store = await cluster().handle(test_clock="frozen")
    monkeypatch.setattr("holdfast.stores.foundationdb.numbers.take", lambda place, version, count: [8] * count)
    await store.enqueue([new(name, tenant=TENANT, queue=QUEUE) for name in ("a", "b", "c")])
    jobs = (await store.claim(REQUEST)).jobs
    assert sorted(job.id for job in jobs) == ["a", "b", "c"]
    answers = await store.finish([Finish(job.key, job.token, "complete") for job in jobs])
    assert answers == [Finished(JobState.COMPLETED)] * 3
