"""Tenants: all of them, for operators, a page at a time."""

from __future__ import annotations

from typing import Any

from holdfast.dashboard.page import WebPage
from holdfast.dashboard.view import View

SHOWN = 50


async def read(view: View) -> dict[str, Any]:
    """One page of names."""
    page = await view.store.tenant_page(view.text("cursor") or None, SHOWN)
    return {"tenants": page.tenants, "cursor": page.cursor}


PAGE = WebPage("/tenants", "Tenants", "tenants.html", read=read, nav="Tenants", key="t", of_tenant=False)
