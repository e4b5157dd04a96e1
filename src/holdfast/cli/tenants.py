"""Tenants: their weight and quota, and which there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.audit import audited
from holdfast.cli.options import Json, Store
from holdfast.cli.output import emit, show
from holdfast.cli.session import with_queue, with_store
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from holdfast.queue import Queue
    from holdfast.store import TenantSettings

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(help="A tenant's share and quota.", no_args_is_help=True, rich_markup_mode=None)
    group.command("set")(set_tenant)
    group.command("show")(show_tenant)
    app.add_typer(group, name="tenant")
    app.command("tenants")(list_tenants)


def set_tenant(
    tenant: TenantArgument,
    *,
    store: Store = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="For this queue alone.")] = None,
    weight: Annotated[float | None, typer.Option(help="Its turns in proportion to others; 1 if never set.")] = None,
    max_waiting: Annotated[int | None, typer.Option(help="How many jobs may wait at once.")] = None,
    json: Json = False,
) -> None:
    """Set a tenant's weight and quota, for one queue or for all together. What is not given stays as it is."""
    if weight is None and max_waiting is None:
        raise InvalidOption("tenant set", "nothing to set; pass --weight or --max-waiting")

    async def act(bound: Queue) -> Sequence[TenantSettings]:
        await bound.set_tenant(weight=weight, max_waiting=max_waiting, queue=queue)
        return await bound.tenant_settings()

    with audited("tenant.set", store, tenant, queue=queue, weight=weight, max_waiting=max_waiting):
        found = with_queue(store, tenant, act, create=True)
    _print(tenant, found, json)


def show_tenant(tenant: TenantArgument, *, store: Store = None, json: Json = False) -> None:
    """Show what is set for a tenant."""
    _print(tenant, with_queue(store, tenant, lambda bound: bound.tenant_settings()), json)


def list_tenants(*, store: Store = None, json: Json = False) -> None:
    """List the tenants that have jobs or settings in a store."""
    found = with_store(store, lambda opened: opened.tenants())
    if json:
        emit({"tenants": found})
    else:
        show(["tenant"], ([name] for name in found), "No tenants yet.")


def _print(tenant: str, found: Sequence[TenantSettings], json: bool) -> None:
    if json:
        emit({"tenant": tenant, "settings": found})
        return
    rows = [
        [
            "(all)" if one.queue is None else one.queue,
            "" if one.weight is None else f"{one.weight:g}",
            "" if one.max_waiting is None else str(one.max_waiting),
        ]
        for one in found
        if one.queue is not None or one.weight is not None or one.max_waiting is not None
    ]
    show(["queue", "weight", "max waiting"], rows, f"Nothing is set for {tenant}: weight 1, no quota.")
