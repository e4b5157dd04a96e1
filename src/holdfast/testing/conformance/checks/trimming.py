"""EVENT-2: trimming waits for readers up to a bound, and reports the gap that it leaves."""

from __future__ import annotations

from holdfast.core.errors import EventsTrimmed
from holdfast.core.job import DAY, SECOND
from holdfast.store import Reader
from holdfast.testing.conformance.checks.events import some_life, values
from holdfast.testing.conformance.expect import Broken, expect_between, expect_equal
from holdfast.testing.conformance.harness import Harness
from holdfast.testing.conformance.rules import rule


async def expect_trimmed(h: Harness, after: str, to: str) -> None:
    """Fail unless a read after this offset reports that events are gone, and where the kept ones begin."""
    try:
        await h.store.events(h.tenant, after, 10)
    except EventsTrimmed as gap:
        expect_equal((gap.from_, gap.to), (after, to), "the gap that the reader gets")
        return
    raise Broken("a reader that fell behind the kept log got no EventsTrimmed")


@rule("EVENT-2")
async def trimming_reports_the_gap_that_it_leaves(h: Harness) -> None:
    """At least `keep_events` events are kept. A reader at an earlier offset gets EventsTrimmed."""
    async with h.frozen(keep_events="4") as f:
        start = await f.store.last_offset()
        await some_life(f, 3)
        everything = await f.events(after=start)
        gone = (await f.store.prune(100)).events
        expect_between(gone, 2, 11, "events trimmed of 15, when 4 must be kept")
        edge = everything[gone - 1].offset
        await expect_trimmed(f, start, edge)
        await expect_trimmed(f, everything[gone - 2].offset, edge)
        expect_equal(values(await f.events(after=edge)), values(everything[gone:]), "events that are kept")
        oldest = await f.store.events(f.tenant, None, 100)
        expect_equal(values(oldest.events), values(everything[gone:]), "events from the oldest kept")
        expect_equal((await f.store.prune(100)).events, 0, "events trimmed the second time")
        await f.queued("new")
        expect_equal(values(await f.events(after=everything[-1].offset)), [("enqueued", "new", 0)], "what came then")


@rule("EVENT-2")
async def trimming_waits_for_the_slowest_reader(h: Harness) -> None:
    """The reader may be a tenant's or the operator's. Trimming waits until it has advanced or is dropped."""
    async with h.frozen(keep_events="0") as f:
        start = await f.store.last_offset()
        await some_life(f, 3)
        everything = await f.events(after=start)
        await f.store.set_reader(Reader(f.tenant, "slow", everything[3].offset))
        await f.store.set_reader(Reader(None, "fast", everything[8].offset))
        gone = (await f.store.prune(100)).events
        expect_between(gone, 1, 4, "events trimmed up to the slowest reader")
        expect_equal(
            values(await f.events(after=everything[3].offset)), values(everything[4:]), "what the slow one reads"
        )
        await f.store.set_reader(Reader(f.tenant, "slow", everything[5].offset))
        gone += (await f.store.prune(100)).events
        expect_between(gone, 1, 6, "events trimmed once it moved on")
        expect_equal(
            values(await f.events(after=everything[5].offset)), values(everything[6:]), "what the slow one reads"
        )
        expect_equal(await f.store.drop_reader(f.tenant, "slow"), True, "dropping a reader")
        gone += (await f.store.prune(100)).events
        expect_between(gone, 5, 9, "events trimmed once it was dropped")
        expect_equal(
            values(await f.events(after=everything[8].offset)), values(everything[9:]), "what the fast one reads"
        )
        await f.store.drop_reader(None, "fast")
        gone += (await f.store.prune(100)).events
        expect_equal(gone, 15, "events trimmed with no reader left")
        end = await f.store.last_offset()
        await expect_trimmed(f, everything[8].offset, end)
        expect_equal((await f.store.events(f.tenant, end, 10)).events, [], "events at the end of an empty log")


@rule("EVENT-2")
async def trimming_does_not_wait_for_a_reader_that_is_too_far_behind(h: Harness) -> None:
    """Trimming waits for seven days. Then the reader gets a gap with what it missed."""
    async with h.frozen(keep_events="0") as f:
        await f.queued("job")
        start = await f.store.last_offset()
        await f.store.set_reader(Reader(f.tenant, "lost", start))
        await some_life(f, 1)
        await f.advance(7 * DAY - 10 * SECOND)
        await f.queued("late", delay_ms=DAY)
        everything = await f.events(after=start)
        await f.store.prune(100)
        expect_equal(
            values(await f.events(after=start)), values(everything), "events kept for the reader within seven days"
        )
        await f.advance(10 * SECOND)
        expect_equal((await f.store.prune(100)).events, len(everything) - 1, "events trimmed after seven days")
        await expect_trimmed(f, start, everything[-2].offset)
        rest = await f.events(after=everything[-2].offset)
        expect_equal(values(rest), [("enqueued", "late", 0)], "what is left to the reader")


@rule("EVENT-2")
async def trimming_by_age_keeps_young_events_after_the_clock_was_set_back(h: Harness) -> None:
    """The log is then not in order of time. Trimming an event that looks old removes no younger one before it."""
    async with h.frozen(keep_events="0") as f:
        start = await f.store.last_offset()
        await f.store.set_reader(Reader(f.tenant, "slow", start))
        for name, shift in (("before", 0), ("past", -8 * DAY), ("after", 8 * DAY)):
            await f.advance(shift)
            for n in range(4):
                await f.queued(f"{name}{n}")
        everything = await f.events(after=start)
        expect_equal((await f.store.prune(100)).events, 0, "events trimmed, all of them minutes old")
        expect_equal(values(await f.events(after=start)), values(everything), "events kept for the reader")
        await f.advance(7 * DAY)
        expect_equal((await f.store.prune(100)).events, 12, "events trimmed after seven days")
