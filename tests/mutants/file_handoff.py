"""Bugs in the file store's direct hand-off, and in its notifications about jobs that have ended."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core.codes import LEASED
from holdfast.core.job import JobState
from tests.mutants.planting import Bug, Planted, mutant

FILE = ("file",)

# What is handed off --------------------------------------------------------------------------------------------


@mutant("CLAIM-5", stores=FILE)
def new_jobs_of_a_paused_queue_are_handed_off(bug: Bug) -> None:
    """A pause is ignored when a worker waits."""
    bug.sql("lane_state", "SELECT paused", "SELECT 0 * paused")


@mutant("CLAIM-2", stores=FILE)
def a_new_job_is_handed_off_past_those_that_wait(bug: Bug) -> None:
    """A new job is handed off although earlier ones wait."""
    bug.around(bug.file("transaction").Transaction, "_nothing_waits", lambda *_: True)


@mutant("TENANT-4", stores=FILE)
def a_new_job_is_handed_off_past_the_turns(bug: Bug) -> None:
    """A worker for all tenants is sent a job while other tenants have waiting jobs but no turns yet."""
    bug.sql("lanes_with_work", "next_at <= ?2", "next_at <= 0 * ?2")


@mutant("TENANT-4", stores=FILE)
def a_new_job_is_handed_off_in_the_middle_of_the_turns(bug: Bug) -> None:
    """A worker for all tenants is sent a job while jobs of other tenants wait for their turn."""
    bug.sql("lanes_with_work", "in_turns = 1", "in_turns = 2")


@mutant("ENQ-5", stores=FILE)
def a_delayed_job_is_handed_off(bug: Bug) -> None:
    """A delayed job is handed off."""

    def hand_off(original: Planted, t: Any, job: Any, *rest: Any) -> Any:
        made = job.snapshot()
        made.state = JobState.READY
        return original(t, made, *rest)

    bug.around(bug.file("transaction").Transaction, "hand_off", hand_off)


@mutant("CLAIM-1", "STATE-1", stores=FILE)
def a_job_handed_off_waits_as_well(bug: Bug) -> None:
    """A job that was handed off can be claimed again."""
    bug.sql("add_leased", "VALUES (?, ?, ?, ?, ", "VALUES (?, ?, ?, 2 + 0 * ?, ")


@mutant("CLAIM-1", "LEASE-5", stores=FILE)
def a_token_is_handed_off_twice(bug: Bug) -> None:
    """The next lease has the token of the one that was handed off."""

    def hand_off(original: Planted, t: Any, *rest: Any) -> Any:
        token = t.token
        done = original(t, *rest)
        t.token = token
        return done

    def next_token(_: Planted, t: Any) -> int:
        return t.token + 1  # By the clock it would be another one.

    bug.around(bug.file("transaction").Transaction, "hand_off", hand_off)
    bug.around(bug.file("transaction").Transaction, "next_token", next_token)


@mutant("CLAIM-1", stores=FILE)
def a_job_handed_off_has_the_lease_of_its_registration(bug: Bug) -> None:
    """The lease is as short as the registration of the waiter."""

    def add(original: Planted, table: Any, waiter: Any) -> Any:
        return original(table, replace(waiter, lease_ms=waiter.lease_ms // 3, until=waiter.until))

    bug.around(bug.file("waiters").WaiterTable, "add", add)


@mutant("EVENT-1", "CLAIM-1", stores=FILE)
def a_hand_off_is_logged_as_an_enqueue(bug: Bug) -> None:
    """The lease makes no event."""

    def append(original: Planted, t: Any, event: Any, lane: int) -> None:
        if event.kind != "claimed" or not t.waiters._handoffs:
            original(t, event, lane)

    bug.around(bug.file("transaction").Transaction, "append", append)


@mutant("STATE-1", stores=FILE)
def a_job_handed_off_is_not_counted(bug: Bug) -> None:
    """The counts of a queue leave out a job that never waited."""

    def hand_off(original: Planted, t: Any, job: Any, event: Any, lane: int) -> Any:
        done = original(t, job, event, lane)
        if done:
            t.count(lane, JobState.LEASED, -1)
        return done

    bug.around(bug.file("transaction").Transaction, "hand_off", hand_off)


@mutant("CLAIM-1", stores=FILE)
def a_job_handed_off_is_not_sent(bug: Bug) -> None:
    """A job is leased to a worker, but not sent to it."""
    bug.around(bug.file("waiters").WaiterTable, "_send", lambda *_: None)


# To whom --------------------------------------------------------------------------------------------------------


@mutant("TENANT-2", stores=FILE)
def waiters_are_for_every_tenant(bug: Bug) -> None:
    """A worker of one tenant is sent the jobs of others."""

    def add(original: Planted, table: Any, waiter: Any) -> Any:
        return original(table, replace(waiter, tenant=None))

    bug.around(bug.file("waiters").WaiterTable, "add", add)


@mutant("CLAIM-1", stores=FILE)
def waiters_are_for_one_queue_only(bug: Bug) -> None:
    """A worker with several queues is sent the jobs of one."""

    def add(original: Planted, table: Any, waiter: Any) -> Any:
        return original(table, replace(waiter, queues=waiter.queues[:1]))

    bug.around(bug.file("waiters").WaiterTable, "add", add)


@mutant("CLAIM-1", stores=FILE)
def waiters_never_expire(bug: Bug) -> None:
    """A job is handed off to a worker that may have ended long ago."""

    def find(original: Planted, table: Any, tenant: str, queue: str, _: int, *rest: Any) -> Any:
        return original(table, tenant, queue, 0, *rest)

    bug.around(bug.file("waiters").WaiterTable, "find", find)


@mutant("CLAIM-3", stores=FILE)
def jobs_are_handed_off_to_dead_workers(bug: Bug) -> None:
    """The sender does not check whether the inbox has a reader."""
    bug.around(bug.file("waiters").WaiterTable, "_can_receive", lambda *_: True)


@mutant("CLAIM-1", stores=FILE)
def no_worker_counts_as_alive(bug: Bug) -> None:
    """The entries of live workers are removed."""
    bug.around(bug.file("waiters").WaiterTable, "_can_receive", lambda *_: False)


# How many -------------------------------------------------------------------------------------------------------


@mutant("CLAIM-1", stores=FILE)
def waiters_always_have_room(bug: Bug) -> None:
    """A worker with room for one job is sent every new job."""

    def hand_off(original: Planted, table: Any, handoff: Any) -> None:
        original(table, handoff)
        handoff.waiter.handed_off.pop()

    bug.around(bug.file("waiters").WaiterTable, "hand_off", hand_off)


@mutant("CLAIM-1", stores=FILE)
def a_waiter_is_for_one_job_more(bug: Bug) -> None:
    """A worker is sent one job more than it has room for."""

    def add(original: Planted, table: Any, waiter: Any) -> Any:
        return original(table, replace(waiter, limit=waiter.limit + 1))

    bug.around(bug.file("waiters").WaiterTable, "add", add)


@mutant("CLAIM-1", stores=FILE)
def earlier_registrations_are_not_withdrawn(bug: Bug) -> None:
    """A worker without room is sent jobs under its last registration."""
    bug.around(bug.file("waiters").WaiterTable, "withdraw", lambda *_: (0, []))


@mutant("CLAIM-1", stores=FILE)
def jobs_in_flight_take_up_no_room(bug: Bug) -> None:
    """A claim ignores jobs handed off since the worker counted its room."""

    def withdraw(original: Planted, table: Any, inbox: str) -> tuple[int, list[tuple[int, int]]]:
        return original(table, inbox)[0], []

    bug.around(bug.file("waiters").WaiterTable, "withdraw", withdraw)


@mutant("CLAIM-1", stores=FILE)
def a_worker_that_leaves_does_not_look_into_its_fifo(bug: Bug) -> None:
    """Jobs handed off just before the end are lost until their leases expire."""

    async def close(_: Planted, inbox: Any) -> None:
        inbox._fifo.read = lambda: None
        inbox.end()

    bug.around(bug.file("handoff").FileInbox, "close", close)


# Single completions -----------------------------------------------------------------------------------------------


@mutant("LEASE-1", stores=FILE)
def single_completion_without_the_token_check(bug: Bug) -> None:
    """In a call with one job, a process completes a job that another process has leased since."""
    bug.sql("save_one_completed", "AND token = ?5", "AND ?5 > 0")
    bug.sql("save_one_completed", "AND events = ?8", "AND ?8 > 0")  # A new lease is also a new event.


@mutant("LEASE-1", stores=FILE)
def single_completion_without_the_deadline_check(bug: Bug) -> None:
    """In a call with one job, a process completes a job past its deadline."""
    bug.sql("save_one_completed", "AND deadline > ?1", "")


@mutant("CANCEL-1", "LEASE-1", stores=FILE)
def single_completion_without_the_state_check(bug: Bug) -> None:
    """In a call with one job, a process completes a job that another process has canceled or reaped."""
    bug.sql("save_one_completed", f"AND state = {LEASED}", "")
    bug.sql("save_one_completed", "AND deadline > ?1", "")


@mutant("RESULT-1", stores=FILE)
def single_completion_without_a_result(bug: Bug) -> None:
    """The result of a job that is completed in a call of its own is not kept."""
    bug.sql("save_one_completed", "result = ?3", "result = substr(?3, 1, 0)")


@mutant("RESULT-2", stores=FILE)
def notifications_carry_forgotten_jobs(bug: Bug) -> None:
    """A notification carries the record of a job that is not kept."""
    bug.around(bug.file("transaction"), "forgotten", lambda *_: False)
