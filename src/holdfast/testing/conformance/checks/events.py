"""EVENT: one event for each transition, in order, for the tenant alone."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.core.errors import InvalidOption, JobNotFound
from holdfast.core.events import ERROR_TEXT_LIMIT, Event, fingerprint
from holdfast.core.job import DAY, AttemptError, Cancel, Finish, JobKey, JobState, Outcome, Purge, Replayed
from holdfast.store import Hint, Reader
from holdfast.testing.conformance.expect import Broken, Skipped, expect, expect_a, expect_between, expect_equal
from holdfast.testing.conformance.harness import BOOM, DELAY, LEASE, Harness, HintRecorder
from holdfast.testing.conformance.rules import rule

QUIET_S = 0.03

# EVENT-1 ------------------------------------------------------------------------------------------------------


@rule("EVENT-1")
async def each_transition_makes_exactly_one_event_that_describes_it(h: Harness) -> None:
    """It has the kind, address, type, time, attempt, token, worker and the data of its kind, over a whole life."""
    async with h.frozen() as f:
        key = f.key("job")
        wanted: list[tuple[object, ...]] = []

        async def expect_next(kind: str, attempt: int, token: int, worker: str, **data: object) -> None:
            wanted.append((kind, await f.now(), attempt, token, worker, data))
            await f.advance(100)

        start = await f.now()
        await f.queued("job", type="mail", max_attempts=2, priority=7, delay_ms=50)
        await expect_next("enqueued", 0, 0, "", priority=7, max_attempts=2, visible_at=start + 50)
        one = await f.claim_one("job", worker="w1")
        await expect_next("claimed", 1, one.token, "w1", visible_at=start + 50, deadline=one.deadline)
        await f.release(one)
        await expect_next("released", 1, one.token, "w1", visible_at=await f.now())
        released_at = await f.now() - 100
        two = await f.claim_one("job", worker="w2")
        await expect_next("claimed", 1, two.token, "w2", visible_at=released_at, deadline=two.deadline)
        await f.retry(two)
        error = {"type": "Boom", "message": "it broke", "fingerprint": fingerprint(BOOM)}
        visible_at = await f.now() + DELAY
        await expect_next("retried", 1, two.token, "w2", visible_at=visible_at, error=error)
        await f.advance(DELAY)
        three = await f.claim_one("job", worker="w3")
        await expect_next("claimed", 2, three.token, "w3", visible_at=visible_at, deadline=three.deadline)
        await f.fail(three)
        await expect_next("failed", 2, three.token, "w3", reason="permanent", error=error)
        expect_a(await f.replay(key), Replayed, "replay")
        replayed_at = await f.now()
        await expect_next("replayed", 0, three.token, "w3", visible_at=replayed_at, replays=1)
        four = await f.claim_one("job", worker="w4")
        await expect_next("claimed", 1, four.token, "w4", visible_at=replayed_at, deadline=four.deadline)
        await f.advance(LEASE)
        await f.store.reap(1000, 0.0)
        lapsed = (await f.get(key)).errors[-1]
        lost = {"type": "LeaseExpired", "message": lapsed.message, "fingerprint": fingerprint(lapsed)}
        expired_at = await f.now() + DELAY
        await expect_next("expired", 1, four.token, "w4", visible_at=expired_at, error=lost)
        await f.advance(DELAY)
        five = await f.claim_one("job", worker="w5")
        await expect_next("claimed", 2, five.token, "w5", visible_at=expired_at, deadline=five.deadline)
        await f.complete(five)
        await expect_next("completed", 2, five.token, "w5")
        expect_equal(await f.purge(key), "purged", "purge")
        history = await f.history(key)
        await expect_next("purged", 2, five.token, "w5", purge=1, series=history[-1].data.get("series"))

        seen = [(e.kind, e.at, e.attempt, e.token, e.worker_id, e.data) for e in history]
        for number, (got, want) in enumerate(zip(seen, wanted, strict=False)):
            expect_equal(got, want, f"event {number}")
        expect_equal(len(seen), len(wanted), f"events of a whole life: {[e.kind for e in history]}")
        same = {(e.tenant, e.queue, e.job_id, e.type) for e in history}
        expect_equal(same, {(f.tenant, f.queue, "job", "mail")}, "address and type of the events")


@rule("EVENT-1")
async def a_cancel_makes_one_event(h: Harness) -> None:
    """From waiting and from running, with the last token of the job."""
    for state in (JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING):
        job = await h.job_in(state)
        before = await h.kinds(job.key)
        await h.cancel(job.key)
        history = await h.history(job.key)
        expect_equal([e.kind for e in history], [*before, "canceled"], f"events of a canceled {state} job")
        last = history[-1]
        expect_equal((last.attempt, last.token), (job.attempts, job.token), "attempt and token of the event")


@rule("EVENT-1")
async def a_call_that_changes_nothing_makes_no_event(h: Harness) -> None:
    """Reads, refusals, empty claims, settings, pauses, extensions and progress are no transitions."""
    job = await h.leased()
    done = await h.job_in(JobState.COMPLETED)
    waiting = await h.job_in(JobState.READY)
    async with h.no_event("without a transition"):
        await h.enqueue("job", queue=waiting.queue)
        await h.claim(5)
        await h.extend(job)
        await h.report(job)
        await h.finish(job, "complete", token=job.token - 1)
        await h.store.finish([Finish(h.key("nowhere"), 1, "complete")])
        await h.complete(done)
        await h.store.cancel([Cancel(done.key), Cancel(h.key("nowhere")), Cancel(job.key, only_waiting=True)])
        await h.store.replay([waiting.key, h.key("nowhere")])
        await h.store.purge([Purge(waiting.key), Purge(h.key("nowhere"))])
        await h.set_result_ttl(done.key, DAY)
        await h.store.pause(h.tenant, waiting.queue, paused=True)
        await h.store.pause(h.tenant, waiting.queue, paused=False)
        await h.store.reap(1000, 0.0)
        await h.store.prune(1000)
        await h.store.get([job.key])
        await h.stats()
        await h.list_ids()


@rule("EVENT-1")
async def a_batch_makes_one_event_for_each_item(h: Harness) -> None:
    """Events of enqueues, claims, acknowledgements and cancels have the order of the batch and their own addresses."""
    ids = [f"job-{number}" for number in range(20)]
    await h.queued(*ids)
    jobs = await h.claim(20)
    await h.store.finish([Finish(job.key, job.token, "complete") for job in jobs[:10]])
    await h.store.cancel([Cancel(job.key) for job in jobs[10:]])
    wanted = [("enqueued", id) for id in ids] + [("claimed", id) for id in ids]
    wanted += [("completed", id) for id in ids[:10]] + [("canceled", id) for id in ids[10:]]
    expect_equal([(e.kind, e.job_id) for e in await h.events()], wanted, "events of batches")
    elsewhere = h.name("q")
    await h.store.enqueue([h.new("a", type="mail"), h.new("b", type="report"), h.new("c", queue=elsewhere)])
    seen = [(e.queue, e.job_id, e.type) for e in (await h.events())[-3:]]
    same = [(h.queue, "a", "mail"), (h.queue, "b", "report"), (elsewhere, "c", "conformance")]
    expect_equal(seen, same, "addresses and types in the events of a batch")
    ends = [Finish(job.key, job.token, "complete") for job in reversed(await h.claim(2))]
    await h.store.finish(ends)
    seen = [(e.queue, e.job_id, e.type) for e in (await h.events())[-2:]]
    expect_equal(seen, same[1::-1], "addresses and types in the events of completions")


@rule("EVENT-1")
async def extensions_and_progress_make_events_only_when_asked_for(h: Harness) -> None:
    """With `events=all` each makes an event with its data. A refused one makes none."""
    async with h.frozen(events="all") as f:
        job = await f.leased()
        await f.extend(job, 2 * LEASE)
        await f.report(job, 0.25)
        await f.extend(job, token=job.token - 1)
        await f.report(job, token=job.token - 1)
        history = await f.history(job.key)
        expect_equal([e.kind for e in history], ["enqueued", "claimed", "extended", "progressed"], "events")
        expect_equal(history[2].data, {"deadline": await f.now() + 2 * LEASE}, "data of extended")
        expect_equal(history[3].data, {"fraction": 0.25, "message": "on the way"}, "data of progressed")
    job = await h.leased()
    await h.extend(job)
    await h.report(job)
    expect_equal(await h.kinds(job.key), ["enqueued", "claimed"], "events by default")


@rule("EVENT-1")
async def an_error_in_an_event_is_short(h: Harness) -> None:
    """Its message is cut at 1 KiB. The record keeps all of it."""
    long = AttemptError("Boom", "x" * 5000, "t" * 5000)
    job = await h.leased()
    h.accepted(await h.fail(job, long), JobState.FAILED)
    error = (await h.history(job.key))[-1].data["error"]
    expect_equal(set(error), {"type", "message", "fingerprint"}, "fields of an error in an event")
    expect_equal(len(error["message"]), ERROR_TEXT_LIMIT, "length of the message in the event")
    kept = (await h.get(job.key)).errors[-1]
    expect_equal((kept.message, kept.traceback), (long.message, long.traceback), "error in the record")


# EVENT-2 ------------------------------------------------------------------------------------------------------


async def quiet(enqueued: JobKey, *recorders: HintRecorder) -> None:
    """Wait until every recorder has the hint of an enqueue and no more hints arrive; then forget them all.

    A new listener may get a hint for everything. The check must not mistake it for the hint it waits for.
    """
    for hints in recorders:
        await hints.expect(Hint.READY, enqueued, "after an enqueue")
    while True:
        for hints in recorders:
            hints.signals.clear()
        await asyncio.sleep(QUIET_S)
        if not any(hints.signals for hints in recorders):
            return


def values(events: list[Event]) -> list[tuple[str, str, int]]:
    """Events as comparable values."""
    return [(event.kind, event.job_id, event.token) for event in events]


async def some_life(h: Harness, count: int) -> None:
    """Make a few jobs whose events alternate."""
    ids = [f"job-{number}" for number in range(count)]
    await h.queued(*ids)
    for job in await h.claim(count):
        await h.retry(job, delay_ms=0)
    for job in await h.claim(count):
        await h.complete(job)


@rule("EVENT-2")
async def a_reader_that_resumes_misses_nothing_and_sees_nothing_twice(h: Harness) -> None:
    """It can resume after any page, of any size, and from the offset of any event. Offsets are strings."""
    start = await h.store.last_offset()
    await some_life(h, 5)
    everything = await h.events(after=start)
    expect_equal(len(everything), 25, "events of five lives")
    for size in (1, 2, 3, 7, 24, 25, 26):
        expect_equal(values(await h.events(after=start, page=size)), values(everything), f"events in pages of {size}")
    for number, event in enumerate(everything):
        expect(type(event.offset) is str and event.offset, f"offset {event.offset!r} of an event")
        rest = await h.events(after=event.offset)
        expect_equal(values(rest), values(everything[number + 1 :]), f"events after the offset of event {number}")
    expect_equal(len({event.offset for event in everything}), 25, "different offsets")
    end = await h.store.last_offset()
    page = await h.store.events(h.tenant, end, 10)
    expect_equal((len(page.events), page.more), (0, False), "events after the end of the log")
    await h.queued("new")
    expect_equal(
        values((await h.store.events(h.tenant, page.next, 10)).events), [("enqueued", "new", 0)], "what came then"
    )


@rule("EVENT-2")
async def events_of_one_job_are_in_order(h: Harness) -> None:
    """This holds while several handles change many jobs at once and a reader follows."""
    stores = await h.handles(4)
    ids = [f"job-{number}" for number in range(24)]
    start = await h.store.last_offset()
    seen: list[Event] = []
    done = asyncio.Event()

    async def live(number: int) -> None:
        store, queue = stores[number % 4], f"{h.queue}-{number % 8}"
        new = [h.new(id, queue=queue, max_attempts=9) for id in ids[number::8]]
        await store.enqueue(new)
        for outcome in ("retry", "release", "complete"):
            for job in await h.claim(10, queue=queue, store=store):
                item = Finish(job.key, job.token, outcome, delay_ms=0, error=BOOM)
                h.accepted((await store.finish([item]))[0])

    async def read() -> None:
        at = start
        while True:
            last = done.is_set()
            page = await stores[0].events(h.tenant, at, 3)
            seen.extend(page.events)
            at = page.next
            if last and not page.more:
                return
            await asyncio.sleep(0)

    reading = asyncio.create_task(read())
    await asyncio.gather(*(live(number) for number in range(8)))
    done.set()
    await reading
    wanted = ["enqueued", "claimed", "retried", "claimed", "released", "claimed", "completed"]
    for id in ids:
        mine = [event for event in seen if event.job_id == id]
        expect_equal([event.kind for event in mine], wanted, f"events of {id} as they came")
        tokens = [event.token for event in mine if event.kind == "claimed"]
        expect_equal(tokens, sorted(set(tokens)), "tokens in the order of the log")
    expect_equal(max(Counter(event.offset for event in seen).values()), 1, "times that one event was seen")
    expect_equal(values(await h.events(after=start)), values(seen), "the log read again")


@rule("EVENT-2")
async def a_reader_misses_no_transaction_that_commits_late(h: Harness) -> None:
    """A reader that read while a caller's transaction was open gets the transaction's events after its end, once."""
    start = await h.store.last_offset()
    async with h.begin() as connection:
        await h.store.enqueue([h.new("early")], connection=connection)
        await h.queued("late")
        page = await h.store.events(h.tenant, start, 100)
        end = await h.store.last_offset()
    seen = values(page.events) + values(await h.events(after=page.next))
    expect_equal(sorted(seen), [("enqueued", "early", 0), ("enqueued", "late", 0)], "what a reader saw that came by")
    rest = {id for _, id, _ in values(await h.events(after=end))}
    expect("early" in rest, "last_offset was past an event that was not committed yet")


@rule("EVENT-2")
async def events_of_a_long_transaction_are_in_the_order_of_the_job(h: Harness) -> None:
    """A transaction that begins before a job is enqueued and then ends the job leaves the job's events in order."""
    outcomes: dict[Outcome, str] = {"complete": "completed", "fail": "failed", "retry": "retried"}
    for outcome, kind in outcomes.items():
        for count in (1, 2):
            async with h.begin() as connection:
                await h.store.enqueue([h.new(h.name("first"))], connection=connection)
                jobs = [await h.leased(f"job-{n}", queue=h.name("q")) for n in range(count)]
                items = [Finish(job.key, job.token, outcome, error=BOOM) for job in jobs]
                answers = await h.store.finish(items, connection=connection)
                if all(isinstance(answer, JobNotFound) for answer in answers):
                    raise Skipped("a caller's transaction sees nothing that is newer than its first read")
            for job in jobs:
                what = f"events of one job of {count}, the last by a {outcome}"
                expect_equal(await h.kinds(job.key), ["enqueued", "claimed", kind], what)


@rule("EVENT-2")
async def a_hint_is_sent_when_the_log_grows(h: Harness) -> None:
    """A reader that follows the log needs no polling, also for changes through another handle."""
    other = (await h.handles(2))[1]
    with h.listening() as hints, h.listening(other) as far:
        await h.queued("first")
        await quiet(h.key("first"), hints, far)
        await h.queued("job")
        await hints.expect(Hint.EVENTS, h.key("job"), "after an enqueue")
        await far.expect(Hint.EVENTS, h.key("job"), "after an enqueue through another handle")


@rule("EVENT-2")
async def an_invalid_offset_is_refused(h: Harness) -> None:
    """Reading and registering raise InvalidOption."""
    for bad in ("", "nonsense", "-1", "\u0663", "1 ", "9" * 30):
        for what in ("events", "reader"):
            try:
                if what == "events":
                    await h.store.events(h.tenant, bad, 10)
                else:
                    await h.store.set_reader(Reader(h.tenant, "reader", bad))
            except InvalidOption:
                continue
            raise Broken(f"{what} took {bad!r} for an offset")


@rule("EVENT-2")
async def readers_register_by_name_and_never_move_back(h: Harness) -> None:
    """Each tenant has its own readers, and so has the operator. Dropping returns whether there was one."""
    start = await h.store.last_offset()
    await some_life(h, 2)
    events = await h.events(after=start)
    first, last = events[0].offset, events[-1].offset
    await h.store.set_reader(Reader(h.tenant, "b", first))
    await h.store.set_reader(Reader(h.tenant, "a", last))
    await h.store.set_reader(Reader(h.other, "a", first))
    wanted = [Reader(h.tenant, "a", last), Reader(h.tenant, "b", first)]
    expect_equal(await h.store.readers(h.tenant), wanted, "readers of the tenant")
    await h.store.set_reader(Reader(h.tenant, "a", first))
    expect_equal(await h.store.readers(h.tenant), wanted, "readers after one was set back")
    await h.store.set_reader(Reader(h.tenant, "b", last))
    moved = [Reader(h.tenant, "a", last), Reader(h.tenant, "b", last)]
    expect_equal(await h.store.readers(h.tenant), moved, "readers after one moved on")
    expect_equal(await h.store.readers(h.other), [Reader(h.other, "a", first)], "readers of the other tenant")
    name = h.name("reader")
    await h.store.set_reader(Reader(None, name, last))
    expect(Reader(None, name, last) in await h.store.readers(None), "the operator's reader is missing")
    expect_equal(await h.store.drop_reader(None, name), True, "dropping a reader")
    expect_equal(await h.store.drop_reader(None, name), False, "dropping a reader twice")
    expect_equal(await h.store.drop_reader(h.tenant, "a"), True, "dropping the tenant's reader")
    expect_equal(await h.store.readers(h.tenant), [Reader(h.tenant, "b", last)], "readers that are left")
    expect_equal(await h.store.readers(h.other), [Reader(h.other, "a", first)], "readers of the other tenant")
    for tenant, reader in ((h.tenant, "b"), (h.other, "a")):
        await h.store.drop_reader(tenant, reader)


# EVENT-3 ------------------------------------------------------------------------------------------------------


@rule("EVENT-3")
async def a_tenants_log_shows_only_its_own_events(h: Harness) -> None:
    """Whatever others do in between, from any offset, in pages of any size. The operator sees all events in order."""
    start = await h.store.last_offset()
    for number in range(6):
        for tenant in (h.tenant, h.other, h.other):
            await h.queued(h.name("job"), tenant=tenant)
        if number % 2:
            await h.complete(await h.claim_one(tenant=h.other))
    both = await h.events(None, after=start)
    both = [event for event in both if event.tenant in (h.tenant, h.other)]
    expect_equal(len(both), 24, "events of both tenants in the operator's stream")
    for tenant in (h.tenant, h.other):
        mine = [event for event in both if event.tenant == tenant]
        for size in (1, 2, 5, 100):
            got = await h.events(tenant, after=start, page=size)
            expect_equal({event.tenant for event in got}, {tenant}, "tenants in one tenant's stream")
            expect_equal(values(got), values(mine), f"events of one tenant in pages of {size}")
        for event in both:
            got = await h.events(tenant, after=event.offset)
            rest = [later for later in both[both.index(event) + 1 :] if later.tenant == tenant]
            expect_equal(values(got), values(rest), "events of one tenant after any offset of the log")
    expect_equal(await h.events(h.name("v")), [], "events of a tenant that never was")


@rule("EVENT-3")
async def a_batch_over_several_tenants_shows_each_tenant_its_own_events(h: Harness) -> None:
    """One call changes jobs of several tenants. Each tenant's stream shows its own part."""
    owners = (h.tenant, h.other, h.tenant, h.other, h.other)
    await h.store.enqueue([h.new(f"job-{number}", tenant=tenant) for number, tenant in enumerate(owners)])
    leases = {(job.key, job.attempts, job.token) for job in await h.claim(5, tenant=None)}
    await h.store.cancel([Cancel(h.key(f"job-{number}", tenant=tenant)) for number, tenant in enumerate(owners)])
    for tenant in (h.tenant, h.other):
        ids = [f"job-{number}" for number, owner in enumerate(owners) if owner == tenant]
        seen = [(e.tenant, e.kind, e.job_id) for e in await h.events(tenant)]
        for kind in ("enqueued", "claimed", "canceled"):
            mine = [(whose, id) for whose, what, id in seen if what == kind]
            expect_equal(mine, [(tenant, id) for id in ids], f"{kind} events of one tenant of a batch")
        expect_equal(len(seen), 3 * len(ids), "events of one tenant of a batch")
        claimed = {(h.key(e.job_id, tenant=tenant), e.attempt, e.token) for e in await h.events(tenant) if e.worker_id}
        expect_equal(
            claimed, {lease for lease in leases if lease[0].tenant == tenant}, "leases in the stream of one tenant"
        )


@rule("EVENT-3")
async def a_quiet_tenant_pages_past_the_events_of_others(h: Harness) -> None:
    """Pages may be empty, but they advance, and reach the one event behind hundreds of another tenant's."""
    start = await h.store.last_offset()
    await h.queued(*(f"job-{number}" for number in range(600)), tenant=h.other)
    await h.queued("mine")
    got = await h.events(after=start, page=10)
    expect_equal(values(got), [("enqueued", "mine", 0)], "events of a quiet tenant")
    at, steps = start, 0
    while (page := await h.store.events(h.tenant, at, 10)).more:
        at, steps = page.next, steps + 1
        expect_between(steps, 1, 700, "pages read")
    expect_equal(values(await h.events(after=page.next)), [], "events after the last page")
