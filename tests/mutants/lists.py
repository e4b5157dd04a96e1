"""Bugs in lists by time, of one queue and of all queues."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast import paging
from holdfast.core import listing
from tests.mutants.planting import FACES, POSTGRES, REDIS, Bug, Planted, mutant

ORDER = "a_list_by_time_shows_the_latest_first_across_queues"
FILTERS = "a_list_by_time_is_filtered_by_id_type_error_and_time"

FILE = ("file",)
SERVERS = ("file", "redis", "postgres")


@mutant("STATE-1", stores=FACES, seen_by=ORDER)
def a_page_by_time_has_no_next(bug: Bug) -> None:
    """What is behind the first page is never shown."""

    async def list_jobs(original: Planted, store: Any, query: Any) -> Any:
        page = await original(store, query)
        return replace(page, cursor=None) if query.newest else page

    bug.answer("list", list_jobs)


@mutant("STATE-1", stores=FACES, seen_by=FILTERS)
def the_end_of_the_time_is_included(bug: Bug) -> None:
    """`until` is one millisecond late."""

    async def list_jobs(original: Planted, store: Any, query: Any) -> Any:
        return await original(store, query if query.until is None else replace(query, until=query.until + 1))

    bug.answer("list", list_jobs)


@mutant("STATE-1", stores=SERVERS, seen_by=ORDER)
def a_list_is_not_read_on(bug: Bug) -> None:
    """A queue is not read on although its next job may be the next of all."""
    bug.around(paging, "_later", lambda *_: False)


@mutant("STATE-1", stores=FACES, seen_by=ORDER)
def a_page_by_time_repeats_the_last_job(bug: Bug) -> None:
    """A cursor names the place before the last job of the page."""

    def cursor_text(original: Planted, place: Any, group: str = "") -> str:
        return original(place and (place[0], place[1] + 1), group)

    bug.around(paging, "cursor_text", cursor_text)


@mutant("STATE-1", stores=FACES, seen_by=FILTERS)
def an_id_matches_anywhere(bug: Bug) -> None:
    """The text is looked for in all of the id."""

    def matches(original: Planted, query: Any, job: Any, now: int) -> bool:
        return original(replace(query, id=None), job, now) and (query.id or "") in job.id

    bug.around(listing.ListQuery, "matches", matches)


@mutant("STATE-1", stores=FILE, seen_by=ORDER)
def a_priority_is_left_out_of_a_list_by_time_on_a_file(bug: Bug) -> None:
    """Waiting jobs of other priorities are not listed."""
    bug.sql("newest_waiting", "rank = ?5", "rank = max(?5, 1)")


@mutant("STATE-1", stores=FILE, seen_by=ORDER)
def a_page_by_time_misses_jobs_of_one_moment_on_a_file(bug: Bug) -> None:
    """Jobs that ended at the same instant as the last of a page are missed."""
    bug.sql("newest_ended", "(finished_at, seq) < (?3, ?4)", "finished_at < ?3 AND ?4 >= 0")


@mutant("STATE-1", stores=FILE, seen_by=ORDER)
def running_jobs_are_listed_by_sequence_on_a_file(bug: Bug) -> None:
    """Leased jobs are not in the order of their deadlines."""
    bug.sql("newest_leased", "ORDER BY deadline DESC, seq DESC", "ORDER BY seq DESC")


@mutant("STATE-1", stores=POSTGRES, seen_by=ORDER)
def a_priority_is_left_out_of_a_list_by_time(bug: Bug) -> None:
    """Waiting jobs of the highest priority are not listed."""
    bug.statement("newest_waiting", "generate_series(0, 9)", "generate_series(1, 9)")


@mutant("STATE-1", stores=POSTGRES, seen_by=ORDER)
def a_page_by_time_misses_jobs_of_one_instant(bug: Bug) -> None:
    """Jobs that ended at the same instant as the last of a page are missed."""
    bug.statement("newest_ended", "(finished_at, seq) < ($3, $4)", "finished_at < $3 AND $4::bigint >= 0")


@mutant("STATE-1", stores=POSTGRES, seen_by=ORDER)
def running_jobs_are_listed_by_enqueue(bug: Bug) -> None:
    """Leased jobs are not in the order of their deadlines."""
    bug.statement("newest_leased", "ORDER BY deadline DESC, seq DESC", "ORDER BY seq DESC")


@mutant("STATE-1", stores=REDIS, seen_by=ORDER)
def a_list_by_time_goes_by_the_bytes_alone(bug: Bug) -> None:
    """What several sets have is not merged by time."""
    bug.lua("newest", "return a[1] > b[1] or", "return")


@mutant("STATE-1", stores=REDIS, seen_by=ORDER)
def a_page_by_time_passes_over_its_moment(bug: Bug) -> None:
    """Jobs of the same instant as the last of a page are missed."""
    bug.lua("reading", "while low < high do", "high = low\n  while low < high do")


@mutant("STATE-1", stores=REDIS, seen_by=ORDER)
def a_page_by_time_begins_with_the_last_of_the_page_before(bug: Bug) -> None:
    """The place to start before is one too late."""
    bug.lua("newest", "beyond + time, precedes)", "beyond + time, precedes) + 1")
