"""Bugs in the log of the PostgreSQL store: what is written there, in which order, for whom, and how it is trimmed."""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import EventsTrimmed
from tests.mutants.planting import POSTGRES, Bug, Planted, mutant

# What is written ----------------------------------------------------------------------------------------------


@mutant("EVENT-1", stores=POSTGRES)
def a_fresh_batch_makes_no_events(bug: Bug) -> None:
    """An enqueue makes no events."""
    bug.function("enqueue", "{s}.log(v_xid, v_now, v_count,", "{s}.log(v_xid, v_now, 0,")


@mutant("EVENT-1", stores=POSTGRES)
def a_claim_makes_no_events(bug: Bug) -> None:
    """A claim makes no events."""
    bug.function("claim", "{s}.log(v_xid, v_now, v_count,", "{s}.log(v_xid, v_now, 0,")


@mutant("EVENT-1", stores=POSTGRES, seen_by="a_batch_makes_one_event_for_each_item")
def a_batch_of_completions_makes_one_event(bug: Bug) -> None:
    """Of several jobs that complete in one call, only the first makes an event."""
    bug.function("complete", "{s}.log(v_xid, v_now, v_count,", "{s}.log(v_xid, v_now, 1,")


@mutant("EVENT-1", stores=POSTGRES)
def a_completion_is_logged_as_a_failure(bug: Bug) -> None:
    """A completion is logged as a failure."""
    bug.function("complete", "'{{event:completed}}'", "'{{event:failed}}'")


@mutant("EVENT-1", stores=POSTGRES)
def a_claim_is_logged_with_the_attempt_before(bug: Bug) -> None:
    """The event of a lease has the attempt number from before it."""
    bug.function("claim", "array_agg(f.attempts + 1)", "array_agg(f.attempts)")


@mutant("EVENT-3", "EVENT-1", stores=POSTGRES, seen_by="a_batch_over_several_tenants_shows_each_tenant_its_own_events")
def a_turn_is_logged_with_the_attempt_before(bug: Bug) -> None:
    """The event of a lease by turns has the attempt number from before it."""
    bug.function("claim", "array_agg(p.attempts + 1)", "array_agg(p.attempts)")


@mutant("EVENT-1", stores=POSTGRES)
def a_claim_is_logged_without_its_worker(bug: Bug) -> None:
    """The event of a claim has no worker."""
    bug.function("claim", "ARRAY[p_worker]", "ARRAY['']")


@mutant("EVENT-1", stores=POSTGRES)
def a_claim_is_logged_with_another_deadline(bug: Bug) -> None:
    """The event of a claim has its time as the deadline."""
    bug.function("claim", "ARRAY[v_now + p_lease]", "ARRAY[v_now]")


@mutant("EVENT-1", "RESULT-1", stores=POSTGRES, seen_by="a_single_completion_does_what_a_batch_does")
def a_completion_is_logged_without_its_attempt(bug: Bug) -> None:
    """The event of a completion has no attempt number."""
    bug.function("complete", "v_types, v_attempts, p_tokens", "v_types, '{0}', p_tokens")


@mutant("EVENT-1", stores=POSTGRES, seen_by="a_batch_makes_one_event_for_each_item")
def events_of_a_batch_get_each_others_types(bug: Bug) -> None:
    """The types in the events of a batch of completions are in another order than its jobs."""
    bug.function("complete", "array_agg(type ORDER BY i)", "array_agg(type ORDER BY type)")


@mutant("EVENT-1", "TIME-1", stores=POSTGRES)
def events_have_no_time(bug: Bug) -> None:
    """Every event has a time long ago."""
    bug.function("log", "p_xid, v_n, p_at,", "p_xid, v_n, 0,")


@mutant("EVENT-1", stores=POSTGRES)
def events_lose_their_data(bug: Bug) -> None:
    """An event of a retry or a failure has neither the error nor the time of the next attempt."""

    def pack(original: Planted, events: Any) -> Any:
        *columns, more, numbers = original(events)
        return (*columns, [b"\x80"] * len(more), numbers)

    bug.around(bug.postgres("log"), "pack", pack)


@mutant("EVENT-3", "EVENT-1", stores=POSTGRES, seen_by="a_batch_over_several_tenants_shows_each_tenant_its_own_events")
def a_batch_is_logged_as_the_first_tenants(bug: Bug) -> None:
    """All events of one call are in the stream of its first tenant."""

    def at(_: Planted, column: list[Any], __: int) -> Any:
        return column[0]

    bug.around(bug.postgres("log"), "_at", at)


@mutant("EVENT-1", stores=POSTGRES, seen_by="a_call_that_changes_nothing_makes_no_event")
def extensions_are_always_logged(bug: Bug) -> None:
    """Extensions make events without the option."""

    def extend(original: Planted, unit: Any, items: Any, **_: Any) -> Any:
        return original(unit, items, all_events=True)

    async def plain(*_: Any) -> None:
        return None

    bug.around(bug.postgres("changes"), "extend", extend)
    bug.around(bug.postgres("finishing").Finishing, "_extend_live", plain)


@mutant("EVENT-1", stores=POSTGRES, seen_by="extensions_and_progress_make_events_only_when_asked_for")
def progress_is_never_logged(bug: Bug) -> None:
    """Progress makes no events in spite of the option."""

    def report(original: Planted, unit: Any, items: Any, **_: Any) -> Any:
        return original(unit, items, all_events=False)

    bug.around(bug.postgres("changes"), "report", report)


# Order, offsets, tenants --------------------------------------------------------------------------------------


@mutant("EVENT-2", stores=POSTGRES)
def a_page_ends_a_row_of_the_log(bug: Bug) -> None:
    """A reader that resumes inside the events of one call misses the rest of them."""
    bug.statement("events", "(epoch, xid, n) >= ($1, $2, $3)", "(epoch, xid, n) > ($1, $2, $3)")


@mutant("EVENT-2", stores=POSTGRES)
def a_page_begins_a_row_of_the_log_anew(bug: Bug) -> None:
    """A reader that resumes inside the events of one call sees the first of them again."""

    def unpack(original: Planted, row: Any, _: int, names: Any) -> Any:
        return original(row, 0, names)

    bug.around(bug.postgres("log"), "unpack", unpack)


@mutant("EVENT-2", stores=POSTGRES)
def the_log_is_read_newest_first(bug: Bug) -> None:
    """The newest events are returned first."""
    bug.statement("events", "ORDER BY epoch, xid, n", "ORDER BY epoch, xid, n DESC")
    bug.statement("events", "ORDER BY epoch, xid", "ORDER BY epoch, xid DESC")


@mutant("EVENT-2", stores=POSTGRES, seen_by="a_reader_misses_no_transaction_that_commits_late")
def readers_go_past_open_transactions(bug: Bug) -> None:
    """A reader never sees events of a transaction that was open when it read."""
    bug.function("horizon", "pg_snapshot_xmin(", "pg_snapshot_xmax(")


@mutant("EVENT-2", stores=POSTGRES, seen_by="a_reader_misses_no_transaction_that_commits_late")
def every_transaction_is_taken_for_one_of_another_database(bug: Bug) -> None:
    """Readers pass an open transaction of the same database."""
    bug.function("horizon", "WHERE datid <> (", "WHERE datid IS NOT NULL OR datid <> (")


@mutant("EVENT-2", stores=POSTGRES, seen_by="events_of_a_long_transaction_are_in_the_order_of_the_job")
def a_completion_is_filed_under_its_own_transaction(bug: Bug) -> None:
    """A completion in a transaction that began early is logged before the lease."""
    bug.function("complete", "v_last > v_xid", "false")


@mutant("EVENT-2", stores=POSTGRES, seen_by="events_of_a_long_transaction_are_in_the_order_of_the_job")
def a_change_is_filed_under_its_own_transaction(bug: Bug) -> None:
    """A failure in a transaction that began early is logged before the lease."""
    bug.computed(bug.postgres("unit_of_work").UnitOfWork, "filed_under", lambda unit: unit.xid)


@mutant("EVENT-3", stores=POSTGRES)
def a_stream_is_that_of_all_tenants(bug: Bug) -> None:
    """The stream of a tenant is read without its name."""

    async def events(original: Planted, client: Any, cache: Any, _: str | None, *rest: Any) -> Any:
        return await original(client, cache, None, *rest)

    bug.around(bug.postgres("log_reads"), "events", events)


# Trimming and readers -----------------------------------------------------------------------------------------


@mutant("EVENT-2", stores=POSTGRES, seen_by="trimming_reports_the_gap_that_it_leaves")
def the_mark_of_what_is_past_is_too_early(bug: Bug) -> None:
    """The last trimmed event counts as kept."""
    bug.function("record_removed", "first + gone FROM", "first + gone - 1 FROM")


@mutant("EVENT-2", stores=POSTGRES, seen_by="trimming_reports_the_gap_that_it_leaves")
def a_gap_is_not_reported_in_postgres(bug: Bug) -> None:
    """A reader before the kept events gets no gap."""

    async def events(original: Planted, client: Any, cache: Any, tenant: str | None, _: str | None, limit: int) -> Any:
        try:
            return await original(client, cache, tenant, _, limit)
        except EventsTrimmed:
            return await original(client, cache, tenant, None, limit)

    bug.around(bug.postgres("log_reads"), "events", events)


@mutant("EVENT-2", stores=POSTGRES, seen_by="trimming_waits_for_the_slowest_reader")
def trimming_waits_for_the_fastest_reader_in_postgres(bug: Bug) -> None:
    """Events are trimmed that a slow reader has not read."""
    bug.statement("slowest_readers", "DISTINCT ON (tenant) tenant,", "'' AS tenant,")
    bug.statement("slowest_readers", "ORDER BY tenant, epoch, xid, n, k", "ORDER BY epoch, xid, n, k")


@mutant("EVENT-2", stores=POSTGRES, seen_by="trimming_waits_for_the_slowest_reader")
def trimming_waits_for_no_reader(bug: Bug) -> None:
    """Events are trimmed that no reader has read."""
    bug.statement("slowest_readers", "WHERE tenant = ANY ($1::text[])", "WHERE false AND tenant = ANY ($1::text[])")


@mutant("EVENT-2", stores=POSTGRES, seen_by="trimming_does_not_wait_for_a_reader_that_is_too_far_behind")
def trimming_waits_for_ever_in_postgres(bug: Bug) -> None:
    """An abandoned reader keeps the log from being trimmed."""
    upkeep = bug.postgres("upkeep")
    bug.constant(upkeep, "EVENTS_BOUND_MS", 10**15, used_by=(upkeep, "trim"))


@mutant("EVENT-2", stores=POSTGRES, seen_by="trimming_by_age_keeps_young_events_after_the_clock_was_set_back")
def one_old_row_takes_all_before_it(bug: Bug) -> None:
    """The log is assumed to be in order of time, even if the clock was set back."""
    bug.function("trim_step", "bool_and(excess = count OR at <= p_old) OVER", "bool_or(at <= p_old) OVER")
    bug.function("trim_step", "(PARTITION BY tenant ORDER BY epoch, xid, n, first)", "(PARTITION BY tenant)")
    bug.function("trim_step", "p_tenants = '{}' AND p_old", "false AND p_old")


@mutant("EVENT-2", stores=POSTGRES, seen_by="readers_register_by_name_and_never_move_back")
def a_reader_moves_backwards_in_postgres(bug: Bug) -> None:
    """A reader can be moved back to an earlier offset, and blocks trimming again."""
    bug.statement("set_reader", "(readers.epoch, readers.xid, readers.n, readers.k) <", "(0, 0, 0, 0) <")


@mutant("EVENT-2", stores=POSTGRES, seen_by="readers_register_by_name_and_never_move_back")
def a_dropped_reader_stays(bug: Bug) -> None:
    """A reader that was dropped still blocks trimming."""
    bug.statement("drop_reader", "name = $2", "name = $2 || ' '")


@mutant("EVENT-2", "EVENT-3", stores=POSTGRES, seen_by="readers_register_by_name_and_never_move_back")
def readers_of_all_tenants_are_listed(bug: Bug) -> None:
    """A tenant sees other tenants' readers."""
    bug.statement("readers", "WHERE tenant = $1", "WHERE $1::text IS NOT NULL")


@mutant("EVENT-2", stores=POSTGRES, seen_by="trimming_reports_the_gap_that_it_leaves")
def more_is_trimmed_than_may_go(bug: Bug) -> None:
    """Fewer events are kept than configured."""

    async def trim(original: Planted, client: Any, cache: Any, _: int) -> int:
        return await original(client, cache, 0)

    bug.around(bug.postgres("upkeep"), "trim", trim)


@mutant("EVENT-2", stores=POSTGRES, seen_by="one_tenants_flood_removes_no_event_of_another")
def what_is_cut_beside_a_flood_is_not_kept(bug: Bug) -> None:
    """Events of tenants below the level are trimmed with those of the tenant above it."""
    bug.function("trim_step", "FROM unnest(v_runs) WHERE gone < count) u", "FROM unnest(v_runs) WHERE false) u")


@mutant("EVENT-2", stores=POSTGRES, seen_by="events_that_survive_trimming_stay_in_order")
def what_is_kept_of_a_row_begins_it_anew(bug: Bug) -> None:
    """Events that are kept of a call get the offsets of its first ones."""
    bug.function("trim_step", "e.at, u.begins - 1,", "e.at, u.first,")


@mutant("EVENT-2", stores=POSTGRES, seen_by="events_that_survive_trimming_stay_in_order")
def a_row_that_was_shortened_keeps_all_its_ids(bug: Bug) -> None:
    """When a row is shortened, the kept events get the ids of the trimmed ones."""
    bug.function("remove_kept", "ids = ids[u.gone + 1 : u.count]", "ids = ids[1 : u.count - u.gone]")


@mutant("EVENT-2", stores=POSTGRES, seen_by="one_tenants_flood_removes_no_event_of_another")
def every_tenant_is_judged_by_the_last_cut(bug: Bug) -> None:
    """A tenant that lost nothing gets another tenant's gap."""
    bug.statement(
        "cut_of", "WHERE tenant = $1", "WHERE tenant >= '' OR tenant = $1 ORDER BY epoch DESC, xid DESC, n DESC"
    )


@mutant("EVENT-2", stores=POSTGRES, seen_by="one_tenants_flood_removes_no_event_of_another")
def readers_of_all_tenants_get_no_gaps(bug: Bug) -> None:
    """A reader of all tenants gets no gap for one tenant's events."""
    bug.statement("cuts", "WHERE (epoch", "WHERE false AND (epoch")


@mutant("EVENT-2", stores=POSTGRES, seen_by="a_reader_keeps_only_the_events_of_its_own_tenant")
def any_tenants_reader_holds_the_log(bug: Bug) -> None:
    """Trimming waits for readers of other tenants."""
    bug.statement("slowest_readers", "DISTINCT ON (tenant) tenant,", "'' AS tenant,")
    bug.statement("slowest_readers", "= ANY ($1::text[])", "= ANY ($1::text[]) OR true")
    bug.statement(
        "slowest_readers", "ORDER BY tenant, epoch, xid, n, k", "ORDER BY epoch DESC, xid DESC, n DESC, k DESC"
    )


@mutant("EVENT-2", stores=POSTGRES, seen_by="old_events_of_every_tenant_are_trimmed")
def what_is_kept_never_grows_old(bug: Bug) -> None:
    """Events that were kept during a flood are never trimmed."""
    bug.function("trim_step", "v_runs IS NULL AND p_old >=", "v_runs IS NULL AND 0 >=")


# What tenants keep --------------------------------------------------------------------------------------------


@mutant("TENANT-5", stores=POSTGRES, seen_by="usage_follows_batches_and_attempts")
def a_batch_counts_as_one_job(bug: Bug) -> None:
    """Of many jobs in one call, one is counted."""
    bug.function("usage_enqueued", "count(*) FILTER (WHERE NOT later)", "1")


@mutant("TENANT-5", stores=POSTGRES, seen_by="usage_follows_what_a_tenant_keeps")
def results_are_not_counted(bug: Bug) -> None:
    """The result of a job is not counted."""
    bug.function("complete_one", "coalesce(octet_length(p_result), 0)", "0")


@mutant("TENANT-5", stores=POSTGRES, seen_by="usage_follows_what_a_tenant_keeps")
def forgotten_jobs_are_still_counted(bug: Bug) -> None:
    """Removed jobs are still counted."""
    bug.statement("change_usage", "VALUES ($1::int[])", "SELECT $1::int[] WHERE false")


@mutant("TENANT-5", stores=POSTGRES, seen_by="keys_that_outlive_their_job_are_counted")
def a_key_that_is_taken_again_is_not_counted(bug: Bug) -> None:
    """A key that is taken again after its time is not counted again."""
    bug.around(bug.postgres("unit_of_work").UnitOfWork, "_count_keys", lambda *_: None)


# Counts of a queue ----------------------------------------------------------------------------------------------


@mutant("STATE-1", stores=POSTGRES)
def a_claim_is_not_counted(bug: Bug) -> None:
    """A leased job counts as ready."""
    bug.function("claim", "v_numbers, v_usage)", "v_numbers, NULL)")


@mutant("STATE-1", stores=POSTGRES)
def a_change_of_state_is_not_counted(bug: Bug) -> None:
    """A job that fails, is canceled or is released counts under the state that it had."""

    def job(original: Planted, changes: Any, lane: int, before: int | None, after: int | None, size: int = 0) -> None:
        original(changes, lane, before, after if before is None or after is None else before, size)

    bug.around(bug.postgres("usage").Changes, "job", job)


@mutant("STATE-1", stores=POSTGRES)
def uncounted_changes_are_missed(bug: Bug) -> None:
    """Counts are as old as the last round of maintenance."""
    bug.function("count_jobs", "FROM {s}.uncounted() x", "FROM {s}.uncounted() x WHERE false")


@mutant("CLAIM-3", "STATE-1", stores=POSTGRES)
def a_job_handed_off_counts_as_ready(bug: Bug) -> None:
    """A job that was handed off is counted as waiting."""
    bug.function("enqueue_one", "0, 0, 0, 0, 1, 0, 0, 0]", "0, 0, 1, 0, 0, 0, 0, 0]")


@mutant("STATE-1", stores=POSTGRES)
def a_completion_is_not_counted(bug: Bug) -> None:
    """A completed job counts as leased."""
    bug.function("complete_one", "0, 0, 0, 0, -1, 1, 0, 0]", "0, 0, 0, 0, 0, 0, 0, 0]")
    bug.function("usage_completed", "-count(*), count(*)", "0, 0")
