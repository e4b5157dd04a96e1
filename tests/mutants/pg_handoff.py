"""Bugs in how the PostgreSQL store hands jobs over to workers that wait for them."""

from __future__ import annotations

from typing import Any

from holdfast.core.waiters import Registrations
from tests.mutants.planting import POSTGRES, Bug, Planted, mutant

# What is handed over --------------------------------------------------------------------------------------------


@mutant("ENQ-5", stores=POSTGRES)
def a_job_that_is_not_due_is_handed_over(bug: Bug) -> None:
    """A delayed job goes to whoever waits."""
    bug.function("enqueue_one", "p_hand AND v_visible = now AND", "p_hand AND")


@mutant("CLAIM-5", stores=POSTGRES)
def a_paused_queue_hands_over(bug: Bug) -> None:
    """New jobs of a paused queue go to whoever waits."""
    bug.function("enqueue_one", "AND NOT l.paused", "")


@mutant("CLAIM-2", stores=POSTGRES)
def one_is_handed_over_past_those_that_wait(bug: Bug) -> None:
    """A new job goes to whoever waits although others of its queue came before."""
    bug.function("find_waiter", "ELSIF v_nothing_else THEN", "ELSE")


@mutant("CLAIM-2", stores=POSTGRES)
def one_is_handed_over_past_one_that_is_just_due(bug: Bug) -> None:
    """A job that becomes due in this very moment is not seen."""
    bug.function("nothing_is_visible", "v_at <= p_now", "v_at < p_now")


@mutant("TENANT-4", stores=POSTGRES)
def one_is_handed_over_past_the_turns(bug: Bug) -> None:
    """A worker for all is sent a job while those of other tenants wait."""
    bug.function(
        "find_waiter", "nothing_is_visible(p_queue_id, v_lane, p_now)", "nothing_is_visible(p_queue_id, p_lane, p_now)"
    )


@mutant("CLAIM-1", "STATE-1", stores=POSTGRES)
def what_was_handed_over_is_ready(bug: Bug) -> None:
    """A job that was handed over can be claimed once more."""
    bug.function("enqueue_one", "p_lane, {state:leased}, p_rank", "p_lane, {state:ready}, p_rank")


@mutant("RETRY-1", "CLAIM-1", stores=POSTGRES)
def handing_over_costs_no_attempt(bug: Bug) -> None:
    """The first run of a job that was handed over is not counted."""
    bug.function("enqueue_one", "v_deadline, now, 1, 2, v_waiter.worker", "v_deadline, now, 0, 2, v_waiter.worker")


@mutant("CLAIM-1", stores=POSTGRES)
def a_lease_handed_over_counts_from_the_end_of_the_offer(bug: Bug) -> None:
    """The lease is longer than was asked for."""
    bug.function("enqueue_one", "now + v_waiter.lease", "v_waiter.until + v_waiter.lease")


@mutant("CLAIM-1", stores=POSTGRES)
def a_lease_handed_over_is_as_long_as_the_offer(bug: Bug) -> None:
    """The lease is shorter than was asked for."""
    bug.function("register_waiter", "p_number, p_lease, p_room", "p_number, p_lasts_ms, p_room")
    bug.function("register_waiter", "lease = p_lease", "lease = p_lasts")


@mutant("CLAIM-1", stores=POSTGRES)
def a_lease_handed_over_has_no_beginning(bug: Bug) -> None:
    """The record does not say when the lease began."""
    bug.function("enqueue_one", "v_deadline, now, 1, 2, v_waiter.worker", "v_deadline, 0, 1, 2, v_waiter.worker")


@mutant("CLAIM-1", stores=POSTGRES)
def what_comes_tells_another_time(bug: Bug) -> None:
    """With the job comes another time than the store's."""
    bug.function("enqueue_one", "(v_waiter.number, now, v_deadline", "(v_waiter.number, v_waiter.until, v_deadline")


@mutant("CLAIM-1", "RESULT-1", stores=POSTGRES)
def what_comes_has_the_usual_ttl(bug: Bug) -> None:
    """The job as it came does not say for how long its result is to be kept."""
    bug.function("enqueue_one", "v_token, p_ttl, l.tenant", "v_token, 3600000, l.tenant")


@mutant("CLAIM-1", stores=POSTGRES)
def what_comes_is_nobodys(bug: Bug) -> None:
    """The job as it came does not say who holds it."""

    def to_handed_off(original: Planted, *columns: Any) -> Any:
        return original(*columns[:-1], "")

    bug.around(bug.postgres("rows"), "to_handed_off", to_handed_off)


@mutant("CLAIM-1", stores=POSTGRES)
def what_was_handed_over_is_not_sent(bug: Bug) -> None:
    """A job is leased to a worker, which is not told."""
    bug.function(
        "enqueue_one_and_notify", "commit_and_notify(ARRAY[v_channel] || p_channels, ARRAY[v_message] || p_hints)",
        "commit_and_notify(p_channels, p_hints)",
    )  # fmt: skip


@mutant("ENQ-7", stores=POSTGRES, seen_by="a_worker_hears_of_a_job_when_its_transaction_is_committed")
def what_was_not_handed_over_is_not_told_of(bug: Bug) -> None:
    """Whoever waits elsewhere hears nothing of a job that came alone."""
    bug.function(
        "enqueue_one_and_notify",
        "commit_and_notify(p_ready[1] || p_channels, p_ready[2] || p_hints)",
        "commit_and_notify('{}', '{}')",
    )


@mutant("EVENT-1", stores=POSTGRES)
def handing_over_is_logged_as_an_enqueue_alone(bug: Bug) -> None:
    """The log does not say that the job was leased."""
    bug.function("enqueue_one", "{s}.log(v_xid, now, 2,", "{s}.log(v_xid, now, 1,")


@mutant("CLAIM-1", "EVENT-1", stores=POSTGRES)
def handing_over_is_logged_with_the_attempt_before(bug: Bug) -> None:
    """The event has the number of attempts as it was."""
    bug.function("enqueue_one", "ARRAY[p_type], '{0,1}'", "ARRAY[p_type], '{0,0}'")


@mutant("CLAIM-1", "EVENT-1", stores=POSTGRES)
def handing_over_is_logged_without_a_token(bug: Bug) -> None:
    """The event does not say under which lease."""
    bug.function("enqueue_one", "ARRAY[0, v_token]", "ARRAY[0, 0 * v_token]")


@mutant("CLAIM-1", "EVENT-1", stores=POSTGRES)
def handing_over_is_logged_without_a_worker(bug: Bug) -> None:
    """The event does not say to whom."""
    bug.function("enqueue_one", "ARRAY['', v_waiter.worker]", "ARRAY['', '']")


# To whom --------------------------------------------------------------------------------------------------------


@mutant("TENANT-2", stores=POSTGRES)
def an_offer_is_for_every_tenant(bug: Bug) -> None:
    """A worker of one tenant is sent the jobs of others."""
    bug.function("find_waiter", "p.lane IN (p_lane, 0)", "p.lane >= 0")


@mutant("TENANT-3", stores=POSTGRES)
def an_offer_is_for_every_queue(bug: Bug) -> None:
    """A worker for all tenants is sent jobs of queues that it does not serve."""
    bug.function("find_waiter", "p.queue_id = p_queue_id AND p.lane IN", "p.queue_id > 0 AND p.lane IN")


@mutant("CLAIM-1", stores=POSTGRES)
def an_offer_stands_in_one_queue_alone(bug: Bug) -> None:
    """A worker with several queues is sent the jobs of one."""
    bug.function("register_waiter", "AS u (queue_id, lane)", "AS u (queue_id, lane) LIMIT 1")


@mutant("CLAIM-1", stores=POSTGRES)
def an_offer_that_is_over_is_used(bug: Bug) -> None:
    """A job goes to a worker that may be gone for long."""
    bug.function("find_waiter", "w.expires_at > p_now AND", "")


@mutant("CLAIM-1", stores=POSTGRES)
def an_offer_has_no_end(bug: Bug) -> None:
    """An offer stands for longer than the leases that it is for."""
    bug.function("register_waiter", "{s}.now_ms() + p_lasts", "{s}.now_ms() + 1000 * p_lasts")


@mutant("CLAIM-3", stores=POSTGRES)
def the_dead_are_handed_jobs(bug: Bug) -> None:
    """Nobody looks whether the worker still hears."""
    bug.function("find_waiter", "NOT pg_try_advisory_xact_lock_shared(v_waiter.inbox)", "true")


@mutant("CLAIM-1", stores=POSTGRES)
def the_living_are_taken_for_dead(bug: Bug) -> None:
    """Registrations of workers that hear are thrown away."""
    bug.function("find_waiter", "NOT pg_try_advisory_xact_lock_shared(v_waiter.inbox)", "false")


# How many -------------------------------------------------------------------------------------------------------


@mutant("CLAIM-1", stores=POSTGRES)
def an_offer_is_good_for_ever_more_jobs(bug: Bug) -> None:
    """A worker that has room for one job is sent all that come."""
    bug.function("enqueue_one", "SET sent = sent + 1", "SET sent = sent")


@mutant("CLAIM-1", stores=POSTGRES)
def an_offer_is_good_for_one_job_more(bug: Bug) -> None:
    """A worker is sent one job more than it has room for."""
    bug.function("find_waiter", "w.sent < w.room", "w.sent <= w.room")


@mutant("CLAIM-1", stores=POSTGRES)
def the_first_offer_counts(bug: Bug) -> None:
    """A worker that has less room than before is sent as much as it had room for."""
    bug.function("register_waiter", "room = p_room, sent = 0", "room = greatest(w.room, p_room), sent = 0")


@mutant("CLAIM-1", stores=POSTGRES)
def a_new_offer_is_used_up_by_the_last(bug: Bug) -> None:
    """A worker that got what it offered to take is sent nothing more."""
    bug.function("register_waiter", "room = p_room, sent = 0", "room = p_room")


@mutant("CLAIM-1", stores=POSTGRES)
def an_offer_forgets_what_was_sent(bug: Bug) -> None:
    """What is on its way takes up no room."""
    bug.function("withdraw_waiter", "WHEN p_number THEN w.sent ELSE 0", "WHEN p_number THEN 0 ELSE 0")


@mutant("CLAIM-1", stores=POSTGRES)
def nobody_waits_for_what_is_on_its_way(bug: Bug) -> None:
    """A worker that leaves does not get what was leased to it."""
    bug.around(Registrations, "in_flight", lambda *_: 0)


@mutant("CLAIM-1", stores=POSTGRES)
def what_came_is_still_on_its_way(bug: Bug) -> None:
    """Jobs that a worker has take up room twice."""

    def coming(_: Planted, offers: Registrations, *_rest: object) -> int:
        return sum(offer.handed_off for offer in offers.open.values())

    bug.around(Registrations, "in_flight", coming)


@mutant("CLAIM-1", stores=POSTGRES)
def what_was_claimed_takes_up_no_room(bug: Bug) -> None:
    """A worker offers to take all that it wished for, whatever it got."""

    def settle(original: Planted, post: Any, request: Any, count: int, heard_as: int) -> Any:
        return original(post, request, request.limit if count else 0, heard_as)

    bug.around(bug.postgres("handoff").PostgresInbox, "_register", settle)


@mutant("CLAIM-1", stores=POSTGRES)
def who_is_full_leaves_his_offer(bug: Bug) -> None:
    """A worker that has no room left is sent what it offered to take before."""

    async def withdraw_waiter(_: Planted, *_args: object, **_options: object) -> tuple[int, int]:
        return 0, 0

    bug.around(bug.postgres("handoff").PostgresInbox, "_withdraw", withdraw_waiter)
