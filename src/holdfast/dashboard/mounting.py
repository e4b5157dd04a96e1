"""The dashboard inside your own FastAPI or Starlette application."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.core.errors import InvalidOption
from holdfast.dashboard.access import Access, ByToken
from holdfast.dashboard.app import Dashboard
from holdfast.dashboard.oidc import OidcSettings
from holdfast.opening import make_store
from holdfast.service.settings import TokenSettings
from holdfast.store import Store

MOUNTED_STREAM_S = 20.0
"""How long a stream lasts. A server that stops waits for open streams, and a mounted application is not notified."""


def mount_dashboard(
    app: Starlette,
    store: Store | str,
    *,
    path: str = "/dashboard",
    tokens: TokenSettings | None = None,
    oidc: OidcSettings | None = None,
    access: Access | None = None,
    **options: Any,
) -> Dashboard:
    """Mount the dashboard of a store in a Starlette or FastAPI application, at `path`.

    `tokens` says which tokens open it: those of the HTTP service. `oidc` says where people log in instead, or besides.
    `access` decides otherwise: `OnLoopback()` for development, or an object of your own. A store that is given by its
    URL is closed with the application. Raises InvalidOption.
    """
    if (tokens is None and oidc is None) == (access is None):
        why = "say who may look: give tokens=TokenSettings(...), oidc=OidcSettings(...), or access=OnLoopback()"
        raise InvalidOption("access", why)
    if not path.startswith("/") or path.endswith("/"):
        raise InvalidOption("path", f"{path!r} must begin with a slash and not end with one")
    opened = make_store(store) if isinstance(store, str) else store
    chosen = access if access is not None else ByToken.of(tokens, opened, oidc=oidc)
    options.setdefault("stream_s", MOUNTED_STREAM_S)
    dashboard = Dashboard(opened, chosen, **options)
    app.router.routes.append(Mount(path, dashboard, name="holdfast-dashboard"))
    before = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncGenerator[Any]:
        async with before(application) as state, dashboard.lifespan():
            try:
                yield state
            finally:
                if isinstance(store, str):
                    await opened.close()

    app.router.lifespan_context = lifespan
    return dashboard
