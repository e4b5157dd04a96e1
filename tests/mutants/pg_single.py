"""Bugs in the functions of the PostgreSQL store that one job alone comes through."""

from __future__ import annotations

from tests.mutants.planting import POSTGRES, Bug, mutant

# Enqueue of one -------------------------------------------------------------------------------------------------


@mutant("ENQ-2", stores=POSTGRES)
def two_jobs_of_one_id_one_by_one(bug: Bug) -> None:
    """A single enqueue does not check whether its id is new."""
    bug.function("enqueue_one", "IF NOT FOUND THEN", "IF false THEN")


@mutant("TENANT-5", stores=POSTGRES)
def an_enqueue_of_one_ignores_the_quota(bug: Bug) -> None:
    """A single enqueue is accepted over the quota."""
    bug.function("enqueue_one", "AND max_waiting IS NOT NULL", "AND false")


@mutant("ENQ-8", stores=POSTGRES)
def the_request_id_of_one_is_not_kept(bug: Bug) -> None:
    """The same request again is a duplicate of itself."""
    bug.function("enqueue_one", "p_type, p_request, p_head", "p_type, '', p_head")


@mutant("ENQ-5", stores=POSTGRES)
def the_delay_of_one_is_not_heeded(bug: Bug) -> None:
    """A delayed single job is visible at once."""
    bug.function("enqueue_one", "now + p_delay", "now")


@mutant("ENQ-5", stores=POSTGRES)
def the_instant_of_one_is_not_heeded(bug: Bug) -> None:
    """A single job with `run_at` runs now."""
    bug.function("enqueue_one", "coalesce(p_run_at,", "coalesce(NULL::bigint,")


@mutant("ENQ-5", "CLAIM-2", stores=POSTGRES)
def one_with_an_instant_in_the_past_overtakes(bug: Bug) -> None:
    """A single job with an instant in the past is ahead of those that wait."""
    bug.function("enqueue_one", "greatest(now, coalesce(p_run_at", "greatest(0, coalesce(p_run_at")


@mutant("STATE-1", "ENQ-5", stores=POSTGRES, seen_by="a_job_is_listed_and_counted_in_exactly_one_state")
def a_delayed_job_that_came_alone_is_written_as_ready(bug: Bug) -> None:
    """A scheduled job shows as ready."""
    bug.function(
        "enqueue_one", "THEN {state:scheduled} ELSE {state:ready} END", "THEN {state:ready} ELSE {state:ready} END"
    )


@mutant("EVENT-1", stores=POSTGRES)
def an_enqueue_of_one_is_not_logged(bug: Bug) -> None:
    """A single enqueue makes no event."""
    bug.function("enqueue_one", "{s}.log(v_xid, now, 1,", "{s}.log(v_xid, now, 0,")


# Completion of one ----------------------------------------------------------------------------------------------


@mutant("LEASE-1", "TENANT-2", stores=POSTGRES, seen_by="only_the_last_token_granted_is_valid")
def a_completion_of_one_needs_no_token(bug: Bug) -> None:
    """A completion needs only the address of a running job."""
    bug.function("complete_one", "AND j.token = p_token", "")


@mutant("LEASE-1", stores=POSTGRES, seen_by="an_acknowledgement_at_the_deadline_is_too_late")
def a_completion_of_one_has_no_deadline(bug: Bug) -> None:
    """A completion past the deadline is accepted until the lease is reaped."""
    bug.function("complete_one", "v_job.deadline <= now", "false")


@mutant("LEASE-1", stores=POSTGRES, seen_by="an_acknowledgement_at_the_deadline_is_too_late")
def a_completion_of_one_may_be_a_moment_late(bug: Bug) -> None:
    """A completion is accepted at the exact deadline."""
    bug.function("complete_one", "v_job.deadline <= now", "v_job.deadline < now")


@mutant("RESULT-1", stores=POSTGRES, seen_by="a_result_is_kept_for_its_ttl_and_then_gone")
def the_result_of_one_is_kept_for_an_hour(bug: Bug) -> None:
    """The TTL of a job is ignored when it completes alone."""
    bug.function("complete_one", "now + v_job.result_ttl", "now + 3600000")


@mutant("RESULT-1", stores=POSTGRES)
def the_result_of_one_is_lost(bug: Bug) -> None:
    """A single completion stores no result."""
    bug.function("complete_one", "v_job.extra, p_result)", "v_job.extra, NULL)")


@mutant("ENQ-3", stores=POSTGRES)
def the_end_of_one_leaves_its_key(bug: Bug) -> None:
    """A single completion does not release a key that is held until the end."""
    bug.function("complete_one", "v_job.key IS NOT NULL", "false")


@mutant("EVENT-1", stores=POSTGRES)
def the_completion_of_one_is_logged_as_another_end(bug: Bug) -> None:
    """A completion is logged as a failure."""
    bug.function("complete_one", "'{{event:completed}}'", "'{{event:failed}}'")


@mutant("EVENT-2", stores=POSTGRES, seen_by="events_of_a_long_transaction_are_in_the_order_of_the_job")
def the_completion_of_one_is_filed_under_its_own_transaction(bug: Bug) -> None:
    """A completion in a transaction that began early is logged before the lease."""
    bug.function("complete_one", "greatest(v_job.logged, {s}.xid())", "{s}.xid()")


# What is reported of it -----------------------------------------------------------------------------------------

_IN_FULL = "the_record_in_a_hint_is_the_stored_record"


@mutant("RESULT-2", stores=POSTGRES, seen_by=_IN_FULL)
def waiters_get_no_result(bug: Bug) -> None:
    """The hint of a completion has the record without the result."""
    bug.function("complete_one", "encode(p_result, 'base64'))::text", "NULL)::text")


@mutant("RESULT-2", "RESULT-1", stores=POSTGRES, seen_by=_IN_FULL)
def waiters_get_a_record_that_is_gone(bug: Bug) -> None:
    """The hint of a completion has the record of a job that is not kept."""
    bug.function("complete_one", "p_notify AND v_job.result_ttl > 0", "p_notify")


@mutant("RESULT-2", stores=POSTGRES, seen_by=_IN_FULL)
def waiters_get_another_time(bug: Bug) -> None:
    """The record in the hint has the time of the lease as its end."""
    bug.function("complete_one", "v_job.claimed_at, now, v_job.attempts", "now, v_job.deadline, v_job.attempts")
