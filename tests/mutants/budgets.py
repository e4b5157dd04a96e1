"""Bugs in budgets: what is counted, what is refused, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast import budgets
from holdfast.core.budgets import Budgets, Usage
from holdfast.core.errors import QuotaExceeded
from holdfast.core.job import NewJob
from tests.mutants.planting import FACES, Bug, Planted, mutant


@mutant("TENANT-5", stores=FACES)
def budgets_are_never_judged(bug: Bug) -> None:
    """A tenant may keep more than its budgets allow."""

    def admits(original: Planted, *_: Any) -> bool:
        del original
        return True

    bug.around(budgets.BudgetEnforcer, "admits", admits)


@mutant("TENANT-5", stores=FACES)
def a_budget_holds_one_too_many(bug: Bug) -> None:
    """The budget of jobs is off by one."""

    def set_budgets(original: Planted, counts: Any, said: Budgets) -> None:
        original(counts, said)
        counts.max_jobs += 1

    bug.around(budgets.TenantCounts, "set_budgets", set_budgets)


@mutant("TENANT-5", stores=FACES)
def no_limit_is_a_limit_of_none(bug: Bug) -> None:
    """A budget of 0 lets nothing in."""

    def set_budgets(original: Planted, counts: Any, said: Budgets) -> None:
        original(counts, said)
        if said.max_jobs == 0:
            counts.max_jobs = 0

    bug.around(budgets.TenantCounts, "set_budgets", set_budgets)


@mutant("TENANT-5", stores=FACES)
def what_this_process_enqueues_is_not_added(bug: Bug) -> None:
    """Between two reads of its usage a tenant can enqueue without limit."""

    def add(original: Planted, counts: Any, *more: Any) -> None:
        original(counts, 0, 0, *more[2:])

    bug.around(budgets.TenantCounts, "add", add)


@mutant("TENANT-5", stores=FACES)
def kept_keys_are_free(bug: Bug) -> None:
    """Keys that are held forever do not count."""

    def set_usage(original: Planted, counts: Any, usage: Usage, *before: int) -> None:
        original(counts, replace(usage, keys=0), *before)

    bug.around(budgets.TenantCounts, "set_usage", set_usage)


@mutant("TENANT-5", stores=FACES)
def known_ids_are_refused_too(bug: Bug) -> None:
    """Over a budget an enqueue of an existing id is refused instead of answered."""

    async def refused(original: Planted, enforcer: Any, items: Sequence[NewJob]) -> dict[int, QuotaExceeded]:
        found = await original(enforcer, items)
        return {n: QuotaExceeded(None, 0, 0, "max_jobs") for n in range(len(items))} if found else found

    bug.around(budgets.BudgetEnforcer, "_refused", refused)


@mutant("TENANT-5", stores=FACES[1:])
def known_queues_are_refused_too(bug: Bug) -> None:
    """Over the budget of queues, an existing queue that this process has not used counts as new."""

    async def has_jobs(_original: Planted, *_: Any) -> bool:
        return False

    bug.around(budgets.BudgetEnforcer, "_has_jobs", has_jobs)


@mutant("TENANT-5", stores=FACES)
def the_wrong_budget_is_named(bug: Bug) -> None:
    """Every refusal names the budget of jobs."""

    def refusal(original: Planted, counts: Any, budget: str) -> QuotaExceeded:
        found = original(counts, budget)
        return QuotaExceeded(found.queue, found.used, found.limit, "max_jobs")

    bug.around(budgets.TenantCounts, "refusal", refusal)


@mutant("TENANT-5", stores=FACES)
def what_is_reserved_is_refused(bug: Bug) -> None:
    """Schedules and the operator's records are refused like jobs."""

    def is_exempt(original: Planted, *_: str) -> bool:
        del original
        return False

    bug.around(budgets, "is_exempt", is_exempt)


@mutant("TENANT-5", stores=FACES)
def budgets_are_for_all_tenants_together(bug: Bug) -> None:
    """One tenant's usage counts against another tenant."""

    def counts(original: Planted, enforcer: Any, tenant: str, **more: Any) -> Any:
        del tenant
        return original(enforcer, "all", **more)

    bug.around(budgets.BudgetEnforcer, "_counts", counts)


@mutant("TENANT-5", stores=FACES)
def replays_are_within_every_budget(bug: Bug) -> None:
    """A tenant above its budgets may replay its dead letters."""

    def exceeded_budget(original: Planted, *_: Any) -> str:
        del original
        return ""

    bug.around(budgets.TenantCounts, "exceeded_budget", exceeded_budget)


@mutant("ENQ-3", stores=FACES)
def held_keys_are_refused_too(bug: Bug) -> None:
    """Over a budget, an enqueue with a held key is refused instead of answered with the first job."""

    async def admit_known(original: Planted, enforcer: Any, items: Sequence[NewJob], refused: Any) -> None:
        await original(enforcer, [replace(i, envelope=replace(i.envelope, idempotency=None)) for i in items], refused)

    bug.around(budgets.BudgetEnforcer, "_admit_known", admit_known)
