"""Bugs in what a store says that a job waits for."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core.codes import LEASED
from tests.mutants.planting import FACES, POSTGRES, REDIS, Bug, Planted, mutant

AHEAD = "the_jobs_ahead_are_counted"
PRIORITY = "a_higher_priority_is_ahead_and_a_lower_one_is_not"
DELAYED = "a_delayed_job_is_not_ahead_until_it_is_due"
OTHERS = "other_tenants_with_visible_work_take_turns"

FILE = ("file",)
MEMORY = ("memory",)


def _standing(bug: Bug, **fields: Any) -> None:
    """Bend what `standing` answers: each field is a function of the right value."""

    async def standing(original: Planted, store: Any, key: Any) -> Any:
        found = await original(store, key)
        return found and replace(found, **{name: bend(getattr(found, name)) for name, bend in fields.items()})

    bug.answer("standing", standing)


@mutant("EXPLAIN-1", stores=FACES, seen_by=AHEAD)
def a_job_counts_itself_as_ahead(bug: Bug) -> None:
    """One too many is ahead."""
    _standing(bug, ahead=lambda count: count + 1)


@mutant("EXPLAIN-1", stores=FACES, seen_by="over_a_thousand_jobs_ahead_are_not_counted")
def a_thousand_jobs_ahead_are_the_most(bug: Bug) -> None:
    """1,001 jobs ahead show as 1,000."""
    _standing(bug, ahead=lambda count: min(count, 1_000))


@mutant("EXPLAIN-1", stores=FACES, seen_by="a_paused_queue_is_the_cause")
def a_pause_is_no_cause(bug: Bug) -> None:
    """Nothing is said of a pause."""
    _standing(bug, paused=lambda _: False)


@mutant("EXPLAIN-1", stores=FACES, seen_by="a_foreign_job_is_explained_as_one_that_is_not_there")
def a_foreign_job_is_explained(bug: Bug) -> None:
    """A job is looked for under any tenant that the store has."""

    async def standing(original: Planted, store: Any, key: Any) -> Any:
        found = await original(store, key)
        for tenant in [] if found is not None else await store.tenants():
            found = found or await original(store, key._replace(tenant=tenant))
        return found

    bug.answer("standing", standing)


# Memory -----------------------------------------------------------------------------------------------------------


@mutant("EXPLAIN-1", stores=MEMORY, seen_by=PRIORITY)
def memory_ignores_the_priority_of_jobs_ahead(bug: Bug) -> None:
    """The job's own priority does not count: whatever came before it is ahead."""
    order = bug.memory("queues")
    bug.around(order, "claim_order", lambda original, job: (0, *original(job)[1:]))


@mutant("EXPLAIN-1", stores=MEMORY, seen_by=AHEAD)
def memory_counts_stale_entries(bug: Bug) -> None:
    """Canceled jobs are ahead as well."""

    def count_below(original: Planted, heap: Any, bound: Any, limit: int) -> int:
        is_live, heap._is_live = heap._is_live, lambda _: True
        try:
            return original(heap, bound, limit)
        finally:
            heap._is_live = is_live

    bug.around(bug.memory("heaps").LazyHeap, "count_below", count_below)


# File -------------------------------------------------------------------------------------------------------------


def _file(bug: Bug, old: str, new: str) -> None:
    bug.query("AHEAD", old, new, used_by=(bug.file("reads"), "standing"))


@mutant("EXPLAIN-1", stores=FILE, seen_by=AHEAD)
def the_file_counts_jobs_of_the_same_moment_behind(bug: Bug) -> None:
    """Of the jobs that became visible at the same moment, all count as ahead."""
    _file(bug, "seq < ?5", "seq <> ?5")


@mutant("EXPLAIN-1", stores=FILE, seen_by=PRIORITY)
def the_file_ignores_higher_priorities(bug: Bug) -> None:
    """Only jobs of the same priority are ahead."""
    _file(bug, "rank = 0 AND visible_at <= ?2 AND 0 < ?3", "rank = 0 AND visible_at <= ?2 AND 0 > ?3")


@mutant("EXPLAIN-1", stores=FILE, seen_by=DELAYED)
def the_file_counts_delayed_jobs(bug: Bug) -> None:
    """A better priority counts before its time."""
    _file(bug, "rank = 0 AND visible_at <= ?2", "rank = 0 AND ?2 > 0")


# Redis ------------------------------------------------------------------------------------------------------------


@mutant("EXPLAIN-1", stores=REDIS, seen_by=DELAYED)
def redis_counts_delayed_jobs(bug: Bug) -> None:
    """A better priority counts before its time."""
    bug.lua("standing", "low, low + now)", "low, low + PRIORITY_BAND - 1)")


@mutant("EXPLAIN-1", stores=REDIS, seen_by=PRIORITY)
def redis_ignores_higher_priorities(bug: Bug) -> None:
    """Only jobs of the same priority are ahead."""
    bug.lua("standing", "for low = 0, band - 1", "for low = 0, -1")


@mutant("EXPLAIN-1", stores=REDIS, seen_by=OTHERS)
def redis_counts_paused_tenants(bug: Bug) -> None:
    """A tenant that has paused its queue takes turns."""
    bug.lua("standing", "not is_paused(lane) and ", "")


@mutant("EXPLAIN-1", stores=REDIS, seen_by=OTHERS)
def redis_counts_tenants_without_visible_work(bug: Bug) -> None:
    """Every tenant that has had work in the queue counts as one that takes turns."""
    bug.lua("standing", "and next_visible(new_scan(lane, 1)) then", "then")


@mutant("EXPLAIN-1", stores=REDIS, seen_by=OTHERS)
def redis_counts_the_tenant_itself(bug: Bug) -> None:
    """The tenant of the job is one of the other tenants."""
    bug.lua("standing", "{ [tenant] = true }, 0", "{}, 0")


# PostgreSQL -------------------------------------------------------------------------------------------------------


@mutant("EXPLAIN-1", stores=POSTGRES, seen_by=AHEAD)
def postgres_counts_leased_jobs(bug: Bug) -> None:
    """A job that is leased is ahead still."""
    bug.statement("standing", f"j.state < {LEASED} AND j.rank = v.rank", "j.rank = v.rank")


@mutant("EXPLAIN-1", stores=POSTGRES, seen_by=DELAYED)
def postgres_counts_delayed_jobs(bug: Bug) -> None:
    """A better priority counts before its time."""
    bug.statement("standing", "AND j.rank = p.rank AND j.visible_at <= v.now LIMIT", "AND j.rank = p.rank LIMIT")


@mutant("EXPLAIN-1", stores=POSTGRES, seen_by=PRIORITY)
def postgres_ignores_higher_priorities(bug: Bug) -> None:
    """Only jobs of the same priority are ahead."""
    bug.statement("standing", "generate_series(0, v.rank - 1)", "generate_series(1, 0)")


@mutant("EXPLAIN-1", stores=POSTGRES, seen_by=AHEAD)
def postgres_counts_jobs_of_all_tenants(bug: Bug) -> None:
    """Jobs of other tenants in a queue of the same name are ahead."""
    bug.statement("standing", "j.queue_id = $1 AND j.lane = $2 AND", "j.queue_id = $1 AND")


@mutant("EXPLAIN-1", stores=POSTGRES, seen_by=OTHERS)
def postgres_counts_paused_tenants(bug: Bug) -> None:
    """A tenant that has paused its queue takes turns."""
    bug.statement("standing", "AND NOT o.paused", "")
