"""ENQ-1, ENQ-2, ENQ-5, ENQ-6, ENQ-8: enqueueing jobs."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core.errors import LeaseLost
from holdfast.core.job import (
    DAY,
    HOUR,
    PAYLOAD_LIMIT,
    SECOND,
    AlreadyCompleted,
    Backoff,
    Duplicate,
    IdempotencyKey,
    Job,
    JobState,
    Queued,
    Result,
)
from holdfast.store import Reader, TenantSettings
from holdfast.testing.conformance.expect import expect, expect_a, expect_between, expect_equal, expect_some
from holdfast.testing.conformance.harness import DELAY, LEASE, Harness
from holdfast.testing.conformance.rules import rule

YEAR = 365 * DAY


# ENQ-1 --------------------------------------------------------------------------------------------------------


@rule("ENQ-1")
async def acknowledged_jobs_survive_reopening(h: Harness) -> None:
    """A durable store loses nothing acknowledged when its process ends. Others report that they are not durable."""
    if not h.capabilities.durable:
        expect(h.capabilities.notes.get("durable"), "the store is not durable, and no note says what that means")
        expect(not h.capabilities.survives_power_loss, "the store is not durable, yet says it survives a power cut")
        return
    slow = Backoff(HOUR, 1.0, HOUR, "none")  # A retrying job still waits when the store is open again.
    jobs = [await h.job_in(state, backoff=slow) for state in JobState if state is not JobState.BLOCKED]
    key = IdempotencyKey("once", "forever")
    await h.queued("keyed", idempotency=key, headers={"trace": "1"}, payload=bytes(range(256)))
    keyed = await h.get(h.key("keyed"))
    await h.store.pause(h.tenant, h.queue, paused=True)
    await h.store.set_tenant(h.tenant, TenantSettings(h.queue, weight=2.0, max_waiting=9))
    reader = Reader(h.tenant, "reader", await h.store.last_offset())
    await h.store.set_reader(reader)
    log = await h.events()

    await h.reopen()

    expect_equal(await h.store.get([job.key for job in [*jobs, keyed]]), [*jobs, keyed], "records after reopening")
    expect_equal(await h.events(), log, "the log after reopening")
    expect(isinstance(await h.enqueue("again", idempotency=key), Duplicate), "a key was forgotten by reopening")
    expect((await h.stats()).paused, "a pause was forgotten by reopening")
    settings = [TenantSettings(h.queue, 2.0, 9)]
    expect_equal(list(await h.store.tenant_settings(h.tenant)), settings, "settings after reopening")
    expect_equal(await h.store.readers(h.tenant), [reader], "readers after reopening")
    leased = next(job for job in jobs if job.state is JobState.LEASED)
    fresh = await h.leased()
    expect(fresh.token > max(job.token for job in jobs), "a token from before reopening was granted again")
    h.accepted(await h.complete(leased), JobState.COMPLETED)


@rule("ENQ-1")
async def every_acknowledged_change_survives_reopening(h: Harness) -> None:
    """Claims, outcomes, cancels and replays are as durable as enqueues, each acknowledged on its own."""
    if not h.capabilities.durable:
        expect_equal(h.capabilities.survives_power_loss, False, "survives_power_loss of a store that is not durable")
        return
    job = await h.leased(max_attempts=3)
    await h.reopen()
    expect_equal((await h.get(job.key)).token, job.token, "token of a claim after reopening")
    h.accepted(await h.retry(job, delay_ms=0), JobState.RETRYING)
    await h.reopen()
    again = await h.claim_one(queue=job.queue)
    expect_equal(again.attempts, 2, "attempts counted over a reopening")
    h.accepted(await h.fail(again), JobState.FAILED)
    await h.reopen()
    await h.replay(job.key)
    await h.reopen()
    await h.expect_state(job.key, JobState.READY, "after a replay and a reopening")
    await h.cancel(job.key)
    await h.reopen()
    await h.expect_state(job.key, JobState.CANCELED, "after a cancel and a reopening")
    kinds = ["enqueued", "claimed", "retried", "claimed", "failed", "replayed", "canceled"]
    expect_equal(await h.kinds(job.key), kinds, "events over five reopenings")


@rule("ENQ-1")
async def the_capabilities_do_not_contradict_each_other(h: Harness) -> None:
    """A store's statements of its durability and reach agree, and it has a name."""
    can = h.capabilities
    expect(can.name, "the store has no name")
    expect(can.durable or not can.survives_power_loss, "it survives a power cut without being durable")
    expect(can.many_processes or not can.many_hosts, "many hosts can share it, but not many processes")
    expect(all(can.notes.values()), "an empty note")


# ENQ-2 --------------------------------------------------------------------------------------------------------


@rule("ENQ-2")
async def a_second_enqueue_answers_by_the_state_of_the_first(h: Harness) -> None:
    """A waiting or running job answers duplicate with its state, a completed one its result, a failed one duplicate."""
    for state in (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING, JobState.FAILED):
        job = await h.job_in(state)
        async with h.no_event(f"by a second enqueue of a {state} job"):
            answer = await h.enqueue("job", queue=job.queue, payload=b"second", priority=9)
            expect_equal(answer, Duplicate("job", state), f"second enqueue of a {state} job")
            expect_equal(await h.get(job.key), job, f"record of a {state} job after a second enqueue")
    done = await h.job_in(JobState.COMPLETED)
    answer = await h.enqueue("job", queue=done.queue)
    expect_equal(answer, AlreadyCompleted("job", Result(b'"done"')), "second enqueue of a completed job")


@rule("ENQ-2")
async def a_duplicate_of_a_job_that_became_due_answers_ready(h: Harness) -> None:
    """The answer has the state that is shown at that instant."""
    job = await h.job_in(JobState.SCHEDULED, delay_ms=DELAY)
    await h.advance(DELAY)
    answer = await h.enqueue("job", queue=job.queue)
    expect_equal(answer, Duplicate("job", JobState.READY), "second enqueue of a job that has become due")


async def expect_fresh(h: Harness, old: Job, payload: bytes) -> None:
    """Fail unless the job of this id is a new one that has no data of the old one."""
    job = await h.get(old.key)
    expect_equal((job.state, job.envelope.payload), (JobState.READY, payload), "state and payload of a fresh job")
    expect_equal((job.attempts, len(job.errors), job.result, job.replays), (0, 0, None, 0), "traces of the old job")
    expect_equal((job.reason, job.finished_at, job.expires_at), ("", None, None), "traces of the old job's end")
    if old.token:
        expect_a(await h.complete(old), LeaseLost, "an acknowledgement with the old job's token")
    claimed = await h.claim_one(queue=old.queue)
    expect_equal((claimed.attempts, claimed.envelope.payload), (1, payload), "attempt and payload of a fresh job")
    expect(claimed.token > old.token, "a fresh job got a token that is not above the old job's")
    await h.claim_none(queue=old.queue)
    h.accepted(await h.complete(claimed), JobState.COMPLETED)


@rule("ENQ-2")
async def a_canceled_id_can_be_enqueued_again(h: Harness) -> None:
    """A new job replaces the canceled one, and the old lease does not affect it."""
    old = await h.job_in(JobState.CANCELED)
    answer = await h.enqueue("job", queue=old.queue, payload=b"new")
    expect_equal(answer, Queued("job", JobState.READY), "enqueue of a canceled id")
    await expect_fresh(h, old, b"new")


@rule("ENQ-2")
async def a_canceled_waiting_id_does_not_run_twice(h: Harness) -> None:
    """The canceled job's entry in the queue does not lead to a second run of the new job."""
    async with h.frozen() as f:
        queue = f.name("q")
        for round_ in range(3):
            expect_a(await f.enqueue("job", queue=queue, priority=round_), Queued, "enqueue of a canceled id")
            expect_equal(await f.cancel(f.key("job", queue=queue)), "canceled", "cancel")
        await f.queued("job", queue=queue, priority=1)
        expect_equal(len(await f.claim(10, queue=queue)), 1, "jobs handed out for one live job")
        expect_equal((await f.stats(queue)).counts[JobState.LEASED], 1, "leased jobs counted")


@rule("ENQ-2")
async def replace_failed_replaces_only_failed_jobs(h: Harness) -> None:
    """The option replaces a failed job. In any other state it has no effect."""
    old = await h.job_in(JobState.FAILED)
    answer = await h.enqueue("job", queue=old.queue, payload=b"new", replace_failed=True)
    expect_equal(answer, Queued("job", JobState.READY), "enqueue of a failed id with replace_failed")
    await expect_fresh(h, old, b"new")
    for state in (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING):
        job = await h.job_in(state)
        answer = await h.enqueue("job", queue=job.queue, replace_failed=True)
        expect_equal(answer, Duplicate("job", state), f"enqueue of a {state} id with replace_failed")
        expect_equal(await h.get(job.key), job, f"record of a {state} job after an enqueue with replace_failed")


@rule("ENQ-2")
async def a_forgotten_id_can_be_enqueued_again(h: Harness) -> None:
    """When its result is no longer kept, the id is free, whether or not the job was pruned."""
    for pruned in (False, True):
        old = await h.job_in(JobState.COMPLETED, result_ttl_ms=10 * SECOND)
        await h.advance(10 * SECOND)
        if pruned:
            while (await h.store.prune(1000)).more:
                pass
        answer = await h.enqueue("job", queue=old.queue, payload=b"new")
        expect_equal(answer, Queued("job", JobState.READY), "enqueue of a forgotten id")
        await expect_fresh(h, old, b"new")


@rule("ENQ-2")
async def of_concurrent_enqueues_of_one_id_exactly_one_is_queued(h: Harness) -> None:
    """They come over several handles, alone and in batches that overlap in different orders."""
    stores = await h.handles(4)
    ids = [f"job-{number}" for number in range(10)]
    calls = [stores[number % 4].enqueue([h.new(ids[0], payload=b"%d" % number)]) for number in range(16)]
    for number in range(16):
        order = ids if number % 2 else list(reversed(ids))
        calls.append(stores[number % 4].enqueue([h.new(id, payload=b"%d" % number) for id in order]))
    answers = [answer for batch in await asyncio.gather(*calls) for answer in batch]
    for id in ids:
        mine = [answer for answer in answers if not isinstance(answer, Exception) and answer.id == id]
        expect_equal(sum(isinstance(answer, Queued) for answer in mine), 1, f"enqueues of {id} that were queued")
        rest = [answer for answer in mine if not isinstance(answer, Queued)]
        expect_equal(set(map(repr, rest)), {repr(Duplicate(id, JobState.READY))}, f"answers to the others of {id}")
    expect_equal(len(answers), 16 + 160, "answers")
    expect_equal(len(await h.claim(50)), 10, "jobs that are there")
    expect_equal([e.kind for e in await h.events()].count("enqueued"), 10, "events of enqueues")


# ENQ-5 --------------------------------------------------------------------------------------------------------


@rule("ENQ-5")
async def a_delayed_job_becomes_visible_at_its_time_and_not_before(h: Harness) -> None:
    """By `delay` and by `run_at`, to the millisecond. An instant in the past means now."""
    async with h.frozen() as f:
        now = await f.now()
        await f.queued("delay", delay_ms=10 * SECOND)
        await f.queued("run_at", run_at=now + 10 * SECOND)
        await f.queued("past", run_at=now - HOUR)
        for id, at in (("delay", now + 10 * SECOND), ("run_at", now + 10 * SECOND), ("past", now)):
            expect_equal((await f.get(f.key(id))).visible_at, at, f"when {id} becomes visible")
        await f.expect_state(f.key("delay"), JobState.SCHEDULED)
        await f.expect_state(f.key("past"), JobState.READY)
        await f.claim_one("past")
        await f.advance(10 * SECOND - 1)
        await f.claim_none()
        await f.claim_none(tenant=None)
        await f.advance(1)
        expect_equal([job.id for job in await f.claim(5)], ["delay", "run_at"], "jobs claimed at their time")
        await f.claim_none()


@rule("ENQ-5")
async def a_job_scheduled_far_ahead_is_never_forgotten(h: Harness) -> None:
    """However long the delay, no retention, prune or reaping affects a waiting job."""
    await h.queued("century", delay_ms=100 * YEAR)
    await h.queued("month", delay_ms=30 * DAY)
    century = await h.get(h.key("century"))
    expect_equal(century.state, JobState.SCHEDULED, "state of a job that is due in a century")
    expect_between(century.visible_at - century.enqueued_at, 100 * YEAR, 100 * YEAR, "delay of a century")
    for _ in range(3):
        await h.advance(9 * DAY)
        await h.store.reap(1000, 0.0)
        await h.store.prune(10_000)
        expect_equal(await h.get(h.key("century")), century, "record of a job that waits")
        await h.claim_none()
    await h.advance(3 * DAY)
    await h.claim_one("month")


# ENQ-6 --------------------------------------------------------------------------------------------------------


@rule("ENQ-6")
async def a_message_is_delivered_as_it_was_sent(h: Harness) -> None:
    """Get, list and claim return the payload's bytes, codec, version, headers and all options of the producer."""
    fields: dict[str, Any] = {
        "payload": bytes(range(256)) + "é\u0000😀".encode(),
        "codec": "msgpack",
        "version": 7,
        "priority": 9,
        "max_attempts": 100,
        "backoff": Backoff(1234, 1.5, 99_999, "equal"),
        "timeout_ms": 4321,
        "result_ttl_ms": 77_000,
        "request_id": "request-1",
        "idempotency": IdempotencyKey("käse:1", "ttl", 5000),
        "headers": {"traceparent": "00-ab", "ü": ""},
        "type": "reports/daily:v2",
    }
    new = h.new("all", **fields)
    await h.store.enqueue([new])
    await h.queued("plain", payload=b"")
    expect_equal((await h.get(h.key("all"))).envelope, new.envelope, "message by get")
    expect_equal((await h.get(h.key("plain"))).envelope.payload, b"", "empty payload")
    job = await h.claim_one("all")
    expect_equal(job.envelope, new.envelope, "message by claim")
    h.accepted(await h.complete(job, bytes(range(256))), JobState.COMPLETED)
    result = expect_some((await h.get(job.key)).result, "result")
    expect_equal(result.data, bytes(range(256)), "bytes of a result")


@rule("ENQ-6")
async def a_payload_of_the_full_size_is_kept(h: Harness) -> None:
    """256 KiB are stored and returned, also in a batch, and also as results."""
    payload = bytes(range(256)) * (PAYLOAD_LIMIT // 256)
    await h.queued(*(f"large-{number}" for number in range(4)), payload=payload)
    for job in await h.claim(4):
        expect(job.envelope.payload == payload, "a payload of 256 KiB was changed")
        h.accepted(await h.complete(job, payload), JobState.COMPLETED)
    result = (await h.get(h.key("large-3"))).result
    expect(result is not None and result.data == payload, "a result of 256 KiB was changed")


@rule("ENQ-6")
async def each_payload_of_a_batch_goes_to_its_own_job(h: Harness) -> None:
    """This holds for large and small payloads, even if some items are duplicates."""
    sizes = (PAYLOAD_LIMIT // 2, 10, PAYLOAD_LIMIT // 3, 0, PAYLOAD_LIMIT // 2, 20)
    payloads = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    await h.queued("job-0", "job-3", payload=b"first")
    answers = await h.store.enqueue([h.new(f"job-{n}", payload=payload) for n, payload in enumerate(payloads)])
    kinds = [type(answer) for answer in answers]
    expect_equal(kinds, [Duplicate, Queued, Queued, Duplicate, Queued, Queued], "answers to the batch")
    for number, job in enumerate(await h.store.get([h.key(f"job-{number}") for number in range(6)])):
        want = b"first" if number in (0, 3) else payloads[number]
        expect(expect_some(job, "record").envelope.payload == want, f"job {number} of the batch has another's payload")


# ENQ-8 --------------------------------------------------------------------------------------------------------


@rule("ENQ-8")
async def the_same_request_again_answers_queued(h: Harness) -> None:
    """This holds in every later state of the job. Nothing changes, and there is no second event."""
    for state in JobState:
        if state is JobState.BLOCKED:
            continue
        job = await h.job_in(state, request_id="request-1")
        async with h.no_event(f"by the same request again, the job being {state}"):
            answer = await h.enqueue("job", queue=job.queue, request_id="request-1")
            expect_equal(answer, Queued("job", state), f"the same request again, the job being {state}")
            expect_equal(await h.get(job.key), job, "record after the same request again")


@rule("ENQ-8")
async def the_same_request_again_is_not_a_duplicate_of_its_own_key(h: Harness) -> None:
    """This holds with an idempotency key, which the job holds, and within one batch."""
    key = IdempotencyKey("once")
    fields: dict[str, Any] = {"request_id": "request-1", "idempotency": key}
    answers = await h.store.enqueue([h.new("job", **fields), h.new("job", **fields)])
    expect_equal(answers, [Queued("job", JobState.READY)] * 2, "one request twice in a batch")
    expect_equal(await h.enqueue("job", **fields), Queued("job", JobState.READY), "the same request again")
    expect_equal(await h.kinds(h.key("job")), ["enqueued"], "events")


@rule("ENQ-8")
async def another_request_with_the_same_id_is_a_duplicate(h: Harness) -> None:
    """Only a request of the same request id is the same. A request without an id equals no other."""
    await h.queued("named", request_id="request-1")
    await h.queued("nameless")
    duplicate = Duplicate("named", JobState.READY)
    expect_equal(await h.enqueue("named", request_id="request-2"), duplicate, "another request")
    expect_equal(await h.enqueue("named"), duplicate, "a request without an id")
    expect_equal(await h.enqueue("nameless"), Duplicate("nameless", JobState.READY), "two requests without an id")


@rule("ENQ-8")
async def a_claim_is_never_repeated(h: Harness) -> None:
    """A claim whose reply is lost costs one lease: the job can be claimed again only after that lease."""
    await h.queued("a", "b")
    lost = await h.claim_one("a", worker="worker-1")
    await h.claim_one("b", worker="worker-1")
    await h.claim_none(worker="worker-1")
    await h.advance(LEASE)
    await h.store.reap(1000, 0.0)
    await h.advance(DELAY)
    again = await h.claim_one("a", worker="worker-1")
    expect_equal(again.attempts, 2, "attempt number after a lost lease")
    expect(again.token > lost.token, "the token of a lost claim was granted again")
