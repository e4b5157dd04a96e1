"""`holdfast token` and `holdfast keys`: tokens and keys for development, and a store's keys for lease proofs."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.audit import NO_STORE, audited
from holdfast.cli.options import Json, Store, Tenant, needing, tenant_name, words
from holdfast.cli.output import emit, note, say, show
from holdfast.cli.serve import Audience, Issuer, KeyFile, TenantClaim, token_settings
from holdfast.cli.session import with_store
from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import duration, instant

if TYPE_CHECKING:
    from types import ModuleType

    from holdfast.service.revoked import Revocation


def register(app: typer.Typer) -> None:
    """Add these commands."""
    tokens = typer.Typer(
        callback=token, invoke_without_command=True, rich_markup_mode=None,
        help="Print a signed token for development; revoke tokens.",
    )  # fmt: skip
    tokens.command("revoke")(revoke)
    tokens.command("restore")(restore)
    tokens.command("revoked")(list_revoked)
    app.add_typer(tokens, name="token")
    keys = typer.Typer(help="Keys that sign tokens and lease proofs.", no_args_is_help=True, rich_markup_mode=None)
    keys.command("new")(new_key)
    keys.command("lease-list")(list_lease_keys)
    keys.command("lease-rotate")(rotate_lease_key)
    keys.command("lease-drop")(drop_lease_key)
    app.add_typer(keys, name="keys")


def token(
    ctx: typer.Context,
    *,
    tenant: Tenant = None,
    scope: Annotated[str, typer.Option(metavar="SCOPE[,SCOPE...]", help="produce, work, read, admin; operator.")] = "",
    queues: Annotated[
        str | None,
        typer.Option(metavar="QUEUE[,QUEUE...]", help="The queues that the token is limited to. Default: all."),
    ] = None,
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="How long the token is valid.")] = "1h",
    subject: Annotated[str, typer.Option(help="The `sub`: the worker id of claims without one.")] = "",
    key_file: KeyFile = None,
    private_key: Annotated[
        Path | None, typer.Option("--private-key", metavar="FILE", help="A private key of `holdfast keys new`.")
    ] = None,
    issuer: Issuer = None,
    audience: Audience = None,
    tenant_claim: TenantClaim = None,
) -> None:
    """Print a signed token for the HTTP service, for development. With a subcommand, revoke tokens.

    The scope `operator` makes a token for all tenants: leave out --tenant. It opens the dashboard, and the routes that
    list workers and tenants and change settings.
    """
    if ctx.invoked_subcommand is not None:
        return
    if not scope:
        raise InvalidOption("scope", "not given; pass for example --scope produce,work,read,admin")
    lifetime = duration("ttl", ttl)
    lifetime_s = 3600.0 if lifetime is None else lifetime.total_seconds()
    scopes, only = words("scope", scope) or [], words("queues", queues)
    facts: dict[str, Any] = {"scopes": scopes, "queues": only, "lifetime_s": lifetime_s, "of": subject}
    with audited("token.sign", NO_STORE, tenant, **facts):
        made = _signing().sign(
            token_settings(key_file, None, issuer, audience, tenant_claim),
            tenant=None if any(one in ("operator", "jobs:operator") for one in scopes) else tenant_name(tenant),
            scopes=scopes,
            lifetime_s=lifetime_s,
            queues=only,
            subject=subject,
            private_key=None if private_key is None else private_key.read_bytes(),
        )
    say(made)


Operators = Annotated[bool, typer.Option("--operator", help="Tokens of operators, which are for all tenants.")]
Jti = Annotated[str | None, typer.Option("--jti", help="The token with this `jti`.")]
Subject = Annotated[str | None, typer.Option("--subject", help="All tokens with this `sub`.")]
IssuedBefore = Annotated[
    str | None,
    typer.Option(
        "--issued-before",
        metavar="TIME",
        help="All tokens issued (`iat`) before this time: `now`, or 2030-01-31T12:00Z.",
    ),
]


def revoke(
    *,
    tenant: Tenant = None,
    operator: Operators = False,
    jti: Jti = None,
    subject: Subject = None,
    issued_before: IssuedBefore = None,
    store: Store = None,
) -> None:
    """Revoke tokens of a tenant, or of operators. Every service on the store refuses them within 10 s."""
    revocation = _revocation(tenant, jti, subject, issued_before, operator=operator)
    with audited("token.revoke", store, revocation.tenant or _OPERATORS, by=revocation.kind, value=_value(revocation)):
        is_new = with_store(store, lambda opened: _revoked().RevokedTokens(opened).add(revocation))
    note(f"revoked: {_described(revocation)}" if is_new else f"already revoked: {_described(revocation)}")


def restore(
    *,
    tenant: Tenant = None,
    operator: Operators = False,
    jti: Jti = None,
    subject: Subject = None,
    issued_before: IssuedBefore = None,
    store: Store = None,
) -> None:
    """Accept revoked tokens again. Give the same option and value that `token revoked` lists."""
    revocation = _revocation(tenant, jti, subject, issued_before, operator=operator)
    with audited("token.restore", store, revocation.tenant or _OPERATORS, by=revocation.kind, value=_value(revocation)):
        if not with_store(store, lambda opened: _revoked().RevokedTokens(opened).remove(revocation)):
            raise InvalidOption("token", f"it is not revoked: {_described(revocation)}; see `holdfast token revoked`")
    note(f"restored: {_described(revocation)}")


def list_revoked(
    *,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only tokens of this tenant.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """List the tokens that are revoked in a store."""
    found: list[Revocation] = with_store(store, lambda opened: _revoked().RevokedTokens(opened).all(tenant))
    if json:
        emit({"revoked": found})
        return
    rows = ([one.tenant or _OPERATORS, one.kind, _value(one)] for one in found)
    show(["tenant", "by", "value"], rows, "No tokens are revoked.")


def _revocation(
    tenant: str | None, jti: str | None, subject: str | None, issued_before: str | None, *, operator: bool
) -> Revocation:
    """What to revoke. Raises InvalidOption unless exactly one option is given."""
    if operator and tenant is not None:
        raise InvalidOption("tenant", "give --tenant or --operator, not both")
    moment = None
    if issued_before is not None:
        moment = time.time() if issued_before == "now" else _instant(issued_before).timestamp()
    options = {"jti": jti, "sub": subject, "issued_before": None if moment is None else str(math.ceil(moment))}
    given = [(kind, value) for kind, value in options.items() if value is not None]
    if len(given) != 1:
        raise InvalidOption("token", "give one of --jti, --subject and --issued-before")
    ((kind, value),) = given
    return _revoked().Revocation("" if operator else tenant_name(tenant), kind, value)


_OPERATORS = "(operators)"


def _instant(text: str) -> datetime:
    found = instant("issued_before", text)
    if found is None:
        raise InvalidOption("issued_before", "not given")
    return found


def _value(revocation: Revocation) -> str:
    if revocation.kind != "issued_before":
        return revocation.value
    return datetime.fromtimestamp(float(revocation.value), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _described(revocation: Revocation) -> str:
    whose = f"tenant {revocation.tenant}" if revocation.tenant else _OPERATORS
    return f"{whose}, {revocation.kind} {_value(revocation)}"


def _revoked() -> ModuleType:
    with needing("token", "service"):
        from holdfast.service import revoked

        return revoked


def new_key(
    *,
    algorithm: Annotated[str, typer.Option(help="HS256 (a shared key), or RS256, ES256, EdDSA (a pair).")] = "HS256",
    private_key: Annotated[
        Path | None, typer.Option("--private-key", metavar="FILE", help="The file for the private key of a pair.")
    ] = None,
    jwks: Annotated[
        Path | None, typer.Option("--jwks", metavar="FILE", help="The key set that gets the public key.")
    ] = None,
) -> None:
    """Make a key. A shared key is printed; a pair is written to two files."""
    signing = _signing()
    if algorithm == "HS256":
        say(signing.new_secret())
        return
    private, public = signing.new_pair(algorithm)
    if private_key is None or jwks is None:
        raise InvalidOption("keys", "a pair is written to files; pass --private-key and --jwks")
    private_key.touch(mode=0o600, exist_ok=False)
    private_key.write_text(json.dumps(private), encoding="utf-8")
    known: dict[str, Any] = json.loads(jwks.read_text(encoding="utf-8")) if jwks.exists() else {"keys": []}
    known["keys"].append(public)
    jwks.write_text(json.dumps(known, indent=2), encoding="utf-8")
    note(f"made key {public['kid']}: the private part is in {private_key}, the public one in {jwks}")


def list_lease_keys(*, store: Store = None, json: Json = False) -> None:
    """List a store's keys for lease proofs by number. The keys themselves are never shown."""
    from holdfast.service.proofs import LeaseKeys

    found = with_store(store, lambda opened: LeaseKeys(opened).all())
    if json:
        emit({"keys": [{"kid": key.kid, "age_s": key.age_ms / 1000} for key in found]})
    else:
        show(["kid", "age"], ([key.kid, f"{key.age_ms // 1000} s"] for key in found), "No lease keys yet.")


def rotate_lease_key(*, store: Store = None) -> None:
    """Add a key for lease proofs, and print its number. Services sign with it after 10 s; older keys still verify."""
    from holdfast.service.proofs import LeaseKeys

    with audited("lease_keys.rotate", store, None):
        say(with_store(store, lambda opened: LeaseKeys(opened).rotate()))


def drop_lease_key(
    kid: Annotated[str, typer.Argument(metavar="KID", help="The number of the key.")], *, store: Store = None
) -> None:
    """Drop a key for lease proofs. Within 5 s the leases that it signed can no longer be finished or extended."""
    from holdfast.service.proofs import LeaseKeys

    with audited("lease_keys.drop", store, None, kid=kid):
        with_store(store, lambda opened: LeaseKeys(opened).drop(kid))
    note(f"dropped lease key {kid}")


def _signing() -> ModuleType:
    with needing("token", "service"):
        from holdfast.service import signing

        return signing
