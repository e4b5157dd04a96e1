"""Tenants, for operators: which ones wait, their shares and quotas; and one tenant, to change its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.core.errors import InvalidOption, Unsupported
from holdfast.core.job import JobState
from holdfast.core.names import check_tenant
from holdfast.dashboard.page import Action, Done, Form, Fragment, WebPage
from holdfast.dashboard.pages.queues import queue_page, waiting
from holdfast.dashboard.view import NotShown, View
from holdfast.service.tokens import OPERATOR_SCOPE
from holdfast.store import QueuePage, QueueStats, TenantSettings

SHOWN = 25
"""Each tenant of a page costs two reads."""
QUEUES_SHOWN = 10


class TenantRow(Struct, frozen=True):
    """One tenant."""

    name: str
    waiting: int
    leased: int
    failed: int
    oldest: int | None
    weight: float
    max_waiting: int | None
    all_counted: bool
    """Whether all its queues were counted: if there are too many, only the first are."""


async def read(view: View) -> dict[str, Any]:
    """One page of tenants, by name."""
    if view.text("name"):
        names, cursor = [check_tenant(view.text("name"))], None
    else:
        page = await view.store.tenant_page(view.text("cursor") or None, SHOWN)
        names, cursor = page.tenants, page.cursor
    rows = await asyncio.gather(*(_row_of(view, name) for name in names))
    busy = sum(row.weight for row in rows if row.waiting)
    # A share is a part of what all waiting tenants get: it is known only if all of them are on the page.
    is_whole = cursor is None and not view.query
    return {"rows": rows, "cursor": cursor, "busy": busy if is_whole else 0.0, "is_filtered": bool(view.text("name"))}


async def _row_of(view: View, tenant: str) -> TenantRow:
    page, settings = await asyncio.gather(
        view.source.queue_page(tenant, None, view.asked_at), view.store.tenant_settings(tenant)
    )
    return _row(tenant, page, settings)


def _row(tenant: str, page: QueuePage, settings: Sequence[TenantSettings]) -> TenantRow:
    own = _own(settings)
    return TenantRow(
        tenant,
        sum(waiting(one) for one in page.queues),
        sum(one.counts.get(JobState.LEASED, 0) for one in page.queues),
        sum(one.counts.get(JobState.FAILED, 0) for one in page.queues),
        min((one.oldest_ready_at for one in page.queues if one.oldest_ready_at is not None), default=None),
        1.0 if own.weight is None else own.weight,
        own.max_waiting,
        page.cursor is None,
    )


async def read_form(view: View) -> dict[str, Any]:
    """The settings that a form changes."""
    _check_operator(view)
    settings = await view.queue.tenant_settings()
    return {"own": _own(settings), "can_set": view.may(OPERATOR_SCOPE)}


async def read_one(view: View) -> dict[str, Any]:
    """What a tenant uses, its settings, and its queues with the most waiting jobs."""
    _check_operator(view)
    page = await queue_page(view)
    try:
        usage = await view.queue.usage()
    except Unsupported:
        usage = None
    settings = await view.queue.tenant_settings()
    return {
        "row": _row(view.tenant, page, settings),
        "usage": usage,
        "settings": [one for one in settings if one.queue is not None],
        "queues": sorted(page.queues, key=_most_waiting)[:QUEUES_SHOWN],
        "more_queues": len(page.queues) > QUEUES_SHOWN or page.cursor is not None,
        "waiting": waiting,
        "command": f"holdfast tenant show {view.tenant}",
    }


async def change(view: View, form: Form) -> Done:
    """Set the weight and the quota of a tenant, or of one of its queues. [TENANT-4, TENANT-5]"""
    _check_operator(view)
    queue = form.text("queue")
    weight, quota = _number(form, "weight"), _number(form, "max_waiting")
    if weight is None and quota is None:
        raise InvalidOption("tenant", "nothing to set: a field that is left empty changes nothing")
    if quota is not None and not quota.is_integer():
        raise InvalidOption("max_waiting", f"{quota:g} is not a whole number")
    max_waiting = None if quota is None else int(quota)
    await view.queue.set_tenant(
        weight=weight, max_waiting=max_waiting, queue=view.checked_queue(queue) if queue else None
    )
    said = [] if weight is None else [f"weight {weight:g}"]
    said += [] if max_waiting is None else [f"at most {max_waiting:,} waiting"]
    where = f"{view.tenant}, queue {queue}" if queue else view.tenant
    return Done(f"Set for {where}: {', '.join(said)}.", view.url("/tenant"))


def _number(form: Form, name: str) -> float | None:
    text = form.text(name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidOption(name, f"{text!r} is not a number") from None


def _own(settings: Sequence[TenantSettings]) -> TenantSettings:
    return next((one for one in settings if one.queue is None), TenantSettings())


def _most_waiting(one: QueueStats) -> tuple[int, str]:
    return -waiting(one), one.queue


def _check_operator(view: View) -> None:
    if not view.viewer.is_operator:
        raise NotShown(404, "There is no such page.")


PAGES = (
    WebPage(
        "/tenants", "Tenants", "tenants.html", {"list": Fragment(read)}, nav="Tenants", key="t", of_tenant=False
    ),
    WebPage(
        "/tenant", "Tenant", "tenant.html", {"use": Fragment(read_one)}, read=read_form, parent="/tenants",
        actions=(Action("/tenant/set", "tenant.set", OPERATOR_SCOPE, change, ("queue", "weight", "max_waiting")),),
    ),
)  # fmt: skip
