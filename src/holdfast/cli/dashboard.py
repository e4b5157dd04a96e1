"""`holdfast dashboard`: the dashboard alone, on any store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.oidc import (
    OidcClient,
    OidcIssuer,
    OidcRole,
    OidcRoles,
    OidcScope,
    OidcTenant,
    PublicUrl,
    oidc_settings,
)
from holdfast.cli.options import TENANT_VARIABLE, Blobs, Store, blobs_url, needing, store_url
from holdfast.cli.output import say
from holdfast.cli.serve import (
    Audience,
    Issuer,
    Jwks,
    KeyFile,
    Proof,
    Proxies,
    TenantClaim,
    address,
    proof_directory,
    session_secret,
    token_settings,
)
from holdfast.cli.session import existing, shown_url
from holdfast.cli.worker import JsonLogs, LogLevel, checked_level

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from holdfast.dashboard.access import Access
    from holdfast.dashboard.oidc import OidcSettings
    from holdfast.service.settings import TokenSettings


def dashboard(
    *,
    store: Store = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help=f"The tenant to begin with. [env: {TENANT_VARIABLE}]")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8001,
    key_file: KeyFile = None,
    jwks: Jwks = None,
    issuer: Issuer = None,
    audience: Audience = None,
    tenant_claim: TenantClaim = None,
    public_url: PublicUrl = None,
    oidc_issuer: OidcIssuer = None,
    oidc_client_id: OidcClient = None,
    oidc_scope: OidcScope = "openid",
    oidc_tenant_claim: OidcTenant = "tid",
    oidc_roles_claim: OidcRoles = "roles",
    oidc_role: OidcRole = None,
    blobs: Blobs = None,
    proof: Proof = None,
    trusted_proxies: Proxies = "",
    json_logs: JsonLogs = False,
    log_level: LogLevel = "info",
) -> None:
    """Serve the dashboard of a store until SIGTERM or Ctrl-C.

    On this machine it opens without a login and shows all tenants. On another --host it asks for a token of the HTTP
    API, so it needs the key that verifies them. With --oidc-issuer people log in there, on any --host.
    """
    import os

    from holdfast.cli.running import exit_on_term

    with needing("dashboard", "dashboard"):
        from holdfast.service.listening import is_loopback, listen, run
        from holdfast.service.settings import check_proxies
        from holdfast.telemetry import logging

    oidc = oidc_settings(
        oidc_issuer, oidc_client_id, public_url, oidc_scope, oidc_tenant_claim, oidc_roles_claim, oidc_role
    )
    tokens: TokenSettings | None = token_settings(key_file, jwks, issuer, audience, tenant_claim)
    if (oidc is not None and tokens.hs256_key is None and tokens.jwks is None) or (oidc is None and is_loopback(host)):
        tokens = None
    else:
        tokens.check()
    url = store_url(store)
    exit_on_term()
    logging.configure(json=json_logs, level=checked_level(log_level).upper())
    logging.configure_lines("holdfast.audit")
    sock = listen(host, port, 30.0)
    given: dict[str, Any] = {
        "url": url, "blobs": blobs_url(blobs), "tenant": tenant or os.environ.get(TENANT_VARIABLE),
        "proof": proof_directory(proof), "proxies": check_proxies(trusted_proxies),
    }  # fmt: skip
    run(_serve(sock, tokens, oidc, **given))


async def _serve(
    sock: socket,
    tokens: TokenSettings | None,
    oidc: OidcSettings | None,
    *,
    url: str,
    blobs: str | None,
    tenant: str | None,
    proof: Path | None,
    proxies: str,
) -> None:
    from holdfast.blobs import Blobs as BlobStore
    from holdfast.cli.running import ignore_signals
    from holdfast.core.names import check_tenant
    from holdfast.dashboard.access import ByToken, OnLoopback
    from holdfast.dashboard.app import Dashboard
    from holdfast.dashboard.server import serve, session_key
    from holdfast.opening import make_store

    store = make_store(existing(url))
    access: Access = OnLoopback()
    if tokens is not None or oidc is not None:
        access = ByToken.of(tokens, store, key=session_key(session_secret(tokens)), oidc=oidc)
    kept = None if blobs is None else BlobStore.open(blobs)
    first = "" if tenant is None else check_tenant(tenant)
    try:
        await store.open()
        pages = Dashboard(store, access, blobs=kept, tenant=first, url=url, proof=proof)
        say_ready = partial(say, f"Dashboard of {shown_url(url)}: {address(sock)}/", lines=True)
        await serve(pages, sock, say_ready, proxies)
        ignore_signals()
    finally:
        await store.close()
