"""A call with one job does the same as a call with many: stores have a shorter path for a single job."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import LeaseExpired, LeaseLost
from holdfast.core.events import Event
from holdfast.core.job import DAY, HOUR, SECOND, Duplicate, Finish, Finished, Job, JobState, Queued, Result
from holdfast.store import Hint, ListQuery
from holdfast.testing.conformance.expect import expect, expect_a, expect_equal, expect_some
from holdfast.testing.conformance.harness import LEASE, Harness
from holdfast.testing.conformance.rules import rule

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"priority": 9},
    {"priority": 0, "max_attempts": 1},
    {"delay_ms": 5 * SECOND},
    {"delay_ms": 5 * SECOND, "priority": 9},
    {"run_at": -HOUR},
    {"run_at": 5 * SECOND},
    {"run_at": 5 * SECOND, "delay_ms": SECOND},
    {"result_ttl_ms": 0},
    {"result_ttl_ms": 3 * DAY},
    {"request_id": "job"},
    {"request_id": "another", "type": "a/b:c"},
    {"payload": b""},
    {"payload": b"\x00" * 2048, "headers": {"a": "b"}, "timeout_ms": 7 * SECOND},
    {"payload": b"x" * 4000},
)
"""What one job can differ in; `run_at` counts from now."""


class Twins:
    """A job enqueued alone and one enqueued with others, each in its own queue."""

    def __init__(self, f: Harness) -> None:
        self.f = f
        self.single = f.name("single")
        self.many = f.name("many")
        self._beside = f.name("beside")

    @property
    def queues(self) -> tuple[str, str]:
        return self.single, self.many

    async def enqueue(self, options: dict[str, Any]) -> None:
        """Enqueue both."""
        f = self.f
        if "run_at" in options:
            options = options | {"run_at": await f.now() + options["run_at"]}
        (alone,) = await f.store.enqueue([f.new(queue=self.single, **options)])
        together, _ = await f.store.enqueue([f.new(queue=queue, **options) for queue in (self.many, self._beside)])
        expect_a(alone, Queued, "enqueue of one")
        expect_equal(alone, together, "the answers to an enqueue of one and of two")

    async def claim(self, tenant: str | None = "") -> tuple[Job, Job, Job]:
        """Claim both and a third job, each in its own call."""
        queues = (*self.queues, self._beside)
        one, two, three = [await self.f.claim_one("job", queue=queue, tenant=tenant) for queue in queues]
        return one, two, three

    async def complete(self, single: Job, many: Job, beside: Job, result: Result | None) -> None:
        """Complete them: one alone, two in one call."""
        (alone,) = await self.f.store.finish([Finish(single.key, single.token, "complete", result)])
        together, _ = await self.f.store.finish(
            [Finish(job.key, job.token, "complete", result) for job in (many, beside)]
        )
        expect_a(alone, Finished, "completion of one")
        expect_equal(alone, together, "the answers to a completion of one and of two")

    async def expect_same(self, what: str) -> None:
        """Fail unless all that can be read of both is the same."""
        single, many = [await self._seen(queue) for queue in self.queues]
        for part, value in single.items():
            expect_equal(value, many[part], f"{part} {what}: done alone, and with others")

    async def _seen(self, queue: str) -> dict[str, object]:
        f = self.f
        record = await f.find(f.key(queue=queue))
        stats = await f.stats(queue)
        listed: dict[str, list[str]] = {}
        for state in JobState:
            page = await f.store.list(ListQuery(f.tenant, queue=queue, states=frozenset({state})))
            listed[state] = [job.id for job in page.jobs]
        return {
            "the record": None if record is None else replace(record, queue="", seq=0, token=0),
            "the events": [_alike(event) for event in await f.history(f.key(queue=queue))],
            "the counts": (stats.counts, stats.oldest_ready_at),
            "the lists": listed,
        }


def _alike(event: Event) -> Event:
    return replace(event, queue="", token=0, offset="")


@rule("ENQ-4")
async def a_single_enqueue_does_what_a_batch_does(h: Harness) -> None:
    """Record, events, counts, lists, due time, order in its queue and turns are the same, for each option."""
    async with h.frozen() as f:
        for options in OPTIONS:
            for tenant in (f.tenant, None):
                twins = Twins(f)
                await twins.enqueue(options)
                await twins.expect_same(f"after an enqueue with {options}")
                one, two = [await f.claim_page(0, queue=queue, tenant=tenant) for queue in twins.queues]
                expect_equal(one.next_at, two.next_at, f"the next look after an enqueue with {options}")
                if options.get("delay_ms") or options.get("run_at", 0) > 0:
                    one, two = [await f.claim_page(1, queue=queue, tenant=tenant) for queue in twins.queues]
                    expect_equal(len(one.jobs) + len(two.jobs), 0, f"what is due with {options}")
                    expect_equal(one.next_at, two.next_at, f"the next look after an enqueue with {options}")
                    expect_equal(one.next_at, (await f.get(f.key(queue=twins.single))).visible_at, "the next look")
                    await f.advance(expect_some(one.next_at, "the next look") - await f.now())
                    await twins.expect_same(f"when it is due, with {options}")
                single, *_ = await twins.claim(tenant)
                await twins.expect_same(f"after a claim, with {options}")
                expect_equal(single, await f.get(single.key), "a claimed job, and its record")


@rule("TENANT-1")
async def a_single_enqueue_makes_its_tenant_known(h: Harness) -> None:
    """Its queue is known, too."""
    tenant, first, second = h.name("t"), h.name("q"), h.name("q")
    for queues in ([first], [first, second]):
        await h.queued(f"job-{len(queues)}", tenant=tenant, queue=queues[-1])
        expect(tenant in await h.store.tenants(), "a tenant with a job is not listed")
        expect_equal([stats.queue for stats in await h.store.stats(tenant)], sorted(queues), "queues of the tenant")


@rule("CLAIM-2")
async def jobs_of_single_and_batched_enqueues_share_one_order(h: Harness) -> None:
    """They are ordered by priority, by the time they became visible, then by enqueue."""
    async with h.frozen() as f:
        for tenant in (f.tenant, None):
            queue = f.name("q")
            now = await f.now()
            # The ids sort the other way round, and there are enough for sequence numbers of more than one byte.
            for n in range(300, 0, -3):
                await f.queued(f"{n}", queue=queue)
                await f.queued(f"{n - 1}", f"{n - 2}", queue=queue)
            order = [f"{n}" for n in range(300, 0, -1)]
            for n, priority in enumerate((0, 9, 4, 9, 0)):
                await f.queued(*(f"p{priority}-{n}-{m}" for m in range(1 + n % 2)), queue=queue, priority=priority)
            urgent = ["p9-1-0", "p9-1-1", "p9-3-0", "p9-3-1"]
            last = ["p4-2-0", "p0-0-0", "p0-4-0"]
            await f.queued("past", queue=queue, run_at=now - HOUR)
            await f.queued("past-a", "past-b", queue=queue, run_at=now - HOUR)
            got = [job.id for job in await f.claim(1000, queue=queue, tenant=tenant)]
            expect_equal(got, [*urgent, *order, "past", "past-a", "past-b", *last], "the line")


@rule("TENANT-4")
async def a_tenant_takes_turns_from_when_its_first_single_job_is_due(h: Harness) -> None:
    """A job that is due later hides no earlier one, whether they are enqueued alone or together."""
    async with h.frozen() as f:
        for first, second in ((1, 1), (2, 2), (1, 2), (2, 1)):
            for late, soon in ((first, second), (second, first)):
                queue = f.name("q")
                await f.queued(*(f"soon-{n}" for n in range(soon)), queue=queue, delay_ms=SECOND)
                await f.queued(*(f"late-{n}" for n in range(late)), queue=queue, delay_ms=HOUR)
                page = await f.claim_page(9, tenant=None, queue=queue)
                expect_equal((len(page.jobs), page.next_at), (0, await f.now() + SECOND), "an early claim")
                queue = f.name("q")
                await f.queued(*(f"soon-{n}" for n in range(soon)), queue=queue, delay_ms=SECOND)
                await f.queued(*(f"late-{n}" for n in range(late)), queue=queue, delay_ms=HOUR)
                await f.advance(SECOND)
                got = [job.id for job in await f.claim(9, tenant=None, queue=queue)]
                expect_equal(got, [f"soon-{n}" for n in range(soon)], "what is due")


@rule("LEASE-5")
async def tokens_and_offsets_grow_over_single_and_batched_calls(h: Harness) -> None:
    """No number is used twice."""
    async with h.frozen() as f:
        tokens: list[int] = []
        offsets: list[str] = []
        for n in range(6):
            await f.queued(*(f"{n}-{m}" for m in range(1 + n % 3)))
            jobs = await f.claim(9)
            tokens += [job.token for job in jobs]
            await f.store.finish([Finish(job.key, job.token, "complete") for job in jobs])
            offsets.append(await f.store.last_offset())
        expect_equal(tokens, sorted(set(tokens)), "tokens in the order of the leases")
        expect_equal(len(set(offsets)), len(offsets), "ends of the log")
        found = await f.events()
        expect_equal(len({event.offset for event in found}), 3 * len(tokens), "offsets of the events")


@rule("RESULT-1")
async def a_single_completion_does_what_a_batch_does(h: Harness) -> None:
    """Record, events, counts, lists and the end of retention are the same, for each option and each kind of result."""
    async with h.frozen() as f:
        for options in OPTIONS:
            for result in (None, Result(b"[1]"), Result(b"x" * 5000, "raw")):
                twins = Twins(f)
                await twins.enqueue(options)
                await f.advance(5 * SECOND)
                jobs = await twins.claim()
                await f.advance(SECOND)
                await twins.complete(*jobs, result)
                await twins.expect_same(f"after a completion with {options}")
                await f.advance(LEASE)
                reaped = [key for key in (await f.store.reap(1000, 0.0)).jobs if key.queue in twins.queues]
                expect_equal(reaped, [], "leases of completed jobs that ran out")
                await twins.expect_same(f"when the lease would have run out, with {options}")


@rule("KEEP-1")
async def a_single_job_is_kept_for_its_own_time(h: Harness) -> None:
    """The time counts from its end, to the millisecond, whatever other jobs of its queue end. Then it is forgotten."""
    async with h.frozen() as f:
        for first, second in ((HOUR, SECOND), (SECOND, HOUR), (0, HOUR), (HOUR, 0)):
            queues = [f.name("q"), f.name("q")]
            for n, ttl in enumerate((first, second)):
                for queue in queues:
                    await f.queued(f"{n}", queue=queue, result_ttl_ms=ttl)
            await f.advance(2 * SECOND)
            jobs = [await f.claim(2, queue=queue) for queue in queues]
            await f.advance(2 * SECOND)
            for job in jobs[0]:
                f.accepted(await f.complete(job), JobState.COMPLETED)
            await f.store.finish([Finish(job.key, job.token, "complete", Result(b"null")) for job in jobs[1]])
            for wait in (0, SECOND - 1, 1, HOUR - SECOND - 1, 1):
                await f.advance(wait)
                seen = [[await f.find(f.key(f"{n}", queue=queue)) is not None for n in range(2)] for queue in queues]
                expect_equal(seen[0], seen[1], "which of the jobs are there, done alone and together")
                counts = [(await f.stats(queue)).counts[JobState.COMPLETED] for queue in queues]
                expect_equal(counts, [sum(seen[0])] * 2, "how many are counted")
                pruned = 0
                while True:
                    page = await f.store.prune(1000)
                    pruned += page.jobs
                    if not page.more:
                        break
                expect_equal(pruned % 2, 0, "jobs that were pruned from both queues")
            expect_equal(seen[0], [False, False], "jobs whose time is over")
            expect_equal((await f.store.prune(1000)).jobs, 0, "jobs that are left to prune")
            for queue in queues:
                expect_equal(expect_a(await f.enqueue("0", queue=queue), Queued, "a new life").id, "0", "its id")


@rule("ENQ-5")
async def a_waiting_job_is_never_forgotten_after_single_and_batched_calls(h: Harness) -> None:
    """Its retention begins at its end, however short it is, whether it was enqueued alone or with others."""
    async with h.frozen() as f:
        for count in (1, 2):
            for ttl in (0, SECOND):
                queue = f.name("q")
                ids = [f"job-{n}" for n in range(count)]
                await f.queued(*ids, queue=queue, result_ttl_ms=ttl)
                await f.advance(DAY)
                while (await f.store.prune(1000)).more:
                    pass
                for id in ids:
                    expect_a(await f.enqueue(id, queue=queue), Duplicate, "the id of a job that waits")
                    expect_equal((await f.get(f.key(id, queue=queue))).state, JobState.READY, "its state")
                    expect_equal(await f.cancel(f.key(id, queue=queue)), "canceled", "a cancel of it")


@rule("RETRY-4")
async def single_and_batched_completions_keep_the_errors(h: Harness) -> None:
    """It keeps the errors of earlier attempts, and the progress."""
    twins = Twins(h)
    await twins.enqueue({})
    for job in await twins.claim():
        h.accepted(await h.retry(job, delay_ms=0), JobState.RETRYING)
    jobs = await twins.claim()
    for job in jobs:
        await h.report(job, 0.5)
    await twins.complete(*jobs, Result(b"1"))
    for queue in twins.queues:
        job = await h.get(h.key(queue=queue))
        expect_equal([(error.type, error.message) for error in job.errors], [("Boom", "it broke")], "errors")
        expect_equal((job.attempts, job.worker_id), (2, "worker-1"), "attempts and worker")
        expect_equal(expect_some(job.result, "the result").data, b"1", "the result")


@rule("LEASE-1")
async def single_and_batched_completions_are_judged_alike(h: Harness) -> None:
    """With a wrong token, repeated, or past the deadline, the answers are the same, and nothing changes."""
    async with h.frozen() as f:
        for count in (1, 2):
            queue = f.name("q")
            await f.queued("a", "b", queue=queue)
            jobs = (await f.claim(2, queue=queue))[:count]

            async def finish(jobs: list[Job], offset: int = 0) -> list[object]:
                items = [Finish(job.key, job.token + offset, "complete", Result(b"1")) for job in jobs]
                return list(await f.store.finish(items))

            for offset in (1, -1):
                expect_equal([type(a) for a in await finish(jobs, offset)], [LeaseLost] * count, "another token")
            for _ in range(2):
                expect_equal(await finish(jobs), [Finished(JobState.COMPLETED)] * count, "the right one, twice")
            expect_equal(await f.kinds(jobs[0].key), ["enqueued", "claimed", "completed"], "events")
            queue = f.name("q")
            await f.queued("a", "b", queue=queue)
            jobs = (await f.claim(2, queue=queue))[:count]
            await f.advance(LEASE)
            expect_equal([type(a) for a in await finish(jobs)], [LeaseExpired] * count, "at the deadline")


@rule("RESULT-2")
async def waiters_are_notified_of_single_and_batched_completions(h: Harness) -> None:
    """The hint may have the record, small or large. A record in a hint equals the stored one."""
    with h.listening() as hints:
        for count in (1, 2, 6):
            for ttl, data in ((HOUR, b"[1]"), (HOUR, b"x" * 6000), (0, b"[1]")):
                queue = h.name("q")
                ids = [f"job-{n}" for n in range(count)]
                await h.queued(*ids, queue=queue, result_ttl_ms=ttl)
                await hints.expect(Hint.READY, h.key(ids[0], queue=queue), f"after an enqueue of {count}")
                jobs = await h.claim(count, queue=queue)
                hints.signals.clear()
                await h.store.finish([Finish(job.key, job.token, "complete", Result(data)) for job in jobs])
                for job in jobs:
                    await hints.expect(Hint.DONE, job.key, f"after {count} ended together")
                for signal in hints.signals:
                    if signal.hint is Hint.DONE and signal.job is not None:
                        expect(ttl > 0, "a hint had the record of a job that was forgotten at once")
                        kept = await h.get(signal.job.key)
                        expect_equal(signal.job, kept, "the record in the hint, and the one that is kept")


@rule("EVENT-2")
async def single_and_batched_calls_send_hints_and_are_counted_in_the_log(h: Harness) -> None:
    """Each call that makes an event sends a hint, and trimming counts events, not calls."""
    async with h.frozen(keep_events="10") as f:
        with f.listening() as hints:
            for count in (1, 2):
                queue = f.name("q")
                ids = [f"job-{n}" for n in range(count)]
                jobs: list[Job] = []
                for step in ("enqueue", "claim", "finish"):
                    if step == "enqueue":
                        await f.queued(*ids, queue=queue)
                    elif step == "claim":
                        jobs = await f.claim(count, queue=queue)
                    else:
                        await f.store.finish([Finish(job.key, job.token, "complete") for job in jobs])
                    await hints.expect(Hint.EVENTS, f.key(ids[0], queue=queue), f"after a {step} of {count}")
                    # Hints arrive in order: after this one, all hints of the call have arrived.
                    await f.store.pause(f.tenant, queue, paused=False)
                    await hints.expect(Hint.READY, f.key(ids[0], queue=queue), "after a pause has ended")
                    hints.signals.clear()
        for n in range(12):
            queue = f.name("q")
            await f.queued("job", queue=queue)
            if n % 2:
                await f.queued("more-1", "more-2", queue=queue)
            for job in await f.claim(9, queue=queue):
                f.accepted(await f.complete(job), JobState.COMPLETED)
        log = [event.offset for event in await f.events(None, after=await _offset_before_all(f))]
        for when in ("kept first", "kept the second time"):
            while (await f.store.prune(1000)).more:
                pass
            kept = (await f.store.events(None, None, 500)).events
            expect_equal([event.offset for event in kept], log[-10:], f"events that trimming {when}")
            f.accepted(await f.complete(await f.leased(f.name("job"))), JobState.COMPLETED)
            log = [event.offset for event in (await f.store.events(None, None, 500)).events]


async def _offset_before_all(f: Harness) -> str:
    page = await f.store.events(None, None, 1)
    return page.next
