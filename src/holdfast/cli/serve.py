"""`holdfast serve`: the HTTP service, in this process or in several."""

from __future__ import annotations

import os
import secrets
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

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
from holdfast.cli.options import Blobs, GaugesByTenant, Store, blobs_url, gauges_by_tenant, needing, store_url
from holdfast.cli.worker import JsonLogs, LogLevel, checked_level
from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import duration

if TYPE_CHECKING:
    from socket import socket

    from holdfast.service.server import Mount
    from holdfast.service.settings import ServiceSettings, TokenSettings

KEY_VARIABLE, JWKS_VARIABLE = "HOLDFAST_JWT_HS256_KEY", "HOLDFAST_JWKS_URL"
ISSUER_VARIABLE, AUDIENCE_VARIABLE = "HOLDFAST_JWT_ISSUER", "HOLDFAST_JWT_AUDIENCE"
CLAIM_VARIABLE = "HOLDFAST_TENANT_CLAIM"
PAGES_VARIABLE = "HOLDFAST_DASHBOARD_KEY"
"""The secret of the dashboard's sessions, for services that share them. Default: the key of tokens, or a new one."""
PROOF_VARIABLE = "HOLDFAST_PROOF"

Metrics = tuple[str, int, tuple[str, ...]] | None
"""The separate address and port of /metrics, and the tenants that get gauges of their own."""

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--jwt-hs256-key-file", metavar="FILE", help=f"A file with a shared key. [env, the key itself: {KEY_VARIABLE}]"
    ),
]
Jwks = Annotated[
    str | None,
    typer.Option("--jwks-url", metavar="URL", help=f"Public keys: a file or https://. [env: {JWKS_VARIABLE}]"),
]
Issuer = Annotated[str | None, typer.Option("--jwt-issuer", help=f"The `iss` of tokens. [env: {ISSUER_VARIABLE}]")]
Audience = Annotated[
    str | None, typer.Option("--jwt-audience", help=f"The `aud` of tokens. [env: {AUDIENCE_VARIABLE}]")
]
TenantClaim = Annotated[
    str | None, typer.Option("--tenant-claim", help=f"The claim that names the tenant. [env: {CLAIM_VARIABLE}]")
]

Proxies = Annotated[
    str,
    typer.Option(
        "--trusted-proxies",
        metavar="ADDRESSES",
        help="Proxies whose X-Forwarded-For and X-Forwarded-Proto count: addresses and networks, with commas.",
    ),
]
Proof = Annotated[
    Path | None,
    typer.Option(
        "--proof",
        metavar="DIR",
        help="A directory whose conformance.json and audit.json are shown: what `conformance` and `pipeline audit`"
        f" print with --json. [env: {PROOF_VARIABLE}]",
    ),
]


def serve(
    *,
    store: Store = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8000,
    processes: Annotated[
        int,
        typer.Option("--processes", min=1, max=256, help="The number of processes; a process that dies is restarted."),
    ] = 1,
    key_file: KeyFile = None,
    jwks: Jwks = None,
    issuer: Issuer = None,
    audience: Audience = None,
    tenant_claim: TenantClaim = None,
    rate_limit: Annotated[
        float, typer.Option(min=0, help="Requests a second of each token, in each process; 0: no limit.")
    ] = 0,
    rate_limit_per_tenant: Annotated[
        int, typer.Option(min=0, help="Requests a second of each tenant, in each process; 0: no limit.")
    ] = 1000,
    change_limit_per_tenant: Annotated[
        int, typer.Option(min=0, help="Jobs and leases a second that these requests change; 0: no limit.")
    ] = 10_000,
    bad_token_limit: Annotated[
        float,
        typer.Option(min=0, help="Bad tokens a second from one address, in each process; 0: no limit."),
    ] = 50,
    trusted_proxies: Proxies = "",
    max_connections: Annotated[int, typer.Option(min=1, help="Open connections in each process.")] = 10_000,
    max_connections_per_tenant: Annotated[
        int | None,
        typer.Option(min=0, help="Connections of one tenant that do not wait; 0: no limit. [default: a tenth]"),
    ] = None,
    max_connections_per_address: Annotated[
        int | None, typer.Option(min=0, help="Connections from one address; 0: no limit. [default: a fifth]")
    ] = None,
    max_waits_per_tenant: Annotated[
        int | None,
        typer.Option(min=0, help="Waiting claims and results of one tenant; 0: no limit. [default: a tenth]"),
    ] = None,
    max_streams_per_tenant: Annotated[
        int | None, typer.Option(min=0, help="Event streams of one tenant; 0: no limit. [default: a tenth]")
    ] = None,
    memory: Annotated[
        int,
        typer.Option(
            min=0, metavar="MIB", help="Memory for bodies and answers in flight, in each process; 0: no limit."
        ),
    ] = 256,
    memory_per_tenant: Annotated[
        int, typer.Option(min=0, metavar="MIB", help="The same for one tenant; 0: no limit.")
    ] = 64,
    memory_per_address: Annotated[
        int, typer.Option(min=0, metavar="MIB", help="The same for one address; 0: no limit.")
    ] = 128,
    grace: Annotated[str, typer.Option(metavar="SECONDS", help="How long requests may continue after SIGTERM.")] = "30",
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve /metrics on this port instead, with gauges of the store."),
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(help="The address of --metrics-port. Default: that of --host.")
    ] = None,
    by_tenant: GaugesByTenant = None,
    access_log: Annotated[bool, typer.Option(help="Print a JSON line for each request.")] = True,
    blobs: Blobs = None,
    json_logs: JsonLogs = False,
    log_level: LogLevel = "info",
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help=f"Serve the dashboard too, at /dashboard. [env, its key: {PAGES_VARIABLE}]"),
    ] = False,
    public_url: PublicUrl = None,
    oidc_issuer: OidcIssuer = None,
    oidc_client_id: OidcClient = None,
    oidc_scope: OidcScope = "openid",
    oidc_tenant_claim: OidcTenant = "tid",
    oidc_roles_claim: OidcRoles = "roles",
    oidc_role: OidcRole = None,
    audit_queue: Annotated[
        bool, typer.Option("--audit-queue", help="Keep the audit trail in the store, too; `holdfast trail` prints it.")
    ] = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C. Then finish requests, answer waiting ones, and exit with 0."""
    from holdfast.cli.running import exit_on_term, ignore_signals

    with needing("serve", "service"):
        from holdfast.service.listening import listen
        from holdfast.service.server import check, shared_metrics
        from holdfast.service.settings import MIB, Limits, ServiceSettings, check_proxies

    if metrics_host is not None and metrics_port is None:
        raise InvalidOption("metrics_host", "it needs --metrics-port")
    tenants = gauges_by_tenant(by_tenant, metrics_port)
    metrics = None if metrics_port is None else (metrics_host or host, metrics_port, tenants)
    grace_s = duration("grace", grace)
    settings = ServiceSettings(
        store=store_url(store),
        tokens=token_settings(key_file, jwks, issuer, audience, tenant_claim).check(),
        limits=Limits(
            rate=rate_limit,
            bad_tokens=bad_token_limit,
            connections=max_connections,
            tenant_connections=max_connections_per_tenant,
            address_connections=max_connections_per_address,
            tenant_waits=max_waits_per_tenant,
            tenant_streams=max_streams_per_tenant,
            tenant_rate=rate_limit_per_tenant,
            tenant_changes=change_limit_per_tenant,
            memory=memory * MIB,
            tenant_memory=memory_per_tenant * MIB,
            address_memory=memory_per_address * MIB,
            grace_s=30.0 if grace_s is None else grace_s.total_seconds(),
        ),
        blobs=blobs_url(blobs),
        metrics=metrics is None,
        access_log=access_log,
        audit_queue=audit_queue,
        proxies=check_proxies(trusted_proxies),
    )
    logs: dict[str, Any] = {"json": json_logs, "level": checked_level(log_level).upper()}
    oidc = oidc_settings(
        oidc_issuer, oidc_client_id, public_url, oidc_scope, oidc_tenant_claim, oidc_roles_claim, oidc_role
    )
    if oidc is not None and not dashboard:
        raise InvalidOption("oidc_issuer", "it needs --dashboard")
    pages = mount_of(session_secret(settings.tokens) if dashboard else None, oidc=oidc)
    exit_on_term()
    sock = listen(host, port, settings.limits.send_s)
    if processes == 1:
        _serve(settings, sock, logs, metrics, pages)
        return
    from holdfast.worker.supervisor import supervise

    check(settings, processes)
    with shared_metrics():
        code = supervise(partial(_child, settings, sock, logs, metrics, pages), processes)
    ignore_signals()
    raise typer.Exit(code)


def token_settings(
    key_file: Path | None, jwks: str | None, issuer: str | None, audience: str | None, tenant_claim: str | None
) -> TokenSettings:
    """How tokens are signed and checked, from options and the environment. Raises InvalidOption."""
    from holdfast.service.settings import TokenSettings

    key = os.environ.get(KEY_VARIABLE) or None
    if key_file is not None:
        key = key_file.read_text(encoding="utf-8").strip()
    given: dict[str, Any] = {
        "hs256_key": key,
        "jwks": jwks or os.environ.get(JWKS_VARIABLE),
        "issuer": issuer or os.environ.get(ISSUER_VARIABLE),
        "audience": audience or os.environ.get(AUDIENCE_VARIABLE),
        "tenant_claim": tenant_claim or os.environ.get(CLAIM_VARIABLE),
    }
    return TokenSettings(**{name: value for name, value in given.items() if value})


def address(sock: socket) -> str:
    """The URL of a service that listens on this socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def session_secret(tokens: TokenSettings | None) -> str:
    """What the sessions of the dashboard are signed with: every process of a service has the same."""
    return os.environ.get(PAGES_VARIABLE) or (tokens and tokens.hs256_key) or secrets.token_urlsafe(32)


def mount_of(secret: str | None, **options: Any) -> Mount | None:
    """What mounts the dashboard in a service. None without a secret. Raises InvalidOption if a library is missing."""
    if secret is None:
        return None
    with needing("dashboard", "dashboard"):
        from holdfast.dashboard.server import in_service, session_key

    return partial(in_service, key=session_key(secret), proof=proof_directory(None), **options)


def proof_directory(given: Path | None) -> Path | None:
    """Where the results of checks are, by the option or the environment. Raises InvalidOption if it is no directory."""
    named = given or (Path(os.environ[PROOF_VARIABLE]) if os.environ.get(PROOF_VARIABLE) else None)
    if named is not None and not named.is_dir():
        raise InvalidOption("proof", f"{named} is no directory")
    return named


def _child(
    settings: ServiceSettings, sock: socket, logs: dict[str, Any], metrics: Metrics, pages: Mount | None, number: int
) -> NoReturn:
    """Run as one of several processes. The first one serves the metrics of all."""
    from holdfast.cli import exit_code_of
    from holdfast.cli.running import exit_on_term

    exit_on_term()
    sys.exit(exit_code_of(lambda: _serve(settings, sock, logs, None if number else metrics, pages)))


def _serve(
    settings: ServiceSettings, sock: socket, logs: dict[str, Any], metrics: Metrics, pages: Mount | None
) -> None:
    from holdfast.cli.running import ignore_signals
    from holdfast.cli.session import shown_url
    from holdfast.service.server import run
    from holdfast.telemetry import gauges, logging
    from holdfast.telemetry import http as http_metrics

    logging.configure(**logs)
    logging.configure_lines("holdfast.audit", *(["holdfast.access"] if settings.access_log else []))
    http_metrics.enable()
    if metrics is not None:
        # Gauges name queues, which belong to tenants: keep them off the API's own /metrics, which anyone may read.
        gauges.enable(tenants=metrics[2])
        http_metrics.serve_at(*metrics[:2])
    log = logging.get_logger("holdfast.cli")
    shown = {} if pages is None else {"dashboard": f"{address(sock)}/dashboard"}
    ready = partial(log.info, "serving", url=address(sock), store=shown_url(settings.store), **shown)
    run(settings, sock, ready, pages)
    ignore_signals()
    log.info("stopped")
