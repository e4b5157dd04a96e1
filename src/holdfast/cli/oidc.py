"""Options for logging in to the dashboard at an OpenID Connect issuer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import needing
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from holdfast.dashboard.oidc import OidcSettings

SECRET_VARIABLE = "HOLDFAST_OIDC_CLIENT_SECRET"  # noqa: S105 - the name of a variable

OidcIssuer = Annotated[
    str | None,
    typer.Option(
        "--oidc-issuer", metavar="URL", help="Log in to the dashboard at this OpenID Connect issuer, by code and PKCE."
    ),
]
OidcClient = Annotated[
    str | None,
    typer.Option(
        "--oidc-client-id", metavar="ID", help=f"The dashboard's client id there. [env, its secret: {SECRET_VARIABLE}]"
    ),
]
PublicUrl = Annotated[
    str | None,
    typer.Option(
        "--public-url", metavar="URL", help="The dashboard's address in a browser: the issuer leads back there."
    ),
]
OidcScope = Annotated[str, typer.Option("--oidc-scope", help="The scopes to ask the issuer for.")]
OidcTenant = Annotated[str, typer.Option("--oidc-tenant-claim", help="The claim that names a person's tenant.")]
OidcRoles = Annotated[
    str, typer.Option("--oidc-roles-claim", help="The claim with a person's roles; a.b leads into a.")
]
OidcRole = Annotated[
    list[str] | None,
    typer.Option(
        "--oidc-role", metavar="ROLE=SCOPES", help="What a role may do, such as ops=operator,read,admin. Repeatable."
    ),
]


def oidc_settings(
    issuer: str | None,
    client_id: str | None,
    public_url: str | None,
    scope: str,
    tenant_claim: str,
    roles_claim: str,
    role: list[str] | None,
) -> OidcSettings | None:
    """The issuer to log in at, None without one. Raises InvalidOption."""
    if issuer is None:
        if client_id is not None or public_url is not None or role:
            raise InvalidOption("oidc_issuer", "the other options of a login at an issuer need --oidc-issuer")
        return None
    if client_id is None or public_url is None:
        raise InvalidOption("oidc_issuer", "it needs --oidc-client-id and --public-url")
    with needing("dashboard", "dashboard"):
        from holdfast.dashboard.oidc import OidcSettings

    roles: dict[str, str] = {}
    for one in role or ():
        name, _, scopes = one.partition("=")
        if not name or not scopes:
            raise InvalidOption("oidc_role", f"{one!r} is not ROLE=SCOPES, such as ops=operator,read,admin")
        roles[name] = scopes
    return OidcSettings(
        issuer=issuer,
        client_id=client_id,
        public_url=public_url,
        client_secret=os.environ.get(SECRET_VARIABLE) or None,
        scope=scope,
        tenant_claim=tenant_claim,
        roles_claim=roles_claim,
        roles=roles,
    ).check()
