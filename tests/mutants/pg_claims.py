"""Bugs in how the PostgreSQL store hands jobs out: order, leases, turns, pauses, due times, expiry."""

from __future__ import annotations

from typing import Any

from holdfast.core import lifecycle
from holdfast.core.events import Event
from holdfast.core.job import Job
from tests.mutants.planting import POSTGRES, Bug, Planted, mutant

# Order --------------------------------------------------------------------------------------------------------


@mutant("ENQ-5", "CLAIM-2", stores=POSTGRES)
def a_claim_ignores_when_jobs_are_due(bug: Bug) -> None:
    """A claim returns jobs that are not due."""
    bug.function("claim", "AND j.visible_at <= v_now", "")


@mutant("CLAIM-2", stores=POSTGRES)
def a_claim_of_one_tenant_goes_by_time_alone(bug: Bug) -> None:
    """The jobs of a claim are ordered by time, whatever their priority."""
    bug.function("claim", "FROM found ORDER BY rank, visible_at, seq", "FROM found ORDER BY visible_at, seq")


@mutant("CLAIM-2", "TENANT-4", stores=POSTGRES, seen_by="priorities_do_not_count_between_tenants")
def a_turn_goes_by_time_alone(bug: Bug) -> None:
    """Within its turns a tenant's jobs are ordered by time, whatever their priority."""
    bug.function("claim", "PARTITION BY i ORDER BY rank, visible_at, seq", "PARTITION BY i ORDER BY visible_at, seq")


@mutant("CLAIM-2", stores=POSTGRES, seen_by="many_jobs_due_at_the_same_time_are_claimed_in_order")
def the_last_sent_comes_first_in_postgres(bug: Bug) -> None:
    """Of two jobs that became visible at the same instant, the later enqueue is first."""
    bug.function("claim", "j.visible_at, j.seq LIMIT p_ks[1]", "j.visible_at, j.seq DESC LIMIT p_ks[1]")


@mutant("CLAIM-2", "ENQ-5", stores=POSTGRES)
def a_claim_goes_by_sequence_alone(bug: Bug) -> None:
    """Jobs are ordered by enqueue, even if a later one became visible first."""
    bug.function("claim", "ORDER BY j.visible_at, j.seq LIMIT", "ORDER BY j.seq LIMIT")
    bug.function("claim", "ORDER BY rank, visible_at, seq", "ORDER BY rank, seq")


@mutant("CLAIM-2", "CLAIM-3", stores=POSTGRES, seen_by="many_jobs_due_at_the_same_time_are_claimed_in_order")
def the_position_is_behind_remaining_jobs(bug: Bug) -> None:
    """Jobs of the same instant as the last claimed one are skipped."""

    def low_water_of(original: Planted, *args: Any) -> tuple[list[int], Any]:
        marks, whole = original(*args)
        return [mark + 1 if mark else 0 for mark in marks], whole

    bug.around(bug.postgres("lanes"), "low_water_of", low_water_of)


# Leases -------------------------------------------------------------------------------------------------------


@mutant("CLAIM-1", stores=POSTGRES, seen_by="concurrent_claims_never_give_one_job_twice")
def claims_do_not_lock_what_they_take(bug: Bug) -> None:
    """Two concurrent claims take the same job."""
    bug.function("claim", "FOR UPDATE SKIP LOCKED", "")


@mutant("CLAIM-1", "LEASE-5", stores=POSTGRES)
def one_token_for_all_jobs_of_a_claim(bug: Bug) -> None:
    """The jobs of one claim get the same token."""
    bug.function("claim", "token = u.token,", "token = v_tokens[1],")


@mutant("LEASE-5", "CLAIM-1", stores=POSTGRES)
def tokens_come_round_again(bug: Bug) -> None:
    """After a few leases the first tokens are granted again."""
    bug.table("CREATE SEQUENCE {s}.tokens", "CREATE SEQUENCE {s}.tokens MAXVALUE 3 CYCLE")


@mutant("LEASE-5", stores=POSTGRES)
def tokens_shrink(bug: Bug) -> None:
    """Each lease gets a smaller token than the one before."""
    bug.function("claim", "array_agg(nextval('{s}.tokens'))", "array_agg(1000000000 - nextval('{s}.tokens'))")


@mutant("LEASE-5", stores=POSTGRES)
def tokens_are_too_large_for_a_float(bug: Bug) -> None:
    """Tokens begin at 2^53."""
    bug.table("CREATE SEQUENCE {s}.tokens", "CREATE SEQUENCE {s}.tokens START 9007199254740992")


@mutant("CLAIM-1", "LEASE-1", stores=POSTGRES)
def a_lease_is_a_moment_longer(bug: Bug) -> None:
    """The deadline is a millisecond later than requested."""
    bug.function("claim", "deadline = v_now + p_lease", "deadline = v_now + p_lease + 1")


@mutant("RETRY-1", "CLAIM-1", stores=POSTGRES)
def a_lease_is_not_counted(bug: Bug) -> None:
    """A claim costs no attempt."""
    bug.function("claim", "attempts = j.attempts + 1", "attempts = j.attempts")


@mutant("CLAIM-1", stores=POSTGRES)
def the_worker_is_not_recorded(bug: Bug) -> None:
    """The record does not name the worker."""
    bug.function("claim", "worker = p_worker", "worker = ''")


@mutant("TIME-1", "CLAIM-1", stores=POSTGRES, seen_by="a_claim_gives_token_deadline_and_attempt")
def claimed_when_it_became_visible(bug: Bug) -> None:
    """The time of the claim is when the job became visible."""
    bug.function("claim", "claimed_at = v_now", "claimed_at = j.visible_at")


@mutant("RETRY-4", "CLAIM-1", stores=POSTGRES, seen_by="errors_keep_type_message_and_traceback_of_each_attempt")
def a_claim_forgets_the_errors(bug: Bug) -> None:
    """A claimed job has no errors of earlier attempts."""

    def to_claimed(original: Planted, *args: Any) -> Any:
        job = original(*args)
        job.errors = []
        return job

    bug.around(bug.postgres("rows"), "to_claimed", to_claimed)


# Expiry -------------------------------------------------------------------------------------------------------


@mutant("LEASE-3", stores=POSTGRES)
def claims_do_not_look_at_deadlines(bug: Bug) -> None:
    """Without a reaper an expired lease is never ended."""
    bug.function("claim", "p_reaped IS NOT NULL AND EXISTS", "false AND EXISTS")


@mutant("LEASE-3", stores=POSTGRES)
def a_claim_misses_the_deadline_by_a_moment(bug: Bug) -> None:
    """A claim does not find the lease at its exact deadline."""
    bug.function("claim", "j.deadline <= v_now", "j.deadline < v_now")


@mutant("LEASE-3", stores=POSTGRES)
def the_reaper_misses_the_deadline_by_a_moment(bug: Bug) -> None:
    """The reaper does not find the lease at its exact deadline."""
    bug.statement("lock_expired", "deadline <= $1", "deadline < $1")


@mutant("LEASE-3", stores=POSTGRES, seen_by="the_reaper_ends_the_oldest_deadlines_first_up_to_its_limit")
def the_reaper_goes_by_sequence_in_postgres(bug: Bug) -> None:
    """Leases are ended by enqueue order, not by deadline."""
    bug.statement("lock_expired", "ORDER BY deadline, seq", "ORDER BY seq")


@mutant("LEASE-3", stores=POSTGRES, seen_by="the_reaper_ends_the_oldest_deadlines_first_up_to_its_limit")
def the_reaper_takes_one_more(bug: Bug) -> None:
    """It ends more leases than it was asked to."""
    bug.statement("lock_expired", "LIMIT $2", "LIMIT $2 + 1")


@mutant("RETRY-3", stores=POSTGRES, seen_by="one_random_number_is_spread_over_a_batch")
def a_random_number_is_not_spread(bug: Bug) -> None:
    """Jobs whose leases end together retry together."""
    given: list[float] = []

    async def reap(original: Planted, session: Any, cache: Any, limit: int, random: float, *rest: Any) -> Any:
        given[:] = [random]
        return await original(session, cache, limit, random, *rest)

    def expire(original: Planted, job: Job, _: float, *rest: Any) -> Event:
        return original(job, given[0], *rest)

    bug.around(bug.postgres("upkeep"), "reap", reap)
    bug.around(lifecycle, "expire", expire)


# When to look again -------------------------------------------------------------------------------------------


@mutant("CLAIM-3", stores=POSTGRES, seen_by="an_empty_claim_says_when_to_claim_again")
def the_last_due_time_is_returned(bug: Bug) -> None:
    """An empty claim returns the due time of the last of its jobs."""
    bug.function("claim", "ORDER BY j.visible_at LIMIT 1", "ORDER BY j.visible_at DESC LIMIT 1")


@mutant("CLAIM-3", stores=POSTGRES, seen_by="an_urgent_job_due_later_does_not_hide_the_next_due_job")
def the_due_time_of_the_least_urgent_is_returned(bug: Bug) -> None:
    """Of several priorities, the latest due time is returned."""
    bug.function("claim", "min(x.at)", "max(x.at)")


@mutant("CLAIM-3", stores=POSTGRES, seen_by="an_empty_claim_says_when_to_claim_again")
def the_next_deadline_is_not_returned(bug: Bug) -> None:
    """An empty claim does not return the next deadline."""

    async def next_at(original: Planted, claims: Any, *args: Any) -> Any:
        claims._cache.next_deadline = None
        return await original(claims, *args)

    bug.around(bug.postgres("claims").Claims, "_next_at", next_at)


@mutant("CLAIM-3", stores=POSTGRES, seen_by="a_new_worker_learns_when_to_claim_again")
def a_new_handle_does_not_ask_for_the_next_deadline(bug: Bug) -> None:
    """A process that has just started does not get the next deadline of other processes' leases."""
    bug.function("claim", "SELECT j.deadline INTO v_next", "SELECT NULL::bigint INTO v_next")


# Turns --------------------------------------------------------------------------------------------------------


@mutant("TENANT-4", stores=POSTGRES, seen_by="turns_follow_the_weights")
def all_weights_are_one_in_postgres(bug: Bug) -> None:
    """All tenants get the same share, whatever their weight."""
    bug.function("claim", "coalesce(sq.weight, st.weight, 1)", "1")


@mutant("TENANT-4", stores=POSTGRES, seen_by="a_weight_for_one_queue_overrides_the_tenants_weight")
def the_weight_of_a_queue_is_ignored(bug: Bug) -> None:
    """Only the weight of the tenant as a whole counts."""
    bug.function("claim", "coalesce(sq.weight, st.weight, 1)", "coalesce(st.weight, 1)")


@mutant("TENANT-4", stores=POSTGRES, seen_by="turns_follow_the_weights")
def the_weight_of_a_tenant_is_ignored(bug: Bug) -> None:
    """Only the weight of a queue counts."""
    bug.function("claim", "coalesce(sq.weight, st.weight, 1)", "coalesce(sq.weight, 1)")


@mutant("TENANT-4", stores=POSTGRES, seen_by="a_backlog_delays_another_tenant_by_one_turn")
def a_turn_costs_nothing_in_postgres(bug: Bug) -> None:
    """The first tenant is served until it has no more."""

    def settle(original: Planted, part: Any, founds: Any, costs: Any, taken: Any) -> None:
        before = {lane: lane.time for lane in part.lanes if lane.in_turns}
        original(part, founds, costs, taken)
        for lane, time in before.items():
            lane.move(time)

    bug.around(bug.postgres("turns"), "record_round", settle)


@mutant("TENANT-4", stores=POSTGRES, seen_by="tenants_take_turns_one_by_one_and_within_a_batch")
def a_batch_serves_one_tenant(bug: Bug) -> None:
    """Within one claim the first tenant gets all that it has."""
    bug.function("claim", "ARRAY[begins + r * cost, tie]", "ARRAY[begins, tie]")


@mutant("TENANT-4", stores=POSTGRES, seen_by="a_newcomer_does_not_catch_up")
def newcomers_enter_at_their_own_time(bug: Bug) -> None:
    """A tenant that starts late gets all the turns that it missed."""

    def entry(_: Planted, own: int, __: int) -> int:
        return own

    bug.function("claim", "ELSE greatest(time, coalesce(", "ELSE least(time, coalesce(")
    bug.around(bug.postgres("turns").fairness, "entry", entry)


@mutant("TENANT-4", stores=POSTGRES, seen_by="a_tenant_that_returns_to_an_idle_queue_gains_nothing")
def a_tenant_that_comes_back_enters_at_the_minimum(bug: Bug) -> None:
    """A tenant that leaves and returns gains a turn each time."""

    def entry(_: Planted, __: int, floor: int) -> int:
        return floor

    bug.function("claim", "ELSE greatest(time, coalesce(", "ELSE greatest(0, coalesce(")
    bug.around(bug.postgres("turns").fairness, "entry", entry)


@mutant("TENANT-4", stores=POSTGRES, seen_by="a_tenant_that_returns_to_an_idle_queue_gains_nothing")
def tenants_without_work_stay_in_the_turns(bug: Bug) -> None:
    """A tenant without work keeps its place, and returns with all the turns that it missed."""

    def stay(*_: Any) -> None:
        return None

    bug.around(bug.postgres("turns"), "leave", stay)
    bug.around(bug.postgres("turns"), "_drop_heads", stay)


@mutant("TENANT-4", stores=POSTGRES, seen_by="a_claim_over_several_queues_takes_from_them_in_rotation")
def queues_are_emptied_one_after_another(bug: Bug) -> None:
    """A claim over several queues takes all it can from the first."""

    def deal(original: Planted, claims: Any, going: Any, left: int) -> Any:
        return original(claims, going[:1], left)

    bug.around(bug.postgres("claims").Claims, "_deal", deal)


@mutant("TENANT-4", stores=POSTGRES, seen_by="a_claim_over_several_queues_takes_from_them_in_rotation")
def jobs_of_several_queues_come_queue_by_queue(bug: Bug) -> None:
    """A claim over several queues returns all jobs of the first, then all of the next."""
    bug.function("claim", "nth * v_queues + q AS place", "nth + 1000 * q AS place")


@mutant("TENANT-4", "ENQ-1", stores=POSTGRES, seen_by="a_worker_that_starts_finds_all_tenants")
def only_the_first_tenant_is_found_anew(bug: Bug) -> None:
    """A process that starts finds only the work of one tenant."""
    bug.statement("lanes_with_work", "LIMIT 1\n    ) x", "LIMIT 0\n    ) x")


@mutant("TENANT-4", "CLAIM-2", stores=POSTGRES, seen_by="a_claim_over_several_queues_takes_from_them_in_rotation")
def later_lanes_are_looked_at_by_the_marks_of_the_first(bug: Bug) -> None:
    """A claim starts its search for one tenant at another tenant's position."""
    bug.function("claim", "p_low_water[10 * (c.i - 1) + p.rank + 1]", "p_low_water[p.rank + 1]")


# Pauses -------------------------------------------------------------------------------------------------------


@mutant("CLAIM-5", stores=POSTGRES)
def a_pause_stops_nothing(bug: Bug) -> None:
    """A paused queue gives jobs to its tenant's workers."""
    bug.function("claim", "NOT l.paused", "true")


@mutant("CLAIM-5", stores=POSTGRES, seen_by="a_pause_stops_that_queue_alone")
def a_pause_does_not_stop_turns(bug: Bug) -> None:
    """A paused queue gives jobs to workers for all tenants."""
    bug.function("claim", "CASE WHEN l.paused THEN 0 ELSE l.ranks END", "l.ranks")


@mutant("CLAIM-5", "TENANT-1", stores=POSTGRES, seen_by="a_tenant_with_a_paused_queue_takes_no_turns")
def a_pause_stops_all_queues(bug: Bug) -> None:
    """Pausing one queue pauses all of them."""
    bug.statement("pause", "WHERE lane = $1", "WHERE $1::int > 0")


@mutant("CLAIM-5", stores=POSTGRES)
def a_pause_does_not_show(bug: Bug) -> None:
    """The stats do not show the pause."""
    bug.statement("queues_named", "paused FROM", "false AS paused FROM")
