"""EVENT-2: the room of the log is shared by level, and a tenant's lost events are reported as gaps.

The logs are small: `keep_events` is the soft bound. The hard one, a million events, is more than a check can make.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from holdfast.core.errors import EventsTrimmed
from holdfast.core.events import Event, Gap
from holdfast.core.job import DAY, Cancel, Finish
from holdfast.extensions import SplitLog
from holdfast.store import EventPage, Reader
from holdfast.testing.conformance.expect import expect, expect_between, expect_equal
from holdfast.testing.conformance.harness import Harness
from holdfast.testing.conformance.rules import rule

STRIDE = 4
"""The step between the offsets from which the whole log is read; a tenant's log is read from each."""


async def prune_all(h: Harness) -> int:
    """Prune until nothing is left to remove. Returns how many events were removed."""
    gone = 0
    while True:
        pruned = await h.store.prune(1000)
        gone += pruned.events
        if not pruned.more:
            return gone


async def flood(h: Harness, tenant: str, count: int, batch: int = 20) -> None:
    """Make `count` events of one tenant."""
    for done in range(0, count, batch):
        await h.queued(*(h.name("job") for _ in range(min(batch, count - done))), tenant=tenant)


class Log:
    """All events ever written to a log, and checks of those that are kept."""

    def __init__(self, h: Harness, start: str, *tenants: str) -> None:
        self._h = h
        self.start = start
        self.tenants = tenants
        self.everything: list[Event] = []

    async def read_on(self) -> None:
        """Read the events written since the last call. None of them may be gone yet."""
        after = self.everything[-1].offset if self.everything else self.start
        self.everything += await self._h.events(None, after=after)

    async def kept(self, tenant: str) -> list[Event]:
        """The kept events of a tenant."""
        return await self._pages(tenant, None)

    async def check(self, pages: Sequence[int] = (3, 100)) -> dict[str, list[Event]]:
        """Check all that a reader can see from every offset there ever was. Returns the kept events by tenant."""
        kept: dict[str, list[Event]] = {}
        for tenant in (*self.tenants, self._h.name("silent")):
            mine = [event for event in self.everything if event.tenant == tenant]
            kept[tenant] = await self.kept(tenant)
            gone = len(mine) - len(kept[tenant])
            self._expect(kept[tenant], mine[gone:], f"events kept of {tenant}: the last ones, at their offsets")
            await self._check_tenant(tenant, mine, gone)
        left = {_value(event) for events in kept.values() for event in events}
        for n, after in list(enumerate(self._offsets()))[::STRIDE]:
            wanted = [event for event in self.everything[n:] if _value(event) in left]
            for size in pages:
                await self._check_all(after, wanted, size)
            await self._check_pieces(after, wanted)
        return kept

    def _expect(self, found: list[Event], wanted: list[Event], what: str) -> None:
        """Fail unless the events are the same. Between shards, order and the text of offsets may depend on the read."""
        if not self._h.exact_turns:
            found, wanted = (
                [replace(event, offset="") for event in sorted(some, key=_value)] for some in (found, wanted)
            )
        expect_equal(found, wanted, what)

    def _offsets(self) -> list[str]:
        """The offsets at which a reader may resume. The n-th has n events before it."""
        return [self.start, *(event.offset for event in self.everything)]

    async def _check_tenant(self, tenant: str, mine: list[Event], gone: int) -> None:
        """Check a tenant's reads: there is a gap exactly where some of its own events are gone."""
        for n, after in enumerate(self._offsets()):
            behind = [event for event in self.everything[n:] if event.tenant == tenant]
            lost = len(behind) - (len(mine) - gone)
            try:
                found = await self._pages(tenant, after)
            except EventsTrimmed as gap:
                expect(lost > 0, f"{tenant} lost nothing behind {after}, and got a gap: {gap}")
                expect_equal(gap.from_, after, "where the gap begins")
                found = await self._pages(tenant, gap.to)
                self._expect(found, mine[gone:], f"events of {tenant} behind its gap")
                continue
            expect(lost <= 0, f"{tenant} lost {lost} events behind {after}, and got no gap")
            self._expect(found, behind, f"events of {tenant} behind {after}")

    async def _pages(self, tenant: str, after: str | None) -> list[Event]:
        found: list[Event] = []
        while True:
            page = await self._h.store.events(tenant, after, 50)
            expect_equal(page.gaps, [], "gaps on a tenant's page")
            found, after = found + page.events, page.next
            if not page.more:
                return found

    async def _check_all(self, after: str, wanted: list[Event], size: int) -> None:
        """Check reads of all tenants: every kept event comes once, and each gap names its tenant."""
        found: list[Event] = []
        gaps: list[Gap] = []
        try:
            page = await self._h.store.events(None, after, size)
        except EventsTrimmed as gap:
            expect_equal(gap.from_, after, "where the gap of all begins")
            after = gap.to
            page = await self._h.store.events(None, after, size)
        begin = at = after
        while True:
            self._check_page(at, page, size)
            found, gaps, at = found + page.events, gaps + page.gaps, page.next
            if not page.more:
                break
            page = await self._h.store.events(None, at, size)
        self._expect(found, wanted, f"events of all tenants behind {after}, in pages of {size}")
        await self._check_gaps(begin, gaps)
        for tenant in self.tenants:
            chain = [gap for gap in gaps if gap.tenant == tenant]
            for one, other in pairwise(chain):
                expect_equal(other.after, one.to, f"where the next gap of {tenant} begins")

    def _check_page(self, after: str, page: EventPage, size: int) -> None:
        expect(len(page.events) <= size, f"a page of {size} events has {len(page.events)}")
        expect(not page.more or page.next != after, "a page says there are more, and does not move on")
        for gap in page.gaps:
            expect_equal(gap.after, after, "where a gap on a page begins: with the page")
        names = [gap.tenant for gap in page.gaps]
        expect_equal(len(set(names)), len(names), f"gaps for each tenant on a page: {names}")

    async def _check_gaps(self, begin: str, gaps: list[Gap]) -> None:
        """Check the gaps behind an offset: they name the tenants that lost events, and where each gap ends."""
        lost: set[str] = set()
        for tenant in self.tenants:
            try:
                await self._h.store.events(tenant, begin, 1)
            except EventsTrimmed:
                lost.add(tenant)
        expect_equal({gap.tenant for gap in gaps}, lost, f"tenants with gaps behind {begin}")
        for tenant in lost:
            last = [gap for gap in gaps if gap.tenant == tenant][-1]
            rest = await self._pages(tenant, last.to)
            self._expect(rest, await self.kept(tenant), f"events of {tenant} behind its last gap")

    async def _check_pieces(self, after: str, wanted: list[Event]) -> None:
        """Check reads that resume in the middle."""
        store = self._h.store
        if not isinstance(store, SplitLog):
            return
        try:
            begin, end = await store.bounds(after)
        except EventsTrimmed as gap:
            begin, end = await store.bounds(gap.to)
        found: list[Event] = []
        gaps: set[str] = set()
        for piece in await store.split(begin, end, 7):
            log_range, more = piece, True
            while more:
                page = await store.read(log_range, 5)
                found += page.events
                gaps.update(gap.tenant for gap in page.gaps)
                log_range, more = type(log_range)(log_range.shard, page.next, log_range.end), page.more
        self._expect(found, wanted, f"events behind {after}, read in pieces")
        lost: set[str] = set()
        for tenant in self.tenants:
            try:
                await store.events(tenant, begin, 1)
            except EventsTrimmed:
                lost.add(tenant)
        expect_equal(gaps, lost, f"tenants with gaps behind {after}, read in pieces")


def _value(event: Event) -> tuple[str, str, int]:
    return event.tenant, event.job_id, event.number


@rule("EVENT-2")
async def one_tenants_flood_removes_no_event_of_another(h: Harness) -> None:
    """The flooding tenant loses its own events. The other one resumes anywhere, even before them, without a gap."""
    async with h.frozen(keep_events="20") as f:
        log = Log(f, await f.store.last_offset(), f.tenant, f.other)
        await f.queued("first", "second")
        for job in await f.claim(2):
            await f.complete(job)
        await flood(f, f.other, 30)
        await f.queued("third")
        await flood(f, f.other, 30)
        await f.queued("fourth")
        await log.read_on()
        expect_equal(await prune_all(f) > 0, True, "whether anything is trimmed of 68 events where 20 are to be kept")
        kept = await log.check()
        expect_equal(len(kept[f.tenant]), 8, "events kept of the tenant that wrote few")
        expect_between(len(kept[f.other]), 12, 59, "events kept of the tenant that wrote many")
        expect_equal(await prune_all(f), 0, "events trimmed the second time")


@rule("EVENT-2")
async def the_room_of_the_log_is_shared_by_level(h: Harness) -> None:
    """Tenants below the level keep all events, those above it keep equally many, whatever the order of their writes."""
    async with h.frozen(keep_events="40") as f:
        written = {f.name("t"): count for count in (50, 3, 30, 10)}
        log = Log(f, await f.store.last_offset(), *written)
        for tenant, count in written.items():
            await flood(f, tenant, count // 2, 7)
        for tenant, count in written.items():
            await flood(f, tenant, count - count // 2, 7)
        await log.read_on()
        gone = await prune_all(f)
        kept = {tenant: len(events) for tenant, events in (await log.check((20,))).items() if events}
        expect_equal(sum(kept.values()), 93 - gone, "events kept, by what was trimmed")
        for tenant, count in written.items():
            least = min(count, 13)  # 3 + 10 + 13 + 13 fit into 40.
            # A store in shards shares the room of each.
            expect_between(kept[tenant], least, least if f.exact_turns else count, f"kept of {count}")
            expect_equal((await f.store.usage(tenant)).events, kept[tenant], "events in the usage")


@rule("EVENT-2")
async def a_reader_keeps_only_the_events_of_its_own_tenant(h: Harness) -> None:
    """A reader of all tenants holds the events of all."""
    async with h.frozen(keep_events="0") as f:
        log = Log(f, await f.store.last_offset(), f.tenant, f.other)
        for _ in range(5):
            await flood(f, f.tenant, 2)
            await flood(f, f.other, 3)
        await log.read_on()
        mine = [event for event in log.everything if event.tenant == f.tenant]
        middle = log.everything[12]
        await f.store.set_reader(Reader(f.tenant, "slow", mine[2].offset))
        await f.store.set_reader(Reader(None, "operator", middle.offset))
        await prune_all(f)
        kept = await log.check((4,))
        theirs = [event for event in log.everything[13:] if event.tenant == f.other]
        expect_equal(kept[f.tenant], mine[3:], "events held by the tenant's own reader")
        expect_equal(kept[f.other], theirs, "events held by the reader of all tenants")
        await f.store.drop_reader(None, "operator")
        await prune_all(f)
        kept = await log.check((4,))
        expect_equal(kept[f.tenant], mine[3:], "events held by the tenant's own reader alone")
        expect_equal(kept[f.other], [], "events of another tenant, held by no reader")
        await f.store.set_reader(Reader(f.tenant, "slow", mine[-1].offset))
        await prune_all(f)
        expect_equal((await log.check((4,)))[f.tenant], [], "events that all readers have passed")


@rule("EVENT-2")
async def events_that_survive_trimming_stay_in_order(h: Harness) -> None:
    """Each call enqueues, claims, completes or cancels jobs of several tenants. The log is trimmed in several steps."""
    async with h.frozen(keep_events="60") as f:
        third = f.name("t")
        owners = (f.tenant, f.other, third, f.other, f.other)
        log = Log(f, await f.store.last_offset(), f.tenant, f.other, third)
        for round_ in range(3):
            items = [f.new(f"job-{round_}-{n}", tenant=tenant) for n, tenant in enumerate(owners)]
            await f.store.enqueue(items)
            jobs = await f.claim(5, tenant=None)
            await f.store.finish([Finish(job.key, job.token, "complete") for job in jobs[:3]])
            await f.store.cancel([Cancel(job.key) for job in jobs[3:]])
            await flood(f, f.other, 12, 4)
            await log.read_on()
        await prune_all(f)
        before = {tenant: len(await log.kept(tenant)) for tenant in log.tenants}
        for _ in range(4):
            await flood(f, f.other, 10, 3)
            await log.read_on()
            await prune_all(f)
            kept = await log.check((7,))
            expect_equal(len(kept[f.tenant]), before[f.tenant], "events of a tenant below the level")
            expect_equal(len(kept[third]), before[third], "events of another one below the level")
        await flood(f, third, 80)
        await log.read_on()
        await prune_all(f)
        kept = await log.check((7,))
        expect_equal(len(kept[f.tenant]), before[f.tenant], "events of the tenant that wrote least")


@rule("EVENT-2")
async def cuts_are_known_after_their_process_ends(h: Harness) -> None:
    """Every process that opens the store knows which tenants' events were cut. Later cuts continue from there."""
    if not h.capabilities.durable:
        return
    async with h.frozen(keep_events="10") as f:
        log = Log(f, await f.store.last_offset(), f.tenant, f.other)
        for _ in range(3):
            await f.queued(f.name("job"))
            await flood(f, f.other, 15, 4)
            await log.read_on()
            await prune_all(f)
            await f.reopen()
            await log.check((5,))
        expect_equal(len(await log.kept(f.tenant)), 3, "events of the tenant below the level")


@rule("EVENT-2")
async def old_events_of_every_tenant_are_trimmed(h: Harness) -> None:
    """After seven days, tenants below the level lose events, too. Each gets its own gap, and younger events stay."""
    async with h.frozen(keep_events="10") as f:
        log = Log(f, await f.store.last_offset(), f.tenant, f.other)
        await f.store.set_reader(Reader(f.tenant, "lost", log.start))
        await f.queued("old-1")
        await flood(f, f.other, 15, 4)
        await f.queued("old-2")
        await log.read_on()
        await prune_all(f)
        await f.advance(7 * DAY - 1)
        await f.queued("young", delay_ms=DAY)
        await flood(f, f.other, 2)
        await log.read_on()
        await prune_all(f)
        expect_equal(len((await log.check((3,)))[f.tenant]), 3, "events kept for seven days")
        await f.advance(1)
        await prune_all(f)
        kept = await log.check((3,))
        expect_equal({tenant: len(events) for tenant, events in kept.items() if events}, {f.tenant: 1, f.other: 2}, "")
