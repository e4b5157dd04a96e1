"""The dashboard in a process of its own, and inside the HTTP service."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from starlette.requests import Request

from holdfast.dashboard.access import ByToken, OnLoopback
from holdfast.dashboard.app import Dashboard
from holdfast.dashboard.oidc import Issuer, OidcSettings
from holdfast.dashboard.view import Viewer
from holdfast.service.listening import Server
from holdfast.service.settings import Limits
from holdfast.service.shares import Shares
from holdfast.worker.signals import on_signal

if TYPE_CHECKING:
    from holdfast.service.context import ServiceContext

GRACE_S = 5.0


async def serve(dashboard: Dashboard, sock: socket.socket, ready: Callable[[], None], proxies: str = "") -> None:
    """Serve until SIGTERM or SIGINT. Headers of `proxies` may name a client's address and scheme."""
    limits = replace(Limits(), grace_s=GRACE_S)
    connections = Shares("connections", process=limits.connections, full="too_many_connections")
    server = Server(dashboard, limits, connections, proxies)

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True
        dashboard.stop()

    async with dashboard.lifespan():
        ended = asyncio.create_task(server.serve(sockets=[sock]))
        with on_signal(stop):
            await server.up.wait()
            ready()
            await ended


def in_service(
    context: ServiceContext,
    *,
    key: bytes | None,
    is_open: bool = False,
    tenant: str = "",
    proof: Path | None = None,
    oidc: OidcSettings | None = None,
) -> Dashboard:
    """The pages of a service, for the holders of its tokens, and for people whom an issuer names.

    `is_open` asks for no token, on loopback only, for development.
    """
    issuer = None if oidc is None else Issuer(oidc)

    def note(request: Request, viewer: Viewer) -> None:
        """Count a request for its tenant, like those of the API. Raises Refusal."""
        tenant = viewer.tenant or ""
        request.scope["holdfast.tenant"] = tenant
        request.scope["holdfast.belong"](tenant)
        context.requests.admit(tenant)

    return Dashboard(
        context.store,
        OnLoopback() if is_open else ByToken(context.tokens, context.revoked, key=key, issuer=issuer),
        blobs=context.blobs,
        tenant=tenant,
        url=context.settings.store,
        proof=proof,
        trail=None if context.trail is None else context.trail.put,
        note=note,
        streams=context.streams,
    )


def session_key(secret: str | None) -> bytes | None:
    """The key of the sessions, derived from a secret that all processes share. None: each makes a key of its own."""
    return None if secret is None else hmac.digest(secret.encode(), b"holdfast dashboard sessions", hashlib.sha256)
