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
    """Whatever a tenant keeps, it may keep more."""

    def admits(original: Planted, *_: Any) -> bool:
        del original
        return True

    bug.around(budgets.Keeper, "admits", admits)


@mutant("TENANT-5", stores=FACES)
def a_budget_holds_one_too_many(bug: Bug) -> None:
    """The budget of jobs is off by one."""

    def set_(original: Planted, account: Any, said: Budgets) -> None:
        original(account, said)
        account.jobs_room += 1

    bug.around(budgets.Account, "set", set_)


@mutant("TENANT-5", stores=FACES)
def no_limit_is_a_limit_of_none(bug: Bug) -> None:
    """A budget of 0 lets nothing in."""

    def set_(original: Planted, account: Any, said: Budgets) -> None:
        original(account, said)
        if said.max_jobs == 0:
            account.jobs_room = 0

    bug.around(budgets.Account, "set", set_)


@mutant("TENANT-5", stores=FACES)
def what_this_process_enqueues_is_not_added(bug: Bug) -> None:
    """Between two reads of its usage a tenant may enqueue as much as it likes."""

    def add(original: Planted, account: Any, *more: Any) -> None:
        original(account, 0, 0, *more[2:])

    bug.around(budgets.Account, "add", add)


@mutant("TENANT-5", stores=FACES)
def kept_keys_are_free(bug: Bug) -> None:
    """Keys that are held for ever count nowhere."""

    def fresh(original: Planted, account: Any, usage: Usage, *before: int) -> None:
        original(account, replace(usage, keys=0), *before)

    bug.around(budgets.Account, "fresh", fresh)


@mutant("TENANT-5", stores=FACES)
def known_ids_are_refused_too(bug: Bug) -> None:
    """Over a budget an id that exists is refused, and not answered as what it is."""

    async def refused(original: Planted, keeper: Any, items: Sequence[NewJob]) -> dict[int, QuotaExceeded]:
        found = await original(keeper, items)
        return {n: QuotaExceeded(None, 0, 0, "max_jobs") for n in range(len(items))} if found else found

    bug.around(budgets.Keeper, "_refused", refused)


@mutant("TENANT-5", stores=FACES[1:])
def known_queues_are_refused_too(bug: Bug) -> None:
    """Over the budget of queues, one that this process never used is taken for a new one."""

    async def has_jobs(_original: Planted, *_: Any) -> bool:
        return False

    bug.around(budgets.Keeper, "_has_jobs", has_jobs)


@mutant("TENANT-5", stores=FACES)
def the_wrong_budget_is_named(bug: Bug) -> None:
    """A refusal says that the jobs are too many, whatever it was."""

    def refusal(original: Planted, account: Any, budget: str) -> QuotaExceeded:
        found = original(account, budget)
        return QuotaExceeded(found.queue, found.used, found.limit, "max_jobs")

    bug.around(budgets.Account, "refusal", refusal)


@mutant("TENANT-5", stores=FACES)
def what_is_reserved_is_refused(bug: Bug) -> None:
    """Schedules, and what operators keep, are refused as jobs are."""

    def is_exempt(original: Planted, *_: str) -> bool:
        del original
        return False

    bug.around(budgets, "is_exempt", is_exempt)


@mutant("TENANT-5", stores=FACES)
def budgets_are_for_all_tenants_together(bug: Bug) -> None:
    """What one tenant keeps is held against another."""

    def account(original: Planted, keeper: Any, tenant: str, **more: Any) -> Any:
        del tenant
        return original(keeper, "all", **more)

    bug.around(budgets.Keeper, "_account", account)
