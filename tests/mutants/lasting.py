"""Bugs in what is kept: the log, results, dead letters, retention, tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import budgets, lifecycle, trimming
from holdfast.core.errors import EventsTrimmed, NotReplayable
from holdfast.core.events import Event
from holdfast.core.job import DAY, Job, JobKey, JobState, Replayed
from holdfast.store import EVENTS_BOUND_MS, EventPage, ListQuery, Page
from holdfast.tables import TableLog
from tests.mutants.planting import CORE, FACES, IN_PYTHON, Bug, Planted, mutant

_FOR_EVER = 100 * 365 * DAY

# Events -------------------------------------------------------------------------------------------------------


@mutant("EVENT-1", "LEASE-3")
def event_missing(bug: Bug) -> None:
    """An expired lease makes no event."""
    bug.log(lambda event: [] if event.kind == "expired" else [event])


@mutant("EVENT-1")
def event_doubled(bug: Bug) -> None:
    """A job that fails for good makes two events."""
    bug.log(lambda event: [event, event] if event.kind == "failed" else [event])


@mutant("EVENT-1", "RETRY-5")
def release_event_missing(bug: Bug) -> None:
    """A release makes no event."""
    bug.log(lambda event: [] if event.kind == "released" else [event])


@mutant("DEAD-1", "EVENT-1", "KEEP-1")
def purge_without_event(bug: Bug) -> None:
    """A purge makes no event."""
    bug.log(lambda event: [] if event.kind == "purged" else [event])


@mutant("EVENT-1")
def event_with_the_wrong_attempt(bug: Bug) -> None:
    """An event has the number of the next attempt, not of its own."""
    bug.log(lambda event: [replace(event, attempt=event.attempt + 1)])


@mutant("EVENT-2", stores=FACES)
def resuming_reader_sees_one_twice(bug: Bug) -> None:
    """A page begins with the last event of the page before."""

    async def events(original: Planted, store: Any, tenant: str | None, after: str | None, limit: int) -> EventPage:
        number = int((after or "0").partition(".")[0])
        try:
            return await original(store, tenant, str(number - 1) if number else after, limit)
        except EventsTrimmed:
            return await original(store, tenant, after, limit)

    bug.answer("events", events)


@mutant("EVENT-2")
def trimming_ignores_readers(bug: Bug) -> None:
    """Events are trimmed that a registered reader has not read yet."""

    def trim(original: Planted, log: Any, *args: Any) -> int:
        readers, log._readers = log._readers, {}
        gone = original(log, *args)
        log._readers = readers
        return gone

    bug.at("memory").around(TableLog, "trim", trim)
    bug.at("file").sql("slowest_readers", "FROM readers", "FROM readers WHERE 0")


@mutant("EVENT-2")
def one_old_event_takes_all_before_it(bug: Bug) -> None:
    """The log is assumed to be in order of time, even if the clock was set back."""

    def trim(original: Planted, log: Any, keep_events: int, now: int) -> int:
        old = any(event.at <= now - EVENTS_BOUND_MS for _, event in log._entries)
        return original(log, keep_events, now + EVENTS_BOUND_MS if old else now)

    bug.at("memory").around(TableLog, "trim", trim)
    bug.at("file").sql(
        "log_behind", "first, at,", "first, (SELECT min(at) FROM events AS e WHERE e.last >= events.last),"
    )


@mutant("EVENT-2", stores=FACES)
def gaps_of_tenants_are_not_reported(bug: Bug) -> None:
    """A reader of all tenants gets no gaps of single tenants."""

    async def events(original: Planted, store: Any, *args: Any) -> EventPage:
        return replace(await original(store, *args), gaps=[])

    bug.answer("events", events)


@mutant("EVENT-2", stores=IN_PYTHON)
def room_is_shared_in_equal_parts(bug: Bug) -> None:
    """The room that a quiet tenant does not use is not given to the others."""

    def level(_: Planted, counts: Collection[int], bound: int) -> int:
        return bound // max(1, len(counts))

    bug.around(trimming, "level", level)


@mutant("EVENT-2", stores=IN_PYTHON)
def every_tenant_pays_for_the_loudest(bug: Bug) -> None:
    """All tenants lose the same number of events when the log is over its bound."""

    def share(_: Planted, kept: Mapping[str, int], keep_events: int, __: int) -> dict[str, trimming.Excess]:
        over = max(0, sum(kept.values()) - keep_events)
        each = -(-over // max(1, len(kept)))
        return {tenant: trimming.Excess(min(count, each), 0) for tenant, count in kept.items() if each}

    bug.around(trimming, "excess", share)


@mutant("EVENT-2")
def a_reader_holds_the_events_of_all_tenants(bug: Bug) -> None:
    """One tenant's reader keeps the log of the others from being trimmed."""

    def slowest(_: Planted, log: Any, __: str) -> float:
        return min(log._readers.values(), default=math.inf)

    bug.at("memory").around(TableLog, "_slowest_reader", slowest)
    bug.at("file").sql("slowest_readers", "SELECT tenant, min(n)", "SELECT '', (SELECT min(n) FROM readers)")


@mutant("TENANT-5")
def what_is_forgotten_counts_for_ever(bug: Bug) -> None:
    """A tenant's bytes never go down."""

    def remove(original: Planted, jobs: Any, job: Job) -> None:
        before = jobs.bytes[job.tenant]
        original(jobs, job)
        jobs.bytes[job.tenant] = before

    bug.at("memory").around(bug.memory("jobs").JobTable, "remove", remove)
    bug.at("file").sql("move_lane", "bytes = bytes + ?9", "bytes = bytes + max(0, ?9)")


@mutant("TENANT-5", stores=IN_PYTHON)
def a_budget_takes_the_place_of_the_others(bug: Bug) -> None:
    """Setting one budget drops those that were set before."""

    def merged(_: Planted, old: budgets.Budgets | None, new: budgets.Budgets | None) -> budgets.Budgets | None:
        return new or old

    bug.around(budgets, "merged", merged)


@mutant("EVENT-2", stores=FACES)
def silent_gap(bug: Bug) -> None:
    """A reader that fell behind continues with the oldest event and gets no gap."""

    async def events(original: Planted, store: Any, tenant: str | None, after: str | None, limit: int) -> EventPage:
        try:
            return await original(store, tenant, after, limit)
        except EventsTrimmed:
            return await original(store, tenant, None, limit)

    bug.answer("events", events)


# Results and retention ----------------------------------------------------------------------------------------


@mutant("RESULT-1")
def result_kept_for_ever(bug: Bug) -> None:
    """A completed job outlives its TTL."""

    def complete(original: Planted, job: Job, *args: Any) -> Event:
        event = original(job, *args)
        job.expires_at = (job.expires_at or 0) + _FOR_EVER
        return event

    def save_completed(original: Planted, transaction: Any, completed: list[tuple[Job, Any]]) -> bool:
        kept: list[tuple[Job, Any]] = []
        for job, result in completed:
            lasting = job.snapshot()
            lasting.result_ttl_ms = _FOR_EVER
            kept.append((lasting, result))
        return original(transaction, kept)

    bug.around(lifecycle, "_complete", complete)
    bug.at("file").around(bug.file("transaction").Transaction, "save_completed", save_completed)


@mutant("RESULT-1")
def result_ttl_change_ignored(bug: Bug) -> None:
    """A change of the TTL is acknowledged but not stored."""

    def set_result_ttl(*_: Any) -> None:
        return None

    bug.around(lifecycle, "set_result_ttl", set_result_ttl)


@mutant("KEEP-1", "ENQ-5")
def retention_deletes_a_waiting_job(bug: Bug) -> None:
    """A job is forgotten a week after its enqueue, even if it still waits."""

    async def prune(original: Planted, store: Any, limit: int) -> Any:
        old = await store.now() - 7 * DAY
        for queue in store.tables.jobs.tenant_queues():
            queue.jobs = {id_: job for id_, job in queue.jobs.items() if job.claimed_at or job.enqueued_at > old}
        return await original(store, limit)

    bug.at("memory").answer("prune", prune)
    waiting = f"WHERE (state < 4 AND CAST(origin AS INTEGER) <= ?1 - {7 * DAY}) OR (state > 4 AND expires_at <= ?1)"
    bug.at("file").sql("forgotten_jobs", "WHERE state > 4 AND expires_at <= ?", waiting)


@mutant("KEEP-1", stores=CORE)
def failed_jobs_go_with_the_canceled(bug: Bug) -> None:
    """Dead letters are kept for the time of canceled jobs."""

    def end_dead(original: Planted, *args: Any) -> Event:
        *rest, keep = args
        return original(*rest, replace(keep, failed_ms=keep.canceled_ms))

    bug.around(lifecycle, "_end_dead", end_dead)


@mutant("KEEP-1", stores=FACES)
def forgotten_jobs_show_until_they_are_pruned(bug: Bug) -> None:
    """A job past its retention is shown until it is pruned."""

    def forgotten(*_: Any) -> bool:
        return False

    bug.around(lifecycle, "forgotten", forgotten)


# Dead letters -------------------------------------------------------------------------------------------------


@mutant("DEAD-1", stores=FACES)
def dead_letters_newest_first(bug: Bug) -> None:
    """The list of failed jobs has the newest first."""

    async def list_jobs(original: Planted, store: Any, query: ListQuery) -> Page:
        page: Page = await original(store, query)
        dead = query.states == frozenset({JobState.FAILED})
        return replace(page, jobs=page.jobs[::-1]) if dead else page

    bug.answer("list", list_jobs)


@mutant("DEAD-1", stores=FACES)
def replayed_twice(bug: Bug) -> None:
    """Of two replays of one job both answer that they replayed it."""

    async def replay(original: Planted, store: Any, keys: Sequence[JobKey], **more: Any) -> Any:
        answers = await original(store, keys, **more)
        jobs = await store.get(keys)
        return [
            Replayed() if isinstance(answer, NotReplayable) and job is not None and job.replays else answer
            for answer, job in zip(answers, jobs, strict=True)
        ]

    bug.answer("replay", replay)


# Leases that run out, and tokens -------------------------------------------------------------------------------


@mutant("LEASE-3")
def reaper_misses_the_deadline(bug: Bug) -> None:
    """A lease is not found at its exact deadline."""

    def reap(original: Planted, tables: Any, limit: int, random: float, now: int) -> Any:
        return original(tables, limit, random, now - 1)

    bug.at("memory").around(bug.memory("claims"), "end_expired_leases", reap)
    bug.at("file").sql("expired_leases", "deadline <= ?", "deadline < ?")


@mutant("LEASE-3")
def claims_leave_expired_leases_to_the_reaper(bug: Bug) -> None:
    """Without a reaper an expired lease is never ended."""
    claiming: list[bool] = []

    def claim(original: Planted, *args: Any) -> Any:
        claiming.append(True)
        return original(*args)

    def reap(original: Planted, *args: Any) -> Any:
        return [] if claiming and claiming.pop() else original(*args)

    bug.at("memory").around(bug.memory("claims"), "claim", claim)
    bug.at("memory").around(bug.memory("claims"), "end_expired_leases", reap)
    bug.at("file").around(bug.file("claims"), "claim", claim)
    bug.at("file").around(bug.file("claims"), "reap", reap)


@mutant("LEASE-5", "LEASE-1")
def token_reused_after_a_purge(bug: Bug) -> None:
    """The token of a forgotten job is granted again."""

    def forget(original: Planted, tables: Any, job: Job) -> None:
        if job.token and job.token == tables.last_token:
            tables.last_token -= 1
        original(tables, job)

    def forget_job(original: Planted, transaction: Any, job: Job, lane: int) -> None:
        if job.token and job.token == transaction.token:
            transaction.token -= 1
        original(transaction, job, lane)

    bug.at("memory").around(bug.memory("tables").Tables, "forget", forget)
    bug.at("file").around(bug.file("transaction").Transaction, "forget_job", forget_job)


@mutant("KEEP-1", stores=CORE, seen_by="a_failed_step_of_a_flow_is_kept_as_long_as_its_result_would_be")
def bad_ends_of_steps_are_kept_like_others(bug: Bug) -> None:
    """The record of a failed or canceled step is gone before its flow has read it."""

    def kept_ms(_: Planted, __: Job, keep_ms: int) -> int:
        return keep_ms

    bug.around(lifecycle, "_kept_ms", kept_ms)
