"""Bugs in how jobs end in the PostgreSQL store: completions, other outcomes, replay, purge, and what is kept."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from msgspec.structs import replace

from holdfast.core.job import Job, JobState
from tests.mutants.planting import POSTGRES, Bug, Planted, mutant

# Completions --------------------------------------------------------------------------------------------------


@mutant("LEASE-1", "TENANT-2", stores=POSTGRES, seen_by="single_and_batched_completions_are_judged_alike")
def a_completion_needs_no_token(bug: Bug) -> None:
    """A completion needs only the address of a running job."""
    bug.function("complete", "AND j.token = u.token", "")


@mutant("LEASE-1", stores=POSTGRES, seen_by="single_and_batched_completions_are_judged_alike")
def a_completion_has_no_deadline(bug: Bug) -> None:
    """A completion past the deadline is accepted until the lease is reaped."""
    bug.function("complete", "OR v_until <= v_now", "")


@mutant("LEASE-1", stores=POSTGRES, seen_by="single_and_batched_completions_are_judged_alike")
def a_completion_may_be_a_moment_late(bug: Bug) -> None:
    """A completion is accepted at the exact deadline."""
    bug.function("complete", "v_until <= v_now", "v_until < v_now")


@mutant("LEASE-1", stores=POSTGRES, seen_by="single_and_batched_completions_are_judged_alike")
def a_spent_token_completes(bug: Bug) -> None:
    """A released or failed job can be completed with the same token."""
    bug.function("complete", "j.state + 0 = {state:leased}", "j.state + 0 > 0")
    bug.function("complete", "OR v_until <= v_now", "")


@mutant("LEASE-1", "ENQ-4", stores=POSTGRES, seen_by="each_result_of_a_batch_goes_to_its_own_job")
def a_batch_with_a_live_lease_is_accepted_whole(bug: Bug) -> None:
    """One live lease in a batch of completions makes expired ones valid."""
    bug.function("complete", "v_live < v_count", "v_live < 1")


@mutant("ENQ-4", "RESULT-1", stores=POSTGRES, seen_by="each_result_of_a_batch_goes_to_its_own_job")
def result_of_the_first_is_that_of_all(bug: Bug) -> None:
    """All jobs of a batch of completions get the result of its first."""
    bug.function("complete", "u.result AS outcome", "p_results[1] AS outcome")


@mutant("RESULT-1", stores=POSTGRES, seen_by="a_single_completion_does_what_a_batch_does")
def every_result_is_kept_for_an_hour(bug: Bug) -> None:
    """The TTL of a job is ignored when it completes."""
    bug.function("complete", "held.now + result_ttl", "held.now + 3600000")


@mutant("TIME-1", "RESULT-1", stores=POSTGRES, seen_by="a_single_completion_does_what_a_batch_does")
def completed_when_it_was_enqueued(bug: Bug) -> None:
    """The time of the end is that of the enqueue."""
    bug.function(
        "complete", "claimed_at, held.now, held.now + result_ttl", "claimed_at, enqueued_at, held.now + result_ttl"
    )


@mutant("LEASE-1", stores=POSTGRES, seen_by="the_same_outcome_again_gets_the_first_answer_again")
def a_repeated_completion_is_refused(bug: Bug) -> None:
    """A repeated acknowledgement gets LeaseLost."""

    def to_job(original: Planted, *args: Any) -> Job:
        job: Job = original(*args)
        if job.state is JobState.COMPLETED:
            job.spent, job.spent_state = "", ""
        return job

    bug.around(bug.postgres("rows"), "to_job", to_job)


@mutant("RESULT-2", stores=POSTGRES)
def waiters_get_no_hint_of_an_end(bug: Bug) -> None:
    """Waiters get no hint of the end of their job."""

    def hints(original: Planted, effects: Any, *args: Any) -> Any:
        return [reported for reported in original(effects, *args) if reported[0].value != "done"]

    bug.around(bug.postgres("unit_of_work").Effects, "hints", hints)


@mutant("CLAIM-3", stores=POSTGRES, seen_by="a_hint_is_sent_whenever_a_job_may_have_become_visible")
def workers_get_no_hint_of_a_waiting_job(bug: Bug) -> None:
    """Workers get no hint of a visible job."""

    def hints(original: Planted, effects: Any, *args: Any) -> Any:
        return [reported for reported in original(effects, *args) if reported[0].value != "ready"]

    bug.around(bug.postgres("unit_of_work").Effects, "hints", hints)


@mutant("EVENT-2", stores=POSTGRES, seen_by="a_hint_is_sent_when_the_log_grows")
def readers_get_no_hint_of_new_events(bug: Bug) -> None:
    """Readers that follow the log get no hint."""

    def hints(original: Planted, effects: Any, *args: Any) -> Any:
        return [reported for reported in original(effects, *args) if reported[0].value != "events"]

    bug.around(bug.postgres("unit_of_work").Effects, "hints", hints)


# Other outcomes -----------------------------------------------------------------------------------------------


@mutant("CANCEL-1", stores=POSTGRES, seen_by="a_cancel_waits_for_a_claim_and_builds_on_it")
def changes_do_not_lock_running_jobs(bug: Bug) -> None:
    """A cancel overwrites what a claim has just written."""
    bug.function("lock_jobs", "FOR UPDATE OF j", "")


def _lock_before_it_is_there(bug: Bug, method: str, least: int) -> None:
    """This method finds jobs by id once more, a moment after the lock, and takes them as if they had been locked.

    It waits a while for one whose state is not below `least`: the moment between two lives of an id is short.
    """
    within = ContextVar("within", default=False)

    async def call(original: Planted, *args: Any, **options: Any) -> Any:
        before = within.set(True)
        try:
            return await original(*args, **options)
        finally:
            within.reset(before)

    async def begin(original: Planted, session: Any, cache: Any, keys: Any) -> Any:
        pairs = list(keys)
        unit = await original(session, cache, pairs)
        numbers, ids = [lane.number for lane, _ in pairs], [id_ for _, id_ in pairs]
        found: list[Any] = []
        for _ in range(30 if within.get() else 0):
            await asyncio.sleep(0.001)
            found = await session.rows("find", numbers, ids, unit.fingerprint(numbers))
            if any(row["state"] >= least for row in found):
                break
        for row in found:
            unit.take(row, locked=True)
        await asyncio.sleep(0.01 if found else 0)  # As on a slow line.
        return unit

    bug.around(bug.face, method, call)
    bug.around(bug.postgres("unit_of_work").UnitOfWork, "begin", begin)
    bug.function("lock_jobs", "ORDER BY ids.lane, ids.id FOR UPDATE OF ids", "")
    bug.function("lock_jobs", "ORDER BY j.seq FOR UPDATE OF j", "")


@mutant("CANCEL-1", "STATE-2", stores=POSTGRES, seen_by="a_concurrent_cancel_and_enqueue_answer_what_happened")
def a_cancel_acts_on_what_it_has_not_locked(bug: Bug) -> None:
    """A job that is enqueued during its cancel is canceled in the log, and completed."""
    _lock_before_it_is_there(bug, "cancel", least=0)
    bug.function("expect", "p_changed IS DISTINCT FROM p_meant", "false")


@mutant("KEEP-1", "ENQ-2", stores=POSTGRES, seen_by="a_late_purge_does_not_remove_the_next_life")
def a_purge_takes_the_id_of_the_next_life(bug: Bug) -> None:
    """A purge removes whatever job has the id by then."""
    _lock_before_it_is_there(bug, "purge", least=5)
    bug.function("expect", "p_changed IS DISTINCT FROM p_meant", "false")
    bug.statement("drop_ids", "AND ids.seq = u.seq", "")


@mutant("LEASE-2", stores=POSTGRES)
def an_extension_is_not_written(bug: Bug) -> None:
    """An extended lease ends when it would have ended anyway."""
    bug.function("extend", "greatest(j.deadline, v_now + u.lease)", "j.deadline")


@mutant("LEASE-2", stores=POSTGRES)
def an_extension_takes_time_away(bug: Bug) -> None:
    """Extending by less than is left shortens a lease."""
    bug.function("extend", "greatest(j.deadline, v_now + u.lease)", "v_now + u.lease")


@mutant("LEASE-1", "LEASE-2", stores=POSTGRES)
def an_extension_needs_no_token(bug: Bug) -> None:
    """An earlier holder can extend the lease of the next one."""
    bug.function("extend", "AND j.token = u.token", "")


@mutant("LEASE-2", "LEASE-1", stores=POSTGRES)
def an_extension_has_no_deadline(bug: Bug) -> None:
    """An expired lease can be extended until it is reaped."""
    bug.function("extend", "OR v_until <= {s}.now_ms()", "")


@mutant("ENQ-4", stores=POSTGRES, seen_by="batches_of_extensions_answer_item_by_item_too")
def a_batch_of_extensions_is_granted_whole(bug: Bug) -> None:
    """One live lease in a batch of extensions makes expired ones valid."""
    bug.function("extend", "< cardinality(p_ids) OR v_until <= {s}.now_ms()", "< 1")


@mutant("RETRY-5", stores=POSTGRES)
def an_attempt_is_not_given_back_in_postgres(bug: Bug) -> None:
    """A released job has lost an attempt."""
    bug.statement("save_jobs", "attempts = u.attempts,", "")


@mutant("RETRY-3", "CLAIM-2", stores=POSTGRES)
def a_retry_does_not_wait(bug: Bug) -> None:
    """A job that failed can be claimed at once, whatever its policy says."""
    bug.statement("save_jobs", "visible_at = u.visible_at,", "")


@mutant("RETRY-4", "LEASE-1", stores=POSTGRES)
def a_retry_forgets_the_error(bug: Bug) -> None:
    """The errors of earlier attempts are not kept."""
    bug.statement("save_jobs", "extra = u.extra,", "")


@mutant("RETRY-1", "LEASE-1", stores=POSTGRES)
def an_outcome_is_kept_for_the_next_lease(bug: Bug) -> None:
    """The last holder's outcome counts as that of the next holder."""
    rows = bug.postgres("rows")

    def to_job(original: Planted, row: Any, *args: Any) -> Job:
        job: Job = original(row, *args)
        if row["extra"] is not None and job.state is not JobState.COMPLETED:
            extra = rows._decode_extra(row["extra"])
            job.spent, job.spent_state = extra.spent, extra.spent_state
        return job

    bug.around(rows, "to_job", to_job)


@mutant("KEEP-1", "DEAD-1", stores=POSTGRES, seen_by="a_job_that_has_not_ended_is_never_forgotten")
def dead_letters_are_forgotten_at_once(bug: Bug) -> None:
    """A failed or canceled job has no retention."""
    bug.statement("end_jobs", "u.expires_at,", "u.finished_at,")


@mutant("LEASE-1", stores=POSTGRES, seen_by="the_same_outcome_again_gets_the_first_answer_again")
def an_end_forgets_the_token(bug: Bug) -> None:
    """A repeated failure gets LeaseLost."""
    bug.statement("end_jobs", "j.token,", "0::bigint,")


@mutant("RETRY-4", "DEAD-1", stores=POSTGRES, seen_by="a_permanent_error_fails_at_once")
def an_end_forgets_why(bug: Bug) -> None:
    """A dead letter has neither reason nor errors of its last attempt."""
    bug.statement("end_jobs", "u.extra,", "j.extra,")


@mutant("RETRY-1", "DEAD-1", stores=POSTGRES, seen_by="dead_letters_are_listed_oldest_first_with_reason_and_errors")
def an_end_is_dated_by_the_enqueue(bug: Bug) -> None:
    """Dead letters are listed in the order in which they were enqueued."""
    bug.statement("end_jobs", "u.finished_at,", "j.enqueued_at,")


@mutant("CANCEL-3", "STATE-1", stores=POSTGRES)
def a_canceled_job_shows_as_failed(bug: Bug) -> None:
    """Canceled jobs are stored as failed."""
    bug.statement("end_jobs", "u.state,", "6::smallint,")


@mutant("LEASE-1", "CANCEL-2", stores=POSTGRES, seen_by="progress_is_recorded_only_for_the_current_lease")
def progress_is_not_written(bug: Bug) -> None:
    """Progress is acknowledged but not stored."""

    def report(original: Planted, unit: Any, *args: Any, **kwargs: Any) -> Any:
        answers = original(unit, *args, **kwargs)
        for held in unit.found.values():
            held.changed = False
        return answers

    bug.around(bug.postgres("changes"), "report", report)


# Replay and purge ---------------------------------------------------------------------------------------------


@mutant("DEAD-1", "STATE-3", stores=POSTGRES, seen_by="a_replayed_job_starts_again_under_its_id")
def a_replayed_job_keeps_its_attempts(bug: Bug) -> None:
    """A replayed job has no attempts left."""
    bug.statement("revive_jobs", "u.attempts,", "d.attempts,")


@mutant("CLAIM-2", "DEAD-1", stores=POSTGRES, seen_by="a_retried_job_is_ordered_by_its_new_visible_time")
def a_replayed_job_keeps_its_old_place(bug: Bug) -> None:
    """A replayed job keeps its old place in the queue."""
    bug.statement("revive_jobs", "u.visible_at,", "d.visible_at,")


@mutant("STATE-3", "DEAD-1", stores=POSTGRES)
def a_replay_is_not_recorded(bug: Bug) -> None:
    """The record of a replayed job has no count of replays and no errors."""
    bug.statement("revive_jobs", "u.extra", "NULL::bytea")


@mutant("DEAD-1", stores=POSTGRES, seen_by="a_purge_by_age_spares_jobs_replayed_since")
def a_purge_by_age_takes_what_started_again(bug: Bug) -> None:
    """The time of the ending that was seen is ignored."""

    def purge(original: Planted, unit: Any, items: Any) -> Any:
        return original(unit, [replace(item, finished_at=None) for item in items])

    bug.around(bug.postgres("changes"), "purge", purge)


@mutant("KEEP-1", "DEAD-1", "EVENT-1", stores=POSTGRES, seen_by="a_purge_makes_an_event_and_forgetting_does_not")
def a_purge_makes_no_event(bug: Bug) -> None:
    """A purge makes no event."""

    async def purge(original: Planted, unit: Any, items: Any) -> Any:
        answers = await original(unit, items)
        unit.events.clear()
        return answers

    bug.around(bug.postgres("changes"), "purge", purge)


@mutant("DEAD-1", "KEEP-1", stores=POSTGRES, seen_by="a_purge_by_age_spares_jobs_replayed_since")
def a_purged_job_stays_in_the_list(bug: Bug) -> None:
    """A purge only frees the id."""
    bug.statement("forget_jobs", "seq = ANY ($1::bigint[])", "seq = ANY ($1::bigint[]) AND false")


@mutant("DEAD-1", stores=POSTGRES)
def dead_letters_come_newest_first_in_postgres(bug: Bug) -> None:
    """The list of failed jobs has the newest first."""
    bug.statement("list_dead", "ORDER BY finished_at, seq", "ORDER BY finished_at DESC, seq DESC")


@mutant("DEAD-1", stores=POSTGRES, seen_by="dead_letters_are_filtered_by_queue_type_and_error")
def every_ended_job_is_a_dead_letter(bug: Bug) -> None:
    """The list of failed jobs reads completed ones, too, and returns a cursor."""
    bug.statement("list_dead", "state = 6", "state >= 6")
    bug.around(bug.postgres("reads").ListQuery, "matches", lambda *_: True)


# What is kept -------------------------------------------------------------------------------------------------


@mutant("RESULT-1", stores=POSTGRES, seen_by="the_ttl_of_a_result_can_be_changed_afterwards")
def a_change_of_the_ttl_is_not_written(bug: Bug) -> None:
    """A change of the TTL is acknowledged but not stored."""
    bug.statement("save_expiry", "expires_at = u.expires_at", "expires_at = d.expires_at")


@mutant("KEEP-1", "RESULT-1", stores=POSTGRES, seen_by="ended_jobs_are_forgotten_after_their_retention_and_not_before")
def prune_takes_whatever_has_ended(bug: Bug) -> None:
    """A prune removes every ended job."""
    bug.statement("expired_jobs", "expires_at <= $1", "finished_at <= $1")


@mutant("KEEP-1", stores=POSTGRES, seen_by="pruning_is_bounded_and_says_when_more_is_left")
def prune_does_not_say_that_more_is_left(bug: Bug) -> None:
    """A prune that reached its limit answers that nothing is left."""
    bug.statement("any_expired", "SELECT EXISTS", "SELECT false AND EXISTS")


@mutant("KEEP-1", stores=POSTGRES, seen_by="pruning_is_bounded_and_says_when_more_is_left")
def prune_takes_more_than_its_limit(bug: Bug) -> None:
    """A prune forgets more than it was asked to."""
    bug.statement("expired_jobs", "LIMIT $2", "LIMIT $2 + 1")


@mutant("KEEP-1", "RESULT-1", stores=POSTGRES)
def stats_count_what_is_forgotten(bug: Bug) -> None:
    """Jobs past their retention are counted until they are pruned."""
    bug.function("count_jobs", "d.expires_at <= v_now", "d.expires_at <= 0")


@mutant("RESULT-1", stores=POSTGRES, seen_by="a_result_in_a_blob_is_named_when_it_is_forgotten")
def a_blob_is_never_named(bug: Bug) -> None:
    """The blob of a forgotten job is not deleted."""
    bug.statement("drop_blobs", "SELECT unnest($1::text[])", "SELECT unnest($1::text[]) LIMIT 0")


@mutant("TIME-1", stores=POSTGRES, seen_by="a_worker_counts_as_live_until_its_last_beat_expires")
def workers_live_for_ever(bug: Bug) -> None:
    """A worker without heartbeats is still listed."""
    bug.statement("workers", "expires_at > {s}.now_ms()", "true")


@mutant("TIME-1", stores=POSTGRES, seen_by="a_worker_counts_as_live_until_its_last_beat_expires")
def a_worker_lives_a_moment_too_long(bug: Bug) -> None:
    """A worker is listed at the exact end of its last heartbeat."""
    bug.statement("workers", "expires_at > {s}.now_ms()", "expires_at >= {s}.now_ms()")


@mutant("TIME-1", stores=POSTGRES, seen_by="a_worker_counts_as_live_until_its_last_beat_expires")
def each_beat_is_a_start(bug: Bug) -> None:
    """A worker's start is the time of its last heartbeat."""
    bug.statement("beat", "ELSE workers.started_at", "ELSE excluded.seen_at")


# Reading ------------------------------------------------------------------------------------------------------


@mutant("TENANT-2", "TENANT-1", stores=POSTGRES, seen_by="one_id_of_two_tenants_is_two_jobs")
def an_id_is_looked_up_in_all_lanes(bug: Bug) -> None:
    """A read of an id returns any tenant's job."""
    bug.statement("find", "ids.lane = u.lane AND", "")


@mutant("TENANT-1", stores=POSTGRES, seen_by="settings_and_pauses_apply_to_one_tenant_only")
def stats_are_those_of_all_tenants(bug: Bug) -> None:
    """The counts of a queue are looked up by its name alone."""
    bug.statement("queues_named", "tenant = $1 AND", "$1 <> '' AND")


@mutant("TENANT-1", stores=POSTGRES, seen_by="counts_and_lists_show_one_tenant_only")
def a_list_shows_all_tenants_waiting_jobs(bug: Bug) -> None:
    """The list of a queue shows the waiting jobs of all tenants."""
    bug.statement("list_waiting", "queue_id = $1 AND lane = $2", "queue_id = $1 AND $2::int > 0")


@mutant("STATE-1", stores=POSTGRES, seen_by="a_list_comes_in_pages_that_miss_and_repeat_nothing")
def a_page_begins_with_the_last_of_the_page_before(bug: Bug) -> None:
    """A list shows a job twice where two pages set_data."""
    bug.statement("list_waiting", "(rank, visible_at, seq) >", "(rank, visible_at, seq) >=")


@mutant("STATE-1", "DEAD-1", stores=POSTGRES, seen_by="a_list_comes_in_pages_that_miss_and_repeat_nothing")
def a_page_passes_over_jobs_of_one_moment(bug: Bug) -> None:
    """A list misses jobs that ended at the same instant as the last of a page."""
    bug.statement("list_ended", "(finished_at, seq) > ($3, $4)", "finished_at > $3 AND $4::bigint >= 0")


@mutant("STATE-1", stores=POSTGRES, seen_by="a_list_comes_in_pages_that_miss_and_repeat_nothing")
def running_jobs_are_listed_by_sequence(bug: Bug) -> None:
    """Leased jobs are not listed in the order of their deadlines."""
    bug.statement("list_leased", "ORDER BY deadline, seq", "ORDER BY seq")


@mutant("STATE-1", stores=POSTGRES, seen_by="a_due_job_shows_as_ready_and_makes_no_event")
def due_jobs_are_counted_as_scheduled(bug: Bug) -> None:
    """A due job is counted in its stored state."""
    bug.function("count_jobs", "later.read < p_scan THEN later.scheduled", "later.read < p_scan THEN s.scheduled")


@mutant("STATE-1", stores=POSTGRES, seen_by="the_oldest_ready_job_is_the_oldest_of_all_priorities")
def the_newest_is_returned_as_the_oldest(bug: Bug) -> None:
    """The age of the oldest ready job is that of the newest."""
    bug.function("count_jobs", "min(x.visible_at)", "max(x.visible_at)")


@mutant("TENANT-1", stores=POSTGRES, seen_by="a_tenant_is_listed_while_it_has_jobs_or_settings")
def a_tenant_with_ended_jobs_is_not_listed(bug: Bug) -> None:
    """A tenant that only has ended jobs is not listed."""
    bug.statement("lanes_after", "EXISTS (SELECT FROM {s}.done", "false AND EXISTS (SELECT FROM {s}.done")


@mutant("TENANT-1", stores=POSTGRES, seen_by="a_tenant_is_listed_while_it_has_jobs_or_settings")
def a_tenant_with_settings_is_not_listed(bug: Bug) -> None:
    """A tenant that only has settings is not listed."""
    bug.statement("tenants_with_settings", "WHERE tenant > $1", "WHERE false AND tenant > $1")
