"""Bugs in how the PostgreSQL store hands jobs over to workers that wait for them."""

from __future__ import annotations

from typing import Any

from holdfast.core.waiters import Registrations
from tests.mutants.planting import POSTGRES, Bug, Planted, mutant

# What is handed off ---------------------------------------------------------------------------------------------


@mutant("ENQ-5", stores=POSTGRES)
def a_job_that_is_not_due_is_handed_off(bug: Bug) -> None:
    """A delayed job is handed off."""
    bug.function("enqueue_one", "p_hand AND v_visible = now AND", "p_hand AND")


@mutant("CLAIM-5", stores=POSTGRES)
def a_paused_queue_hands_off(bug: Bug) -> None:
    """New jobs of a paused queue are handed off."""
    bug.function("enqueue_one", "AND NOT l.paused", "")


@mutant("CLAIM-2", stores=POSTGRES)
def one_is_handed_off_past_those_that_wait(bug: Bug) -> None:
    """A new job is handed off although earlier ones of its queue wait."""
    bug.function("find_waiter", "ELSIF v_nothing_else THEN", "ELSE")


@mutant("CLAIM-2", stores=POSTGRES)
def one_is_handed_off_past_one_that_is_just_due(bug: Bug) -> None:
    """A job that becomes due at this instant is ignored."""
    bug.function("nothing_is_visible", "v_at <= p_now", "v_at < p_now")


@mutant("TENANT-4", stores=POSTGRES)
def one_is_handed_off_past_the_turns(bug: Bug) -> None:
    """A worker for all tenants is sent a job while those of other tenants wait."""
    bug.function(
        "find_waiter", "nothing_is_visible(p_queue_id, v_lane, p_now)", "nothing_is_visible(p_queue_id, p_lane, p_now)"
    )


@mutant("CLAIM-1", "STATE-1", stores=POSTGRES)
def a_job_handed_off_is_ready(bug: Bug) -> None:
    """A job that was handed off can be claimed again."""
    bug.function("enqueue_one", "p_lane, {state:leased}, p_rank", "p_lane, {state:ready}, p_rank")


@mutant("RETRY-1", "CLAIM-1", stores=POSTGRES)
def a_hand_off_costs_no_attempt(bug: Bug) -> None:
    """The first attempt of a job that was handed off is not counted."""
    bug.function("enqueue_one", "v_deadline, now, 1, 2, v_waiter.worker", "v_deadline, now, 0, 2, v_waiter.worker")


@mutant("CLAIM-1", stores=POSTGRES)
def a_lease_handed_off_counts_from_the_end_of_the_registration(bug: Bug) -> None:
    """The lease is longer than requested."""
    bug.function("enqueue_one", "now + v_waiter.lease", "v_waiter.expires_at + v_waiter.lease")


@mutant("CLAIM-1", stores=POSTGRES)
def a_lease_handed_off_is_as_long_as_the_registration(bug: Bug) -> None:
    """The lease is shorter than requested."""
    bug.function("register_waiter", "p_number, p_lease, p_room", "p_number, p_lasts_ms, p_room")
    bug.function("register_waiter", "lease = p_lease", "lease = p_lasts_ms")


@mutant("CLAIM-1", stores=POSTGRES)
def a_lease_handed_off_has_no_beginning(bug: Bug) -> None:
    """The record has no time of the claim."""
    bug.function("enqueue_one", "v_deadline, now, 1, 2, v_waiter.worker", "v_deadline, 0, 1, 2, v_waiter.worker")


@mutant("CLAIM-1", stores=POSTGRES)
def a_delivered_job_has_another_time(bug: Bug) -> None:
    """The job is sent with another time than the store's."""
    bug.function("enqueue_one", "v_waiter.number, now, v_deadline", "v_waiter.number, v_waiter.expires_at, v_deadline")


@mutant("CLAIM-1", "RESULT-1", stores=POSTGRES)
def a_delivered_job_has_the_default_ttl(bug: Bug) -> None:
    """The job that was sent lacks its result_ttl."""
    bug.function("enqueue_one", "v_token, p_ttl, l.tenant", "v_token, 3600000, l.tenant")


@mutant("CLAIM-1", stores=POSTGRES)
def a_delivered_job_has_no_worker(bug: Bug) -> None:
    """The job that was sent lacks its worker."""

    def to_handed_off(original: Planted, *columns: Any) -> Any:
        return original(*columns[:-1], "")

    bug.around(bug.postgres("rows"), "to_handed_off", to_handed_off)


@mutant("CLAIM-1", stores=POSTGRES)
def a_job_handed_off_is_leased_but_not_sent(bug: Bug) -> None:
    """A job is leased to a worker, but not sent to it."""
    bug.function(
        "enqueue_one_and_notify", "commit_and_notify(ARRAY[v_channel] || p_channels, ARRAY[v_message] || p_hints)",
        "commit_and_notify(p_channels, p_hints)",
    )  # fmt: skip


@mutant("ENQ-7", stores=POSTGRES, seen_by="a_worker_is_notified_of_a_job_when_its_transaction_commits")
def a_job_not_handed_off_sends_no_hint(bug: Bug) -> None:
    """A single job that was not handed off sends no hint."""
    bug.function(
        "enqueue_one_and_notify",
        "commit_and_notify(p_ready[1] || p_channels, p_ready[2] || p_hints)",
        "commit_and_notify('{}', '{}')",
    )


@mutant("EVENT-1", stores=POSTGRES)
def a_hand_off_is_logged_as_an_enqueue_only(bug: Bug) -> None:
    """The lease makes no event."""
    bug.function("enqueue_one", "{s}.log(v_xid, now, 2,", "{s}.log(v_xid, now, 1,")


@mutant("CLAIM-1", "EVENT-1", stores=POSTGRES)
def a_hand_off_is_logged_with_the_attempt_before(bug: Bug) -> None:
    """The event has the attempt number from before the lease."""
    bug.function("enqueue_one", "ARRAY[p_type], '{0,1}'", "ARRAY[p_type], '{0,0}'")


@mutant("CLAIM-1", "EVENT-1", stores=POSTGRES)
def a_hand_off_is_logged_without_a_token(bug: Bug) -> None:
    """The event has no token."""
    bug.function("enqueue_one", "ARRAY[0, v_token]", "ARRAY[0, 0 * v_token]")


@mutant("CLAIM-1", "EVENT-1", stores=POSTGRES)
def a_hand_off_is_logged_without_a_worker(bug: Bug) -> None:
    """The event has no worker."""
    bug.function("enqueue_one", "ARRAY['', v_waiter.worker]", "ARRAY['', '']")


# To whom --------------------------------------------------------------------------------------------------------


@mutant("TENANT-2", stores=POSTGRES)
def a_registration_is_for_every_tenant(bug: Bug) -> None:
    """A worker of one tenant is sent the jobs of others."""
    bug.function("find_waiter", "p.lane IN (p_lane, 0)", "p.lane >= 0")


@mutant("TENANT-3", stores=POSTGRES)
def a_registration_is_for_every_queue(bug: Bug) -> None:
    """A worker for all tenants is sent jobs of queues that it does not serve."""
    bug.function("find_waiter", "p.queue_id = p_queue_id AND p.lane IN", "p.queue_id > 0 AND p.lane IN")


@mutant("CLAIM-1", stores=POSTGRES)
def a_registration_is_for_one_queue_only(bug: Bug) -> None:
    """A worker with several queues is sent the jobs of one."""
    bug.function("register_waiter", "AS u (queue_id, lane)", "AS u (queue_id, lane) LIMIT 1")


@mutant("CLAIM-1", stores=POSTGRES)
def an_expired_registration_is_used(bug: Bug) -> None:
    """A job is handed off to a worker whose registration has expired."""
    bug.function("find_waiter", "w.expires_at > p_now AND", "")


@mutant("CLAIM-1", stores=POSTGRES)
def a_registration_outlasts_its_leases(bug: Bug) -> None:
    """A registration lasts longer than its leases."""
    bug.function("register_waiter", "{s}.now_ms() + p_lasts", "{s}.now_ms() + 1000 * p_lasts")


@mutant("CLAIM-3", stores=POSTGRES)
def jobs_are_handed_off_to_workers_that_do_not_listen(bug: Bug) -> None:
    """The store does not check whether the worker still listens."""
    bug.function("find_waiter", "NOT pg_try_advisory_xact_lock_shared(v_waiter.inbox)", "true")


@mutant("CLAIM-1", stores=POSTGRES)
def live_workers_are_taken_for_dead(bug: Bug) -> None:
    """Registrations of live workers are removed."""
    bug.function("find_waiter", "NOT pg_try_advisory_xact_lock_shared(v_waiter.inbox)", "false")


# How many -------------------------------------------------------------------------------------------------------


@mutant("CLAIM-1", stores=POSTGRES)
def a_registration_is_never_used_up(bug: Bug) -> None:
    """A worker with room for one job is sent every new job."""
    bug.function("enqueue_one", "SET sent = sent + 1", "SET sent = sent")


@mutant("CLAIM-1", stores=POSTGRES)
def a_registration_is_for_one_job_too_many(bug: Bug) -> None:
    """A worker is sent one job more than it has room for."""
    bug.function("find_waiter", "w.sent < w.room", "w.sent <= w.room")


@mutant("CLAIM-1", stores=POSTGRES)
def the_first_registration_counts(bug: Bug) -> None:
    """A worker with less room than before is sent as much as its earlier registration allowed."""
    bug.function("register_waiter", "room = p_room, sent = 0", "room = greatest(w.room, p_room), sent = 0")


@mutant("CLAIM-1", stores=POSTGRES)
def a_new_registration_is_used_up_by_the_last(bug: Bug) -> None:
    """A worker whose last registration was used up is sent nothing under the next one."""
    bug.function("register_waiter", "room = p_room, sent = 0", "room = p_room")


@mutant("CLAIM-1", stores=POSTGRES)
def a_registration_forgets_jobs_in_flight(bug: Bug) -> None:
    """Jobs in flight take up no room."""
    bug.function("withdraw_waiter", "WHEN p_number THEN w.sent ELSE 0", "WHEN p_number THEN 0 ELSE 0")


@mutant("CLAIM-1", stores=POSTGRES)
def a_worker_that_leaves_does_not_wait_for_jobs_in_flight(bug: Bug) -> None:
    """A worker that leaves does not get the jobs in flight."""
    bug.around(Registrations, "in_flight", lambda *_: 0)


@mutant("CLAIM-1", stores=POSTGRES)
def arrived_jobs_count_as_in_flight(bug: Bug) -> None:
    """Jobs that arrived take up room twice."""

    def coming(_: Planted, registrations: Registrations, *_rest: object) -> int:
        return sum(one.handed_off for one in registrations.open.values())

    bug.around(Registrations, "in_flight", coming)


@mutant("CLAIM-1", stores=POSTGRES)
def claimed_jobs_take_up_no_room(bug: Bug) -> None:
    """A worker registers for as many jobs as it asked for, whatever it got."""

    def settle(original: Planted, post: Any, request: Any, count: int, heard_as: int) -> Any:
        return original(post, request, request.limit if count else 0, heard_as)

    bug.around(bug.postgres("handoff").PostgresInbox, "_register", settle)


@mutant("CLAIM-1", stores=POSTGRES)
def a_full_worker_keeps_its_registration(bug: Bug) -> None:
    """A worker without room is sent jobs under its earlier registration."""

    async def withdraw_waiter(_: Planted, *_args: object, **_options: object) -> tuple[int, int]:
        return 0, 0

    bug.around(bug.postgres("handoff").PostgresInbox, "_withdraw", withdraw_waiter)
