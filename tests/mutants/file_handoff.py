"""Bugs in how the file store hands jobs over to workers that wait for them, and in what it tells of their ends."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core.job import JobState
from tests.mutants.planting import Bug, Planted, mutant

FILE = ("file",)

# What is handed over --------------------------------------------------------------------------------------------


@mutant("CLAIM-5", stores=FILE)
def new_jobs_of_a_paused_queue_are_handed_over(bug: Bug) -> None:
    """A pause is not looked at when a worker waits."""
    bug.sql("lane_state", "SELECT paused", "SELECT 0 * paused")


@mutant("CLAIM-2", stores=FILE)
def a_new_job_is_handed_over_past_those_that_wait(bug: Bug) -> None:
    """A new job goes to whoever waits although others came before."""
    bug.around(bug.file("transaction").Transaction, "_nothing_waits", lambda *_: True)


@mutant("TENANT-4", stores=FILE)
def a_new_job_is_handed_over_past_the_turns(bug: Bug) -> None:
    """A worker for all is sent a job while those of other tenants wait, that were not in the turns yet."""
    bug.sql("lanes_with_work", "next_at <= ?2", "next_at <= 0 * ?2")


@mutant("TENANT-4", stores=FILE)
def a_new_job_is_handed_over_in_the_middle_of_the_turns(bug: Bug) -> None:
    """A worker for all is sent a job while those of other tenants wait for their turn."""
    bug.sql("lanes_with_work", "in_turns = 1", "in_turns = 2")


@mutant("ENQ-5", stores=FILE)
def a_job_of_tomorrow_is_handed_over(bug: Bug) -> None:
    """A delayed job goes to whoever waits."""

    def hand_over(original: Planted, t: Any, job: Any, *rest: Any) -> Any:
        made = job.snapshot()
        made.state = JobState.READY
        return original(t, made, *rest)

    bug.around(bug.file("transaction").Transaction, "hand_over", hand_over)


@mutant("CLAIM-1", "STATE-1", stores=FILE)
def what_was_handed_over_waits_as_well(bug: Bug) -> None:
    """A job that was handed over can be claimed once more."""
    bug.sql("add_leased", "VALUES (?, ?, ?, ?, ", "VALUES (?, ?, ?, 2 + 0 * ?, ")


@mutant("CLAIM-1", "LEASE-5", stores=FILE)
def a_token_is_handed_over_twice(bug: Bug) -> None:
    """The next lease has the token of the one that was handed over."""

    def hand_over(original: Planted, t: Any, *rest: Any) -> Any:
        token = t.token
        done = original(t, *rest)
        t.token = token
        return done

    def next_token(_: Planted, t: Any) -> int:
        return t.token + 1  # By the clock it would be another one.

    bug.around(bug.file("transaction").Transaction, "hand_over", hand_over)
    bug.around(bug.file("transaction").Transaction, "next_token", next_token)


@mutant("CLAIM-1", stores=FILE)
def what_is_handed_over_has_the_lease_of_its_offer(bug: Bug) -> None:
    """The lease is as long as the offer stood."""

    def add(original: Planted, book: Any, offer: Any) -> Any:
        return original(book, replace(offer, lease_ms=offer.lease_ms // 3, until=offer.until))

    bug.around(bug.file("waiters").Book, "add", add)


@mutant("EVENT-1", "CLAIM-1", stores=FILE)
def a_hand_over_is_logged_as_an_enqueue(bug: Bug) -> None:
    """The log does not say that the job was leased."""

    def append(original: Planted, t: Any, event: Any, lane: int) -> None:
        if event.kind != "claimed" or not t.offers._handed:
            original(t, event, lane)

    bug.around(bug.file("transaction").Transaction, "append", append)


@mutant("STATE-1", stores=FILE)
def what_was_handed_over_is_not_counted(bug: Bug) -> None:
    """The counts of a queue do not know of a job that never waited."""

    def hand_over(original: Planted, t: Any, job: Any, event: Any, lane: int) -> Any:
        done = original(t, job, event, lane)
        if done:
            t.count(lane, JobState.LEASED, -1)
        return done

    bug.around(bug.file("transaction").Transaction, "hand_over", hand_over)


@mutant("CLAIM-1", stores=FILE)
def what_was_handed_over_stays_here(bug: Bug) -> None:
    """A job is leased to a worker, which is not told."""
    bug.around(bug.file("waiters").Book, "_send", lambda *_: None)


# To whom --------------------------------------------------------------------------------------------------------


@mutant("TENANT-2", stores=FILE)
def offers_are_for_every_tenant(bug: Bug) -> None:
    """A worker of one tenant is sent the jobs of others."""

    def add(original: Planted, book: Any, offer: Any) -> Any:
        return original(book, replace(offer, tenant=None))

    bug.around(bug.file("waiters").Book, "add", add)


@mutant("CLAIM-1", stores=FILE)
def offers_stand_in_one_queue_alone(bug: Bug) -> None:
    """A worker with several queues is sent the jobs of one."""

    def add(original: Planted, book: Any, offer: Any) -> Any:
        return original(book, replace(offer, queues=offer.queues[:1]))

    bug.around(bug.file("waiters").Book, "add", add)


@mutant("CLAIM-1", stores=FILE)
def offers_have_no_end(bug: Bug) -> None:
    """A job goes to a worker that may be gone for long."""

    def find(original: Planted, book: Any, tenant: str, queue: str, _: int, *rest: Any) -> Any:
        return original(book, tenant, queue, 0, *rest)

    bug.around(bug.file("waiters").Book, "find", find)


@mutant("CLAIM-3", stores=FILE)
def jobs_are_handed_to_the_dead(bug: Bug) -> None:
    """Nobody looks whether the worker still hears."""
    bug.around(bug.file("waiters").Book, "_hears", lambda *_: True)


@mutant("CLAIM-1", stores=FILE)
def nobody_is_taken_for_living(bug: Bug) -> None:
    """Offers of workers that hear are thrown away."""
    bug.around(bug.file("waiters").Book, "_hears", lambda *_: False)


# How many -------------------------------------------------------------------------------------------------------


@mutant("CLAIM-1", stores=FILE)
def offers_are_never_used_up(bug: Bug) -> None:
    """A worker that has room for one job is sent all that come."""

    def hand_over(original: Planted, book: Any, handed: Any) -> None:
        original(book, handed)
        handed.offer.handed.pop()

    bug.around(bug.file("waiters").Book, "hand_over", hand_over)


@mutant("CLAIM-1", stores=FILE)
def an_offer_is_for_one_job_more(bug: Bug) -> None:
    """A worker is sent one job more than it has room for."""

    def add(original: Planted, book: Any, offer: Any) -> Any:
        return original(book, replace(offer, given=offer.given + 1))

    bug.around(bug.file("waiters").Book, "add", add)


@mutant("CLAIM-1", stores=FILE)
def earlier_offers_are_not_taken_back(bug: Bug) -> None:
    """A worker that has no room left is sent what it offered to take before."""
    bug.around(bug.file("waiters").Book, "take_back", lambda *_: (0, []))


@mutant("CLAIM-1", stores=FILE)
def what_is_on_its_way_takes_up_no_room(bug: Bug) -> None:
    """A claim forgets what was handed over since the worker looked."""

    def take_back(original: Planted, book: Any, post: str) -> tuple[int, list[tuple[int, int]]]:
        return original(book, post)[0], []

    bug.around(bug.file("waiters").Book, "take_back", take_back)


@mutant("CLAIM-1", stores=FILE)
def a_worker_that_leaves_does_not_look_into_its_fifo(bug: Bug) -> None:
    """What was handed over just before the end is lost for the time of a lease."""

    async def close(_: Planted, post: Any) -> None:
        post._fifo.read = lambda: None
        post.end()

    bug.around(bug.file("handoff").FileInbox, "close", close)


# Alone ----------------------------------------------------------------------------------------------------------


@mutant("LEASE-1", stores=FILE)
def lone_completion_without_the_token_check(bug: Bug) -> None:
    """A process that leased a job completes it alone, although another process has it by now."""
    bug.sql("save_one_completed", "AND token = ?5", "AND ?5 > 0")
    bug.sql("save_one_completed", "AND events = ?8", "AND ?8 > 0")  # A new lease is also a new event.


@mutant("LEASE-1", stores=FILE)
def lone_completion_without_the_deadline_check(bug: Bug) -> None:
    """A process that leased a job completes it alone, past the deadline."""
    bug.sql("save_one_completed", "AND deadline > ?1", "")


@mutant("CANCEL-1", "LEASE-1", stores=FILE)
def lone_completion_without_the_state_check(bug: Bug) -> None:
    """A process that leased a job completes it alone, although it was canceled or reaped by another."""
    bug.sql("save_one_completed", "AND state = 4", "")
    bug.sql("save_one_completed", "AND deadline > ?1", "")


@mutant("RESULT-1", stores=FILE)
def lone_completion_without_a_result(bug: Bug) -> None:
    """The result of a job that is completed alone is not kept."""
    bug.sql("save_one_completed", "result = ?3", "result = substr(?3, 1, 0)")


@mutant("RESULT-2", stores=FILE)
def ends_are_told_of_the_forgotten(bug: Bug) -> None:
    """The record of a job that is kept for no time is told."""
    bug.around(bug.file("transaction"), "forgotten", lambda *_: False)
