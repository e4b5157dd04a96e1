"""A commit with an unknown outcome is looked for in the log: nothing is done twice, and nothing is lost. [ENQ-8]"""

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import (
    Cancel,
    Extend,
    Finish,
    Finished,
    JobKey,
    JobState,
    Purge,
    Queued,
    Replayed,
    Result,
    SetResultTtl,
)
from holdfast.store import Reader
from holdfast.stores.foundationdb.database import CLUSTER_VERSION_CHANGED, COMMIT_UNKNOWN_RESULT
from tests.stores.load import new, wish

TENANT, QUEUE = "t", "q"
KEY = JobKey(TENANT, QUEUE, "job")


def item(id_="job", **envelope):
    """An enqueue without a request id: a repetition would be a duplicate."""
    return new(id_, tenant=TENANT, queue=QUEUE, request_id="", **envelope)


async def leased(store):
    await store.enqueue([item()])
    (job,) = (await store.claim(wish(tenant=TENANT, queues=(QUEUE,)))).jobs
    return job


async def kinds(store):
    return [event.kind for event in (await store.events(TENANT, None, 100)).events]


@pytest.fixture(params=[True, False], ids=["applied", "not applied"])
def applied(request):
    return request.param


@pytest.fixture
async def database(cluster):
    return cluster()


@pytest.fixture
async def store(database):
    return await database.handle(test_clock=1)


def fail(database, applied):
    database.fail_commit(COMMIT_UNKNOWN_RESULT, applied=applied)


async def test_an_enqueue_answers_queued_and_is_made_once(store, database, applied):
    fail(database, applied)
    assert await store.enqueue([item()]) == [Queued("job", JobState.READY)]
    assert await kinds(store) == ["enqueued"]


async def test_a_claim_is_made_once_and_its_jobs_are_returned(store, database, applied):
    await store.enqueue([item("a"), item("b")])
    fail(database, applied)
    (job,) = (await store.claim(wish(1, tenant=TENANT, queues=(QUEUE,)))).jobs
    assert (job.id, job.attempts) == ("a", 1)
    assert (await kinds(store)).count("claimed") == 1
    assert await store.finish([Finish(job.key, job.token, "complete")]) == [Finished(JobState.COMPLETED)]


@pytest.mark.parametrize("outcome", ["complete", "fail", "retry", "release"])
async def test_an_acknowledgement_is_made_once(store, database, applied, outcome):
    job = await leased(store)
    fail(database, applied)
    (answer,) = await store.finish([Finish(job.key, job.token, outcome, result=Result(b"1"))])
    assert isinstance(answer, Finished)
    assert len(await kinds(store)) == 3


async def test_an_extension_a_cancel_a_replay_and_a_purge_are_made_once(store, database, applied):
    job = await leased(store)
    fail(database, applied)
    (extended,) = await store.extend([Extend(KEY, job.token, 60_000)])
    assert extended.deadline == (await store.get([KEY]))[0].deadline
    await store.finish([Finish(KEY, job.token, "fail")])
    fail(database, applied)
    assert await store.replay([KEY]) == [Replayed()]
    fail(database, applied)
    assert await store.cancel([Cancel(KEY)]) == ["canceled"]
    fail(database, applied)
    assert await store.purge([Purge(KEY)]) == ["purged"]
    assert await kinds(store) == ["enqueued", "claimed", "failed", "replayed", "canceled", "purged"]
    assert [(count.tenant, count.count) for count in (await store.purge_counts(TENANT)).counts] == [(TENANT, 1)]


async def test_a_job_whose_ttl_is_cut_to_nothing_was_updated(store, database, applied):
    """A repetition no longer finds it."""
    job = await leased(store)
    await store.finish([Finish(KEY, job.token, "complete", result=Result(b"1"))])
    fail(database, applied)
    assert await store.set_result_ttl([SetResultTtl(KEY, 0)]) == ["updated"]
    assert await store.set_result_ttl([SetResultTtl(KEY, 0)]) == ["not_found"]


async def test_an_expired_lease_ends_once(store, database, applied):
    await leased(store)
    await store.shift_clock(60_000)
    fail(database, applied)
    assert (await store.reap(10, 0.0)).jobs == [KEY]
    assert await kinds(store) == ["enqueued", "claimed", "expired"]


async def test_a_shift_a_reader_and_the_name_of_a_blob_are_not_lost(store, database, applied):
    before = await store.now()
    fail(database, applied)
    await store.shift_clock(3_600_000)
    assert 3_600_000 <= await store.now() - before < 3_700_000
    await store.set_reader(Reader(TENANT, "r", await store.last_offset()))
    fail(database, applied)
    assert await store.drop_reader(TENANT, "r") is True
    job = await leased(store)
    await store.finish([Finish(KEY, job.token, "complete", result=Result(b"", blob="b/1"))])
    await store.purge([Purge(KEY)])
    fail(database, applied)
    assert (await store.prune(10)).blobs == ["b/1"]
    assert (await store.prune(10)).blobs == []


async def test_an_outcome_that_cannot_be_known_is_said_to_be_unknown(store, database):
    """After this error the commit may still be under way: it is not looked for, and not repeated."""
    database.fail_commit(CLUSTER_VERSION_CHANGED)
    with pytest.raises(StoreUnavailable, match="unknown whether the change was made"):
        await store.enqueue([item()])
