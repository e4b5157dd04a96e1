"""DEAD-1: failed jobs can be listed, replayed and purged."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import JobNotFound, NotReplayable
from holdfast.core.events import fingerprint
from holdfast.core.job import SECOND, AttemptError, Job, JobKey, JobState, Purge, Replayed
from holdfast.store import ListQuery
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import BOOM, DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule

FAILED = frozenset({JobState.FAILED})


async def make_dead_letters(h: Harness, *ids: str, error: AttemptError = BOOM, **fields: object) -> None:
    """Make jobs dead letters, one after the other."""
    for id in ids:
        await h.queued(id, **fields)
        h.accepted(await h.fail(await h.claim_one(id, queue=fields.get("queue", h.queue)), error), JobState.FAILED)
        await h.advance(1)


async def pages(h: Harness, size: int, **query: object) -> list[Job]:
    """All pages of the dead letters, one after the other."""
    found: list[Job] = []
    cursor: str | None = None
    while True:
        fields = {"queue": h.queue, "states": FAILED, "limit": size, "cursor": cursor, **query}
        page = await h.store.list(ListQuery(h.tenant, **fields))  # pyright: ignore[reportArgumentType]
        expect(len(page.jobs) <= size, f"a page of {size} has {len(page.jobs)} jobs")
        found += page.jobs
        if page.cursor is None:
            return found
        cursor = page.cursor


@rule("DEAD-1")
async def dead_letters_are_listed_oldest_first_with_reason_and_errors(h: Harness) -> None:
    """They are ordered by the time of their end. Pages of any size miss and repeat nothing."""
    await h.queued("c", "a", "b", max_attempts=2)
    jobs = {job.id: job for job in await h.claim(3)}
    h.accepted(await h.retry(jobs["a"], AttemptError("First", "one"), delay_ms=0), JobState.RETRYING)
    await make_dead_letters(h, "x", priority=9)
    h.accepted(await h.fail(jobs["b"]), JobState.FAILED)
    await h.advance(1)
    h.accepted(await h.retry(await h.claim_one("a"), AttemptError("Second", "two")), JobState.FAILED)
    await h.advance(LEASE)
    await h.store.reap(1000, 0.0)  # `c` has an attempt left.
    await h.advance(DELAY)
    await h.claim_one("c")
    await h.advance(LEASE)
    await h.store.reap(1000, 0.0)
    await h.job_in(JobState.FAILED)  # In another queue.
    wanted = [("x", "permanent"), ("b", "permanent"), ("a", "max_attempts"), ("c", "lease_expired")]
    for size in (1, 2, 3, 100):
        found = await pages(h, size)
        expect_equal([(job.id, job.reason) for job in found], wanted, f"dead letters in pages of {size}")
    histories = {job.id: [error.type for error in job.errors] for job in await pages(h, 100)}
    types = {"x": ["Boom"], "b": ["Boom"], "a": ["First", "Second"], "c": ["LeaseExpired", "LeaseExpired"]}
    expect_equal(histories, types, "error histories")


@rule("DEAD-1")
async def dead_letters_are_filtered_by_queue_type_and_error(h: Harness) -> None:
    """An error matches by its type, its fingerprint, or a part of its message. Only the last error counts."""
    timeout = AttemptError("TimeoutError", "no answer from host 17 after 30 s")
    twin = AttemptError("TimeoutError", "no answer from host 4711 after 5 s")
    await make_dead_letters(h, "one", error=timeout, type="mail")
    await make_dead_letters(h, "two", error=AttemptError("ValueError", "bad address"), type="mail")
    await make_dead_letters(h, "three", error=twin, type="report")
    await h.queued("four", type="mail")
    await h.retry(await h.claim_one("four"), timeout, delay_ms=0)
    await h.fail(await h.claim_one("four"), AttemptError("KeyError", "'id'"))
    await make_dead_letters(h, "elsewhere", error=timeout, queue=h.name("q"))
    expect_equal(fingerprint(timeout), fingerprint(twin), "fingerprints of errors that differ in numbers")
    for size in (1, 100):
        for query, ids in (
            ({"type": "mail"}, ["one", "two", "four"]),
            ({"type": "report"}, ["three"]),
            ({"error": "TimeoutError"}, ["one", "three"]),
            ({"error": fingerprint(timeout)}, ["one", "three"]),
            ({"error": "host 4711"}, ["three"]),
            ({"error": "bad address"}, ["two"]),
            ({"error": "Timeout"}, []),
            ({"error": "%"}, []),
            ({"error": "TimeoutError", "type": "mail"}, ["one"]),
            ({"error": "nothing like it"}, []),
        ):
            found = [job.id for job in await pages(h, size, **query)]
            expect_equal(found, ids, f"dead letters with {query} in pages of {size}")


@rule("DEAD-1")
async def a_replayed_job_starts_again_under_its_id(h: Harness) -> None:
    """Its attempts start again, it is visible at once, and its history is kept. It can fail and be replayed again."""
    await h.queued("job", max_attempts=2, payload=b'{"n":1}')
    key = h.key("job")
    for round_ in (1, 2):
        for attempt in (1, 2):
            job = await h.claim_one("job")
            seen = (job.attempts, job.envelope.payload)
            expect_equal(seen, (attempt, b'{"n":1}'), f"attempt number and payload in round {round_}")
            await h.retry(job, delay_ms=0)
        await h.expect_state(key, JobState.FAILED, f"after round {round_}")
        expect_a(await h.replay(key), Replayed, "replay")
        job = await h.get(key)
        expect_equal((job.state, job.attempts, job.replays), (JobState.READY, 0, round_), "record after a replay")
        expect_equal(len(job.errors), 2 * round_, "errors kept over a replay")
        expect_equal(await h.list_ids(JobState.FAILED), [], "dead letters after a replay")
    h.accepted(await h.complete(await h.claim_one("job")), JobState.COMPLETED)
    kinds = await h.kinds(key)
    expect_equal((kinds.count("replayed"), kinds.count("claimed"), kinds[-1]), (2, 5, "completed"), "events")


@rule("DEAD-1")
async def a_set_of_dead_letters_is_replayed_item_by_item(h: Harness) -> None:
    """Each item has its own answer. A job that is named twice is replayed once."""
    await make_dead_letters(h, "a", "b", "c")
    await h.queued("waiting")
    keys = [h.key(id) for id in ("a", "nowhere", "b", "waiting", "a", "c")]
    names = [type(answer) for answer in await h.store.replay(keys)]
    wanted = [Replayed, JobNotFound, Replayed, NotReplayable, NotReplayable, Replayed]
    expect_equal(names, wanted, "answers to a set of replays")
    expect_equal(len(await h.claim(10)), 4, "jobs to run after the replays")


@rule("DEAD-1")
async def concurrent_replays_of_one_job_replay_it_once(h: Harness) -> None:
    """Over several handles, one wins and the others get NotReplayable. There is one event."""
    ids = [f"job-{number}" for number in range(5)]
    await make_dead_letters(h, *ids)
    stores = await h.handles(4)
    keys = [h.key(id) for id in ids]
    calls = [stores[number % 4].replay(keys if number % 2 else keys[::-1]) for number in range(12)]
    batches = await asyncio.gather(*calls)
    for index, id in enumerate(ids):
        mine = [batch[index if number % 2 else -1 - index] for number, batch in enumerate(batches)]
        expect_equal(sum(isinstance(answer, Replayed) for answer in mine), 1, f"replays of {id} that won")
        refused = sum(isinstance(answer, NotReplayable) for answer in mine)
        expect_equal(refused, 11, f"replays of {id} that were refused")
        expect_equal((await h.get(keys[index])).replays, 1, f"replays recorded of {id}")
        expect_equal((await h.kinds(keys[index])).count("replayed"), 1, f"replayed events of {id}")
    expect_equal(len(await h.claim(20)), 5, "jobs to run after the replays")


@rule("DEAD-1")
async def a_purge_removes_ended_jobs_and_makes_events(h: Harness) -> None:
    """It answers purged, not_terminal or not_found. Afterwards the id is free, and only the log has the job."""
    wanted: dict[JobState, str] = {}
    for state in JobState:
        if state is JobState.BLOCKED:
            continue
        job = await h.job_in(state)
        ended = state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)
        wanted[state] = "purged" if ended else "not_terminal"
        expect_equal(await h.purge(job.key), wanted[state], f"purge of a {state} job")
        if ended:
            expect_equal(await h.find(job.key), None, f"record of a purged {state} job")
            expect_equal(await h.purge(job.key), "not_found", "purge again")
            expect_equal((await h.kinds(job.key))[-1], "purged", "last event")
            expect_a(await h.replay(job.key), JobNotFound, "replay of a purged job")
            await h.queued("job", queue=job.queue)
            expect_equal((await h.claim_one(queue=job.queue)).attempts, 1, "attempt number in the new life")
        else:
            expect_equal(await h.get(job.key), job, f"record of a {state} job after a refused purge")
            expect("purged" not in await h.kinds(job.key), f"a refused purge of a {state} job made an event")
    expect_equal(await h.purge(h.key("nowhere")), "not_found", "purge of a job that is not there")


@rule("DEAD-1")
async def a_purge_by_age_spares_jobs_replayed_since(h: Harness) -> None:
    """With the time of an ending, the purge does not affect a job that was replayed and failed again since then."""
    await make_dead_letters(h, "old", "new")
    seen = [Purge(job.key, job.finished_at) for job in await pages(h, 100)]
    key = h.key("new")
    expect_a(await h.replay(key), Replayed, "replay")
    expect_equal((await h.store.purge(seen))[1], "not_terminal", "purge of a job that waits again")
    await h.advance(SECOND)
    h.accepted(await h.fail(await h.claim_one("new")), JobState.FAILED)
    answers = await h.store.purge(seen)
    expect_equal(answers, ["not_found", "not_terminal"], "purge by the ending seen")
    expect_equal([job.id for job in await pages(h, 100)], ["new"], "dead letters left")
    await _is_whole(h, key)


async def _is_whole(h: Harness, key: JobKey) -> None:
    job = await h.get(key)
    expect_equal((job.state, job.replays, len(job.errors)), (JobState.FAILED, 1, 2), "record that was left alone")
