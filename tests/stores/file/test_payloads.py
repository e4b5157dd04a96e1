"""Large payloads stand in a table of their own: they come back whole, and go with their job."""

from __future__ import annotations

import random

import pytest

from holdfast.core.job import DAY, PAYLOAD_LIMIT, Backoff, Finish, Purge, Queued, Result
from holdfast.store import ListQuery
from holdfast.stores.file.rows import SMALL
from tests.stores.file.support import complete, key, look, new, opened, payload_of, wish

SIZES = (0, 1, SMALL - 1, SMALL, SMALL + 1, 4096, 65_537, PAYLOAD_LIMIT)
ORPHANS = "SELECT count(*) FROM payloads WHERE seq NOT IN (SELECT seq FROM jobs)"
MISSING = "SELECT count(*) FROM jobs WHERE payload IS NULL AND seq NOT IN (SELECT seq FROM payloads)"


def _payload(size):
    return random.Random(size).randbytes(size)


@pytest.fixture
async def large(directory, store):
    await store.enqueue([new(f"{size}", _payload(size)) for size in SIZES])
    yield store
    assert look(directory, ORPHANS) == [(0,)]
    assert look(directory, MISSING) == [(0,)]


async def test_payloads_of_all_sizes_are_returned_whole_by_every_read(large):
    whole = {f"{size}": _payload(size) for size in SIZES}

    def payloads(jobs):
        return {job.id: job.envelope.payload for job in jobs}

    assert payloads(await large.get([key(id_) for id_ in whole])) == whole
    assert payloads((await large.list(ListQuery("acme", "mail"))).jobs) == whole
    held = (await large.claim(wish())).jobs
    assert payloads(held) == whole
    await large.finish([complete(job) for job in held])
    assert payloads(await large.get([key(id_) for id_ in whole])) == whole


async def test_payloads_are_returned_whole_after_a_restart(directory, large):
    async with opened(directory) as other:
        for job in (await other.claim(wish())).jobs:
            assert job.envelope.payload == _payload(int(job.id))


async def test_a_payload_is_returned_whole_after_a_retry_an_expiry_and_a_replay(large):
    await large.enqueue([new("odd", b"o" * 5000, queue="odd", max_attempts=2, backoff=Backoff(0, 1.0, 0, "none"))])
    (job,) = (await large.claim(wish(queues=("odd",)))).jobs
    await large.finish([Finish(job.key, job.token, "retry", delay_ms=0)])
    (job,) = (await large.claim(wish(queues=("odd",), lease_ms=1000))).jobs
    assert job.envelope.payload == b"o" * 5000
    await large.shift_clock(2000)
    await large.reap(10, 0.0)
    await large.replay([key("odd", queue="odd")])
    (job,) = (await large.claim(wish(queues=("odd",)))).jobs
    assert job.envelope.payload == b"o" * 5000


async def test_prune_removes_the_payloads_of_the_jobs_that_it_forgets(directory, large):
    held = (await large.claim(wish(5))).jobs
    await large.finish([complete(job, Result(b"r" * 2000)) for job in held])
    assert look(directory, "SELECT count(*) FROM payloads") == [(4,)]
    await large.shift_clock(30 * DAY)
    assert (await large.prune(100)).jobs == 5
    assert look(directory, "SELECT count(*) FROM payloads") == [(3,)]
    assert look(directory, ORPHANS) == [(0,)]


async def test_purge_removes_the_payload(directory, large):
    held = (await large.claim(wish())).jobs
    await large.finish([complete(job) for job in held])
    assert set(await large.purge([Purge(job.key) for job in held])) == {"purged"}
    assert look(directory, "SELECT count(*) FROM payloads") == [(0,)]


async def test_a_job_that_replaces_another_replaces_its_payload(directory, large):
    held = (await large.claim(wish())).jobs
    await large.finish([Finish(job.key, job.token, "fail") for job in held])
    again = [new(f"{size}", b"n" * 2000) for size in SIZES]
    await large.enqueue([type(item)(item.key, item.envelope, replace_failed=True) for item in again])
    jobs = await large.get([item.key for item in again])
    assert {(job.state, job.envelope.payload) for job in jobs} == {("ready", b"n" * 2000)}
    assert look(directory, "SELECT count(*) FROM payloads") == [(len(SIZES),)]


async def test_a_duplicate_leaves_no_second_payload(directory, large):
    await large.enqueue([new(f"{PAYLOAD_LIMIT}", b"other" * 1000), new("fresh", b"f" * 2000)])
    assert look(directory, "SELECT count(*) FROM payloads") == [(5,)]
    (job,) = await large.get([key(f"{PAYLOAD_LIMIT}")])
    assert job.envelope.payload == _payload(PAYLOAD_LIMIT)


async def test_a_long_batch_with_existing_ids_is_stored_item_by_item(directory):
    # Most of these jobs are inserted many at a time, the rest one by one.
    async with opened(directory) as store:
        await store.enqueue([new("7"), new("205")])
        answers = await store.enqueue([new(f"{n}", payload_of(f"{n}")) for n in range(210)])
        assert [n for n, answer in enumerate(answers) if not isinstance(answer, Queued)] == [7, 205]
        jobs = (await store.claim(wish(300))).jobs
        assert [job.id for job in jobs] == ["7", "205", *(f"{n}" for n in range(210) if n not in {7, 205})]
        assert all(job.envelope.payload == payload_of(job.id) for job in jobs[2:])
