"""STATE-1, TENANT-2: lists by time, of one queue and of all queues of a tenant."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import InvalidOption
from holdfast.core.job import HOUR, TERMINAL, AttemptError, Job, JobState
from holdfast.core.listing import place_of
from holdfast.store import ListQuery
from holdfast.testing.conformance.expect import expect, expect_equal
from holdfast.testing.conformance.harness import BOOM, LEASE, Harness
from holdfast.testing.conformance.rules import rule

OTHER = AttemptError("ValueError", "bad address 17")


async def newest(h: Harness, size: int = 100, queue: str = "", **query: Any) -> list[Job]:
    """All pages of a list by time, one after the other."""
    found: list[Job] = []
    wanted = ListQuery(h.tenant, queue, limit=size, newest=True, **query)
    cursor: str | None = None
    for _ in range(100):
        page = await h.store.list(replace(wanted, cursor=cursor))
        expect(len(page.jobs) <= size, f"a page of {size} has {len(page.jobs)} jobs")
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("a list that does not end")


async def filled(f: Harness) -> None:
    """Jobs of three queues in every state, with several priorities, some at the same instant."""
    for number, queue in enumerate(("mail", "report", "zoo")):
        await f.queued("long", queue=queue)
        await f.claim_one("long", queue=queue, lease_ms=9 * LEASE)
        await f.queued("done", "dead", "gone", "held", "leased", queue=queue, type="first" if number else "other")
        done, dead, gone, *_ = await f.claim(5, queue=queue, lease_ms=(number + 1) * LEASE)
        f.accepted(await f.complete(done), JobState.COMPLETED)
        f.accepted(await f.fail(dead, BOOM if number else OTHER), JobState.FAILED)
        await f.advance(number)
        expect_equal(await f.cancel(gone.key), "canceled", "cancel of a running job")
        await f.queued("ready", queue=queue, priority=9 - 4 * number)
        await f.queued("urgent", queue=queue, priority=9)
        await f.queued("late", queue=queue, delay_ms=HOUR + number % 2)
    await f.enqueue("ready", queue="mail", tenant=f.name("t"))


@rule("STATE-1")
async def a_list_by_time_shows_the_latest_first_across_queues(h: Harness) -> None:
    """Waiting jobs by when they are due, leased ones by deadline, ended ones by their end. Pages miss nothing."""
    async with h.frozen() as f:
        await filled(f)
        everything = [await newest(f, queue=queue) for queue in ("mail", "report", "zoo")]
        for jobs in everything:
            expect_equal(len(jobs), 9, "jobs of a queue, listed by time")
        merged = sorted((job for jobs in everything for job in jobs), key=place_of, reverse=True)
        for states in (frozenset(JobState), TERMINAL, *(frozenset({state}) for state in JobState)):
            wanted = [job.key for job in merged if job.state in states]
            for size in (1, 2, 5, 100):
                found = await newest(f, size, states=states)
                expect_equal([job.key for job in found], wanted, f"jobs of all queues in {states}, {size} a page")
                for queue in ("mail", "zoo"):
                    one = [job.key for job in await newest(f, size, queue, states=states)]
                    expect_equal(one, [key for key in wanted if key.queue == queue], f"jobs of {queue}, {size} a page")
        for earlier, later in pairwise(reversed(await newest(f))):
            expect(place_of(earlier) < place_of(later), f"{later.key} is listed before {earlier.key}")
        first = merged[0]
        expect_equal((first.id, first.state), ("late", JobState.SCHEDULED), "the job whose time is the latest")


@rule("STATE-1")
async def a_list_by_time_is_filtered_by_id_type_error_and_time(h: Harness) -> None:
    """A time is the one that the list is ordered by. `until` is not included."""
    async with h.frozen() as f:
        await filled(f)
        jobs = await newest(f)
        now = await f.now()
        ended = next(job.finished_at or 0 for job in jobs if job.id == "gone" and job.queue == "zoo")
        dead = {"mail": "bad address", "report": "Boom", "zoo": "Boom"}
        cases: list[tuple[dict[str, Any], Callable[[Job], bool]]] = [
            ({"id": "d"}, lambda job: job.id in ("done", "dead")),
            ({"id": "%"}, lambda _: False),
            ({"type": "other"}, lambda job: job.envelope.type == "other"),
            ({"error": "Boom"}, lambda job: job.id == "dead" and dead[job.queue] == "Boom"),
            ({"error": "bad address"}, lambda job: job.id == "dead" and dead[job.queue] == "bad address"),
            ({"since": now + 1}, lambda job: job.id in ("late", "held", "leased", "long")),
            ({"until": ended}, lambda job: place_of(job)[0] < ended),
            ({"since": ended, "until": ended + 1}, lambda job: place_of(job)[0] == ended),
            ({"since": ended, "until": ended}, lambda _: False),
            ({"id": "g", "until": ended, "states": TERMINAL}, lambda job: job.id == "gone" and job.queue != "zoo"),
        ]
        for query, matches in cases:
            wanted = [job.key for job in jobs if matches(job)]
            for size in (1, 100):
                found = [job.key for job in await newest(f, size, **query)]
                expect_equal(found, wanted, f"jobs with {query}, {size} a page")


@rule("TENANT-2")
async def a_list_of_all_queues_shows_only_the_tenants_own(h: Harness) -> None:
    """Queues of others and Holdfast's own are left out. A foreign cursor is refused."""
    await h.queued("mine")
    other = h.name("t")
    await h.queued("mine", tenant=other)
    await h.queued("more", tenant=other, queue=h.name("q"))
    expect_equal([job.key for job in await newest(h)], [h.key("mine")], "jobs of all queues of a tenant")
    for queue in ("", h.queue):
        for cursor in ("1", "1.2.3", "x", "0.5.9.3", "@", "@*", "1.1@"):
            try:
                page = await h.store.list(ListQuery(h.tenant, queue, cursor=cursor, newest=True))
            except InvalidOption:
                continue
            expect(False, f"the cursor {cursor!r} was accepted: {page}")


@rule("STATE-1")
async def jobs_that_change_between_pages_come_at_most_once_more(h: Harness) -> None:
    """A change gives a job a later time, and so a place before the pages that follow."""
    async with h.frozen() as f:
        await f.queued(*(f"job-{number}" for number in range(6)))
        await f.advance(1)
        query = ListQuery(f.tenant, "", limit=2, newest=True)
        page = await f.store.list(query)
        expect_equal([job.id for job in page.jobs], ["job-5", "job-4"], "the first page")
        f.accepted(await f.fail(await f.claim_one("job-0")), JobState.FAILED)
        await f.cancel(f.key("job-2"))
        rest = await newest(f, 2, until=await f.now())
        expect_equal([job.id for job in rest], ["job-5", "job-4", "job-3", "job-1"], "jobs from before")
        after = await f.store.list(ListQuery(f.tenant, "", limit=9, newest=True, cursor=page.cursor))
        expect_equal([job.id for job in after.jobs], ["job-3", "job-1"], "the page that follows")
