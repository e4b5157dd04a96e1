"""EVENT, TIME: the ordered log, its readers, and the clock that decides."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import EventsTrimmed, InvalidOption, Unsupported
from holdfast.core.job import DAY, HOUR, SECOND, JobState, Replayed
from holdfast.store import Hint, Reader, make_store
from holdfast.testing.conformance.expect import Broken, expect, expect_a, expect_equal
from holdfast.testing.conformance.harness import BOOM, LEASE, Harness
from holdfast.testing.conformance.rules import rule

# EVENT-1 ------------------------------------------------------------------------------------------------------------


@rule("EVENT-1")
async def every_transition_makes_exactly_one_event(h: Harness) -> None:
    """The whole life of a job, move by move, with what each event must tell."""
    async with h.frozen() as f:
        queue = f.name("q")
        await f.queued("job", queue=queue, delay_ms=SECOND, max_attempts=2, priority=7, type="mail")
        key = f.key(queue=queue)
        born = await f.now()
        await f.advance(SECOND)
        first = await f.claim_one("job", queue=queue, worker="w1")
        await f.release(first, delay_ms=5 * SECOND)
        await f.advance(5 * SECOND)
        second = await f.claim_one("job", queue=queue, worker="w2")
        await f.retry(second, delay_ms=0)
        third = await f.claim_one("job", queue=queue, worker="w3", lease_ms=LEASE)
        await f.advance(LEASE)
        await f.store.reap(1000, 0.0)
        expect_a(await f.replay(key), Replayed, "replay")
        fourth = await f.claim_one("job", queue=queue, worker="w4")
        await f.complete(fourth)
        expect_equal(await f.purge(key), "purged", "purge")
        events = await f.history(key)
        kinds = [event.kind for event in events]
        want = ["enqueued", "claimed", "released", "claimed", "retried", "claimed", "failed", "replayed", "claimed"]
        expect_equal(kinds, [*want, "completed", "purged"], "events of a life")
        for event in events:
            expect_equal(
                (event.tenant, event.queue, event.job_id, event.type), (*key, "mail"), f"address of {event.kind}"
            )
        expect_equal(
            events[0].data, {"priority": 7, "max_attempts": 2, "visible_at": born + SECOND}, "data of enqueued"
        )
        expect_equal(events[0].at, born, "time of enqueued")
        tokens = [first.token, second.token, third.token, fourth.token]
        claims = [event for event in events if event.kind == "claimed"]
        expect_equal([event.token for event in claims], tokens, "tokens of the claims")
        expect_equal([event.attempt for event in claims], [1, 1, 2, 1], "attempts of the claims")
        expect_equal([event.worker_id for event in claims], ["w1", "w2", "w3", "w4"], "workers of the claims")
        expect_equal(claims[0].data, {"visible_at": first.visible_at, "deadline": first.deadline}, "data of claimed")
        expect_equal(events[2].data, {"visible_at": born + 6 * SECOND}, "data of released")
        retried, failed = events[4].data, events[6].data
        expect_equal(retried["error"]["type"], BOOM.type, "error in retried")
        expect(bool(retried["error"]["fingerprint"]), "an error in an event has no fingerprint")
        expect_equal((failed["reason"], failed["error"]["type"]), ("lease_expired", "LeaseExpired"), "data of failed")


@rule("EVENT-1")
async def what_changes_nothing_makes_no_event(h: Harness) -> None:
    """Refused, repeated and reading calls; extensions and progress unless all events are wanted."""
    job = await h.leased()
    done = await h.job_in(JobState.COMPLETED)
    async with h.no_event("by calls that change no state"):
        await h.extend(job)
        await h.report(job)
        await h.enqueue(queue=job.queue)
        await h.cancel(done.key)
        await h.complete(done, b'"other"')
        await h.replay(done.key)
        await h.set_result_ttl(done.key, HOUR)
        await h.get(job.key)
        await h.list_ids(queue=job.queue)
        await h.stats(job.queue)
        await h.store.reap(1000, 0.0)
        await h.store.prune(1000)


@rule("EVENT-1")
async def all_events_can_be_asked_for(h: Harness) -> None:
    """With `events=all` extensions and progress are recorded too."""
    async with h.frozen(events="all") as f:
        job = await f.leased()
        await f.extend(job, HOUR)
        await f.report(job, 0.5)
        events = await f.history(job.key)
        expect_equal([e.kind for e in events], ["enqueued", "claimed", "extended", "progressed"], "events")
        expect_equal(events[2].data, {"deadline": await f.now() + HOUR}, "data of extended")
        expect_equal(events[3].data, {"fraction": 0.5, "message": "on the way"}, "data of progressed")


# EVENT-2 ------------------------------------------------------------------------------------------------------------


@rule("EVENT-2")
async def a_reader_that_resumes_misses_nothing_and_sees_nothing_twice(h: Harness) -> None:
    """Whatever the size of the pages, from any offset, while others write."""
    stores = await h.handles(3)
    start = await h.store.last_offset()

    async def write(number: int) -> None:
        for batch in range(5):
            await stores[number].enqueue([h.new(f"job-{number}-{batch}-{item}") for item in range(4)])

    seen: list[tuple[str, str]] = []

    async def read() -> None:
        at = start
        while len(seen) < 60:
            page = await h.store.events(h.tenant, at, 7)
            seen.extend((event.offset, event.job_id) for event in page.events)
            at = page.next
            await asyncio.sleep(0)

    await asyncio.gather(read(), *(write(number) for number in range(3)))
    expect_equal(len({offset for offset, _ in seen}), 60, "different offsets")
    expect_equal(len({id for _, id in seen}), 60, "different jobs seen by a reader")
    for size in (1, 3, 1000):
        again = [(event.offset, event.job_id) for event in await h.events(after=start, page=size)]
        expect_equal(again, seen, f"events read again in pages of {size}")
    for n in (0, 17, 58, 59):
        rest = [event.job_id for event in await h.events(after=seen[n][0])]
        expect_equal(rest, [id for _, id in seen[n + 1 :]], "events after an offset in the middle")


@rule("EVENT-2")
async def the_end_of_the_log_shows_only_what_is_still_to_come(h: Harness) -> None:
    """And what is no offset is refused."""
    await h.queued("before")
    end = await h.store.last_offset()
    expect_equal(await h.events(after=end), [], "events after the end")
    await h.queued("after")
    expect_equal([event.job_id for event in await h.events(after=end)], ["after"], "events after the old end")
    for bad in ("no-offset", "", "-1", "9" * 30):
        try:
            await h.store.events(h.tenant, bad, 10)
        except InvalidOption:
            continue
        raise Broken(f"{bad!r} was taken for an offset")


@rule("EVENT-2")
async def a_hint_comes_when_the_log_grows(h: Harness) -> None:
    """To every handle: followers need not poll."""
    for store in (h.store, *await h.handles(2)):
        with h.listening(store) as ear:
            await h.queued(h.name("job"))
            await ear.expect(Hint.EVENTS, h.key(), "after the log grew")


@rule("EVENT-2")
async def trimming_waits_for_registered_readers(h: Harness) -> None:
    """What a reader has not dealt with stays, and what nobody waits for goes; a gap is never silent."""
    async with h.frozen(keep_events="0") as f:
        start = await f.store.last_offset()
        await f.store.set_reader(Reader(None, "slow", start))
        for number in range(3):
            await f.queued(f"job-{number}")
        offsets = [event.offset for event in await f.events(None, after=start)]
        await f.store.prune(1000)
        expect_equal(len(await f.events(None, after=start)), 3, "events kept for a registered reader")
        await f.store.set_reader(Reader(None, "slow", offsets[1]))
        await f.store.prune(1000)
        expect_equal([e.offset for e in await f.events(None, after=offsets[1])], offsets[2:], "events still kept")
        await _expect_trimmed(f, start)
        await f.store.set_reader(Reader(None, "slow", offsets[0]))
        readers = [(reader.name, reader.offset) for reader in await f.store.readers(None)]
        expect_equal(readers, [("slow", offsets[1])], "a reader never goes back")
        expect(await f.store.drop_reader(None, "slow"), "a registered reader was not there to drop")
        expect(not await f.store.drop_reader(None, "slow"), "a dropped reader was there again")
        await f.store.prune(1000)
        await _expect_trimmed(f, offsets[1])
        await f.queued("later")
        expect_equal([e.job_id for e in await f.events(None, after=offsets[2])], ["later"], "what came after")


@rule("EVENT-2")
async def trimming_goes_on_past_the_bound_of_seven_days(h: Harness) -> None:
    """A reader that fell behind is told from where to where, and can resume there."""
    async with h.frozen(keep_events="1000") as f:
        start = await f.store.last_offset()
        await f.store.set_reader(Reader(None, "gone", start))
        await f.queued("old", delay_ms=30 * DAY)
        await f.advance(6 * DAY)
        await f.queued("young", delay_ms=30 * DAY)
        await f.store.prune(1000)
        expect_equal(len(await f.events(None, after=start)), 2, "events within the bound")
        await f.advance(DAY + 1)
        await f.store.prune(1000)
        gap = await _expect_trimmed(f, start)
        expect_equal([e.job_id for e in await f.events(None, after=gap.to)], ["young"], "what is left past the gap")
        oldest = await f.store.events(None, None, 10)
        expect_equal([e.job_id for e in oldest.events], ["young"], "events from the oldest kept")


async def _expect_trimmed(f: Harness, after: str) -> EventsTrimmed:
    try:
        await f.store.events(None, after, 10)
    except EventsTrimmed as gap:
        expect_equal(gap.from_, after, "start of the gap")
        return gap
    raise Broken("events that are gone were passed over in silence")


# EVENT-3 ------------------------------------------------------------------------------------------------------------


@rule("EVENT-3")
async def a_tenants_stream_shows_that_tenant_alone(h: Harness) -> None:
    """Among others' events, in order; the stream of all shows both."""
    start = await h.store.last_offset()
    for number in range(10):
        await h.queued(f"mine-{number}")
        await h.queued(f"theirs-{number}", tenant=h.other)
    for tenant, stem in ((h.tenant, "mine"), (h.other, "theirs")):
        for size in (1, 4, 100):
            events = await h.events(tenant, after=start, page=size)
            expect_equal([e.job_id for e in events], [f"{stem}-{n}" for n in range(10)], "events of one tenant")
            expect_equal({e.tenant for e in events}, {tenant}, "tenants in one tenant's stream")
    both = [e.job_id for e in await h.events(None, after=start) if e.tenant in (h.tenant, h.other)]
    expect_equal(len(both), 20, "events of both in the stream of all")


@rule("EVENT-3")
async def readers_are_the_tenants_own(h: Harness) -> None:
    """Two tenants and the operator may use one name."""
    end = await h.store.last_offset()
    name = h.name("reader")
    for tenant in (h.tenant, h.other, None):
        await h.store.set_reader(Reader(tenant, name, end))
    expect(await h.store.drop_reader(h.tenant, name), "the tenant's reader was not there")
    expect_equal([r.name for r in await h.store.readers(h.tenant) if r.name == name], [], "the tenant's readers")
    for tenant in (h.other, None):
        found = [r for r in await h.store.readers(tenant) if r.name == name]
        expect_equal([(r.tenant, r.offset) for r in found], [(tenant, end)], "another's reader of that name")
        await h.store.drop_reader(tenant, name)


# TIME-1 -------------------------------------------------------------------------------------------------------------


@rule("TIME-1")
async def only_the_stores_clock_decides(h: Harness) -> None:
    """Delays count from it, deadlines stand on it, and all handles read the same one."""
    async with h.frozen() as f:
        await f.advance(HOUR)  # So that it differs from the clock of this process.
        now = await f.now()
        await f.queued("delayed", delay_ms=10 * SECOND)
        await f.queued("past", run_at=now - DAY)
        await f.queued("at", run_at=now + 20 * SECOND)
        shown = {id: (await f.get(f.key(id))).visible_at - now for id in ("delayed", "past", "at")}
        expect_equal(shown, {"delayed": 10 * SECOND, "past": 0, "at": 20 * SECOND}, "visible times")
        for store in await f.handles(2):
            expect_equal(await store.now(), now, "the clock of another handle")
        job = await f.claim_one("past", lease_ms=LEASE)
        expect_equal(job.deadline, now + LEASE, "deadline")


@rule("TIME-1")
async def a_clock_that_jumps_ahead_loses_nothing(h: Harness) -> None:
    """Leases end and delays are over, early, and every job still runs."""
    leased = await h.leased(lease_ms=HOUR)
    await h.queued("ready")
    await h.queued("later", delay_ms=10 * DAY)
    await h.advance(20 * DAY)
    await h.store.reap(1000, 0.0)
    await h.advance(HOUR)
    for queue, ids in ((leased.queue, ["job"]), (h.queue, ["later", "ready"])):
        jobs = await h.claim(10, queue=queue)
        expect_equal(sorted(job.id for job in jobs), ids, "jobs after the clock jumped ahead")
        for job in jobs:
            h.accepted(await h.complete(job), JobState.COMPLETED)


@rule("TIME-1")
async def a_clock_that_jumps_back_loses_nothing(h: Harness) -> None:
    """Leases and delays last longer by the jump, and then every job runs."""
    leased = await h.leased(lease_ms=LEASE)
    await h.queued("ready")
    await h.advance(-HOUR)
    expect_a(await h.get(leased.key), type(leased), "record of a leased job")
    h.accepted(await h.complete(leased), JobState.COMPLETED)
    await h.queued("new", queue=leased.queue)
    await h.advance(HOUR)
    await h.claim_one("ready")
    await h.claim_one("new", queue=leased.queue)


@rule("TIME-1")
async def the_clock_can_be_shifted_only_where_that_was_asked_for(h: Harness) -> None:
    """In production nobody moves it."""
    store = make_store(h.spaces.url(h.name("real")))
    await store.open()
    try:
        await store.shift_clock(1)
    except Unsupported:
        return
    finally:
        await store.close()
    raise Broken("the clock of a store was shifted that was not opened with test_clock")
