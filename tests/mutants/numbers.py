"""Bugs in the numbers of a job's events, in each place that counts them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core import events, lifecycle
from holdfast.tables import PurgeTable
from tests.mutants.planting import CORE, IN_PYTHON, POSTGRES, REDIS, Bug, Planted, mutant

IN_TURN = "every_kind_of_event_takes_the_next_number_of_its_job"
IN_A_BATCH = "in_a_batch_each_job_has_its_own_number"
DELIVERED = "the_claim_of_a_handed_off_job_is_its_second_event"
UNLOGGED = "a_call_without_an_event_uses_no_number"
FILE = ("file",)
MEMORY = ("memory",)
PURGES = "purges_are_counted_by_tenant"
OLD_PURGES = "an_old_count_of_purges_is_dropped_and_restarts"

# The rules as they stand in `core` ----------------------------------------------------------------------------


@mutant("EVENT-1", stores=CORE, seen_by=IN_TURN)
def a_release_is_not_counted(bug: Bug) -> None:
    """The event after a release has the number of the release."""

    def append(original: Planted, job: Any, kind: str, *rest: Any) -> Any:
        event = original(job, kind, *rest)
        job.events -= kind == "released"
        return event

    bug.around(events, "append", append)


@mutant("EVENT-1", stores=CORE, seen_by=IN_TURN)
def a_purge_has_the_number_of_the_ending(bug: Bug) -> None:
    """The event of a purge repeats the last number of the job."""

    def append(original: Planted, job: Any, kind: str, *rest: Any) -> Any:
        event = original(job, kind, *rest)
        event.number -= kind == "purged"
        return event

    bug.around(events, "append", append)


@mutant("EVENT-1", stores=CORE, seen_by=IN_TURN)
def a_new_life_goes_on_counting(bug: Bug) -> None:
    """An id that is used again begins with the number after its last one."""
    last: dict[Any, int] = {}

    def append(original: Planted, job: Any, kind: str, *rest: Any) -> Any:
        if kind == "enqueued":
            job.events = last.get(job.key, 0)
        event = original(job, kind, *rest)
        last[job.key] = job.events
        return event

    bug.around(events, "append", append)


@mutant("EVENT-1", stores=IN_PYTHON, seen_by=UNLOGGED)
def a_renewal_that_is_not_logged_takes_a_number(bug: Bug) -> None:
    """The numbers have a gap after an extension."""

    def extend(original: Planted, job: Any, *rest: Any, logged: bool) -> Any:
        event = original(job, *rest, logged=logged)
        job.events += not logged
        return event

    bug.around(lifecycle, "extend", extend)


# SQLite -------------------------------------------------------------------------------------------------------


@mutant("EVENT-1", stores=FILE, seen_by=IN_TURN)
def claims_are_not_counted_in_the_row(bug: Bug) -> None:
    """The record of a leased job has the number of the event before."""
    bug.sql("save_claimed", "events = events + 1, ", "")


@mutant("EVENT-1", stores=FILE, seen_by=IN_TURN)
def completions_are_not_counted_in_the_row(bug: Bug) -> None:
    """The record of a completed job has the number of the event before."""
    bug.sql("save_completed", "events = events + 1, ", "")
    bug.sql("save_one_completed", "events = events + 1, ", "")


@mutant("EVENT-1", stores=FILE, seen_by=IN_TURN)
def changes_are_not_counted_in_the_row(bug: Bug) -> None:
    """The record of a job that was retried, released, canceled or replayed has an old number."""
    bug.sql("save_job", "events = ?, ", "events = coalesce(events, ?), ")


@mutant("EVENT-1", stores=FILE, seen_by=IN_TURN)
def logged_renewals_are_not_counted_in_the_row(bug: Bug) -> None:
    """The event after an extension repeats its number."""
    bug.sql("save_deadline", "events = ? ", "events = coalesce(events, ?) ")


# Lua ----------------------------------------------------------------------------------------------------------


@mutant("EVENT-1", stores=REDIS, seen_by=IN_TURN)
def events_of_a_job_are_not_counted(bug: Bug) -> None:
    """All events except those of the fast paths have the number of the event before."""
    bug.lua("jobs", "job.events = job.events + 1", "")


@mutant("EVENT-1", stores=REDIS, seen_by=IN_TURN)
def the_short_way_of_a_claim_is_not_counted(bug: Bug) -> None:
    """The record of a leased job has the number of the event before."""
    bug.lua("granting", "0, 0, events + 1)", "0, 0, events)")


@mutant("EVENT-1", stores=REDIS, seen_by=IN_TURN)
def a_claim_has_the_number_of_the_event_before(bug: Bug) -> None:
    """The log has one number twice."""
    bug.lua("granting", "worker, events + 1, visible_at", "worker, events, visible_at")


@mutant("EVENT-1", stores=REDIS, seen_by=IN_A_BATCH)
def all_claims_of_a_batch_have_the_number_of_the_first(bug: Bug) -> None:
    """Jobs with as many attempts have the same number in their records."""
    bug.lua("granting", "starts[256 * events + attempts]", "starts[attempts]")


@mutant("EVENT-1", stores=REDIS, seen_by=IN_A_BATCH)
def all_completions_of_a_batch_have_the_number_of_the_first(bug: Bug) -> None:
    """Jobs with as many attempts have the same number in their records."""
    bug.lua("finish", "starts[256 * events + attempts]", "starts[attempts]")


@mutant("EVENT-1", stores=REDIS, seen_by=IN_A_BATCH)
def the_short_way_of_completions_is_not_counted(bug: Bug) -> None:
    """The record of a completed job has the number of the event before."""
    bug.lua("finish", "STATE_COMPLETED, events + 1)", "STATE_COMPLETED, events)")


@mutant("EVENT-1", stores=REDIS, seen_by=IN_A_BATCH)
def completions_have_the_number_of_the_event_before(bug: Bug) -> None:
    """The log has one number twice."""
    bug.lua("finish", "token, worker, events + 1)", "token, worker, events)")


@mutant("EVENT-1", stores=REDIS, seen_by=IN_TURN)
def a_single_completion_is_not_counted(bug: Bug) -> None:
    """The record of a job that completed alone has the number of the event before."""
    bug.lua(
        "single_finish",
        "STATE_COMPLETED, attempts, OUTCOME_COMPLETE, STATE_COMPLETED, events + 1",
        "STATE_COMPLETED, attempts, OUTCOME_COMPLETE, STATE_COMPLETED, events",
    )


@mutant("EVENT-1", stores=REDIS, seen_by=IN_TURN)
def a_single_completion_has_the_number_of_the_event_before(bug: Bug) -> None:
    """The log has one number twice."""
    bug.lua("single_finish", "token, 3, events + 1 }", "token, 3, events }")


@mutant("EVENT-1", stores=REDIS, seen_by=DELIVERED)
def a_delivery_is_counted_as_one_event(bug: Bug) -> None:
    """The record of a delivered job has the number of its enqueue."""
    bug.lua("single_enqueue", "0, 0, logged, 0", "0, 0, 1, 0")


@mutant("EVENT-1", stores=REDIS, seen_by=DELIVERED)
def both_events_of_a_delivery_have_one_number(bug: Bug) -> None:
    """The claim has the number of the enqueue."""
    bug.lua("single_enqueue", "= 4, 2, now, deadline", "= 4, 1, now, deadline")


# PostgreSQL ---------------------------------------------------------------------------------------------------


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_TURN)
def a_claim_is_not_counted_in_postgres(bug: Bug) -> None:
    """The record of a leased job has the number of the event before."""
    bug.function("claim", "events = j.events + 1,", "")


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_TURN)
def a_claim_is_logged_with_the_number_before(bug: Bug) -> None:
    """The log has one number twice."""
    bug.function("claim", "array_agg(f.events + 1)", "array_agg(f.events)")


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_A_BATCH)
def completions_are_not_counted_in_postgres(bug: Bug) -> None:
    """The record of a completed job has the number of the event before."""
    bug.function("complete", "attempts, events + 1, {state:completed}", "attempts, events, {state:completed}")


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_A_BATCH)
def completions_of_a_batch_get_each_others_numbers(bug: Bug) -> None:
    """The numbers in the events of a batch of completions are in another order than its jobs."""
    bug.function("complete", "array_agg(events + 1 ORDER BY i)", "array_agg(events + 1 ORDER BY seq)")


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_TURN)
def one_completion_is_not_counted_in_postgres(bug: Bug) -> None:
    """The record of a job that completed alone has the number of the event before."""
    bug.function(
        "complete_one",
        "v_job.attempts, v_job.events + 1, {state:completed}",
        "v_job.attempts, v_job.events, {state:completed}",
    )


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_TURN)
def one_completion_is_logged_with_the_number_before(bug: Bug) -> None:
    """The log has one number twice."""
    bug.function("complete_one", "ARRAY[v_job.events + 1]", "ARRAY[v_job.events]")


@mutant("EVENT-1", stores=POSTGRES, seen_by=DELIVERED)
def a_direct_hand_off_is_counted_as_one_event(bug: Bug) -> None:
    """The record of a job that was handed off has the number of its enqueue."""
    bug.function("enqueue_one", "v_deadline, now, 1, 2,", "v_deadline, now, 1, 1,")


@mutant("EVENT-1", stores=POSTGRES, seen_by=DELIVERED)
def both_events_of_a_hand_off_have_one_number(bug: Bug) -> None:
    """The claim has the number of the enqueue."""
    bug.function("enqueue_one", "'{1,2}'", "'{1}'")


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_TURN)
def changes_are_not_counted_in_postgres(bug: Bug) -> None:
    """The record of a job that was retried or released has an old number."""
    bug.statement("save_jobs", "events = u.events", "events = j.events")


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_TURN)
def endings_are_not_counted_in_postgres(bug: Bug) -> None:
    """The record of a job that failed or was canceled has an old number."""
    bug.statement("end_jobs", "u.attempts, u.events", "u.attempts, j.events")


@mutant("EVENT-1", stores=POSTGRES, seen_by=IN_TURN)
def replays_are_not_counted_in_postgres(bug: Bug) -> None:
    """The record of a job that was replayed has the number of its failure."""
    bug.statement("revive_jobs", "u.attempts, u.events", "u.attempts, d.events")


# Counts of purges ---------------------------------------------------------------------------------------------


@mutant("EVENT-1", stores=CORE, seen_by=PURGES)
def every_purge_is_the_first(bug: Bug) -> None:
    """The log has one number for all purges."""

    def purge(original: Planted, job: Any, now: int, counted: Any, *by: str) -> Any:
        return original(job, now, replace(counted, count=1), *by)

    bug.around(lifecycle, "purge", purge)


@mutant("EVENT-1", stores=MEMORY, seen_by=PURGES)
def a_purge_is_counted_twice_in_memory(bug: Bug) -> None:
    """The numbers have a gap between any two purges."""

    def count_purge(original: Planted, *args: Any) -> Any:
        original(*args)
        return original(*args)

    bug.around(PurgeTable, "count", count_purge)


@mutant("EVENT-1", stores=FILE, seen_by=PURGES)
def a_purge_is_not_counted_in_sqlite(bug: Bug) -> None:
    """The next purge has its number again."""
    bug.sql("count_purge", "count = count + 1, ", "")


@mutant("EVENT-1", stores=FILE, seen_by=PURGES)
def a_purge_is_counted_twice_in_sqlite(bug: Bug) -> None:
    """The numbers have a gap between any two purges."""
    bug.sql("count_purge", "count = count + 1, ", "count = count + 2, ")


@mutant("EVENT-1", stores=FILE, seen_by=OLD_PURGES)
def counts_of_purges_stay_for_ever_in_sqlite(bug: Bug) -> None:
    """A count without recent purges is never removed."""
    bug.sql("drop_purge_counts", "at < ?", "at < -?")


@mutant("EVENT-1", stores=REDIS, seen_by=PURGES)
def a_purge_is_not_counted_in_lua(bug: Bug) -> None:
    """The purges of the next call have the same numbers."""
    bug.lua("purge", "struct.pack('<I8I8', counted[1], counted[2])", "struct.pack('<I8I8', counted[1], 0)")


@mutant("EVENT-1", stores=REDIS, seen_by=PURGES)
def a_purge_is_counted_twice_in_lua(bug: Bug) -> None:
    """The numbers have a gap between any two purges."""
    bug.lua("purge", "counted[2] = counted[2] + 1", "counted[2] = counted[2] + 2")


@mutant("EVENT-1", stores=REDIS, seen_by=PURGES)
def purges_of_all_tenants_are_one_count_in_lua(bug: Bug) -> None:
    """All tenants of a shard share one count."""
    bug.lua("purge", "local tenant = names_of(job.lane)", "local tenant = 'all'")


@mutant("EVENT-1", stores=REDIS, seen_by=OLD_PURGES)
def counts_of_purges_stay_for_ever_in_lua(bug: Bug) -> None:
    """A count without recent purges is never removed."""
    bug.lua("purge", "hash_put(shard .. 'M', tenant, false)", "")


@mutant("EVENT-1", stores=POSTGRES, seen_by=PURGES)
def purges_are_not_counted_in_postgres(bug: Bug) -> None:
    """The purges of the next call have the same numbers."""
    bug.function("count_purges", "count = p.count + excluded.count", "count = excluded.count")


@mutant("EVENT-1", stores=POSTGRES, seen_by=PURGES)
def purges_are_counted_twice_in_postgres(bug: Bug) -> None:
    """The numbers have a gap between any two calls."""
    bug.function("count_purges", "count = p.count + excluded.count", "count = p.count + 2 * excluded.count")


@mutant("EVENT-1", stores=POSTGRES, seen_by=OLD_PURGES)
def counts_of_purges_stay_for_ever_in_postgres(bug: Bug) -> None:
    """A count without recent purges is never removed."""
    bug.function("count_purges", "o.at < p_before", "o.at < -p_before")
