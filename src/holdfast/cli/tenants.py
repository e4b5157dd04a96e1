"""`holdfast tenant`: weight, quota and budgets; `holdfast tenants`: the list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from holdfast.cli.audit import audited
from holdfast.cli.options import Json, Store
from holdfast.cli.output import emit, say, show
from holdfast.cli.session import with_queue, with_store
from holdfast.core.budgets import Budgets, TenantUsage
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from holdfast.queue.queue import Queue
    from holdfast.store import TenantSettings

_Found = tuple[Sequence["TenantSettings"], TenantUsage]

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="A tenant's share, quota and budgets.", no_args_is_help=True, rich_markup_mode=None)
    group.command("set")(set_tenant)
    group.command("show")(show_tenant)
    app.add_typer(group, name="tenant")


def set_tenant(
    tenant: TenantArgument,
    *,
    store: Store = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only for this queue.")] = None,
    weight: Annotated[
        float | None, typer.Option(help="The share of turns, in proportion to other tenants. Default: 1.")
    ] = None,
    max_waiting: Annotated[
        int | None, typer.Option(help="The most waiting jobs, an exact quota; 0 accepts none.")
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(min=0, help="The most jobs in any state, with keys that outlive them.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=0, help="The most bytes of payloads, results, errors and records.")
    ] = None,
    max_queues: Annotated[int | None, typer.Option(min=0, help="The most queues with jobs.")] = None,
    max_schedules: Annotated[int | None, typer.Option(min=0, help="The most schedules.")] = None,
    max_flows: Annotated[int | None, typer.Option(min=0, help="The most running flows.")] = None,
    max_workers: Annotated[
        int | None, typer.Option(min=0, help="The most workers that report through a service.")
    ] = None,
    max_types: Annotated[int | None, typer.Option(min=0, help="The most job types that these workers report.")] = None,
    requests_per_s: Annotated[
        int | None, typer.Option(min=0, help="The most requests a second to each process of a service.")
    ] = None,
    changes_per_s: Annotated[
        int | None, typer.Option(min=0, help="The most jobs and leases a second that these requests change.")
    ] = None,
    max_connections: Annotated[int | None, typer.Option(min=0, help="The most connections to each process.")] = None,
    max_streams: Annotated[int | None, typer.Option(min=0, help="The most event streams from each process.")] = None,
    max_waiting_claims: Annotated[
        int | None, typer.Option(min=0, help="The most waiting claims and results in each process.")
    ] = None,
    json: Json = False,
) -> None:
    """Set a tenant's weight, quota and budgets. Options that are not given do not change; a budget of 0 is no limit."""
    budgets = Budgets(
        max_jobs=max_jobs, max_bytes=max_bytes, max_queues=max_queues, max_schedules=max_schedules,
        max_flows=max_flows, max_workers=max_workers, max_types=max_types, requests_per_s=requests_per_s,
        changes_per_s=changes_per_s, max_connections=max_connections, max_streams=max_streams,
        max_waiting_claims=max_waiting_claims,
    )  # fmt: skip
    given = {name: value for name, value in asdict(budgets).items() if value is not None}
    if weight is None and max_waiting is None and not given:
        raise InvalidOption("tenant set", "nothing to set; pass --weight, --max-waiting or a budget such as --max-jobs")

    async def act(bound: Queue) -> _Found:
        await bound.set_tenant(weight=weight, max_waiting=max_waiting, queue=queue, budgets=budgets if given else None)
        return await bound.tenant_settings(), await bound.usage()

    with audited("tenant.set", store, tenant, queue=queue, weight=weight, max_waiting=max_waiting, **given):
        found = with_queue(store, tenant, act, create=True)
    _print(tenant, found, json)


def show_tenant(tenant: TenantArgument, *, store: Store = None, json: Json = False) -> None:
    """Show a tenant's settings, and how much of its budgets it uses."""

    async def act(bound: Queue) -> _Found:
        return await bound.tenant_settings(), await bound.usage()

    _print(tenant, with_queue(store, tenant, act), json)


def list_tenants(*, store: Store = None, json: Json = False) -> None:
    """List the tenants that have jobs or settings in a store."""
    found = with_store(store, lambda opened: opened.tenants())
    if json:
        emit({"tenants": found})
    else:
        show(["tenant"], ([name] for name in found), "No tenants yet.")


def _print(tenant: str, found: _Found, json: bool) -> None:
    settings, usage = found
    if json:
        emit({"tenant": tenant, "settings": settings, "usage": usage})
        return
    rows = [
        [
            "(all)" if one.queue is None else one.queue,
            "" if one.weight is None else f"{one.weight:g}",
            "" if one.max_waiting is None else str(one.max_waiting),
        ]
        for one in settings
        if one.queue is not None or one.weight is not None or one.max_waiting is not None
    ]
    show(["queue", "weight", "max waiting"], rows, f"No weight or quota is set for {tenant}: weight 1, no quota.")
    say()
    budgets = [
        [
            one.budget,
            "" if one.used is None else str(one.used),
            "set by the service" if one.limit is None else str(one.limit) if one.limit else "no limit",
            "set" if one.is_set else "default",
        ]
        for one in usage.budgets
    ]
    show(["budget", "used", "limit", ""], budgets, "")
