"""`holdfast token` and `holdfast keys`: tokens and keys for development, and the keys of lease proofs in a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import Json, Store, Tenant, duration, needing_service, tenant_name, words
from holdfast.cli.output import emit, note, show
from holdfast.cli.serve import Audience, Issuer, KeyFile, TenantClaim, token_settings
from holdfast.cli.session import with_store
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from types import ModuleType


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(token)
    keys = typer.Typer(
        help="Keys that tokens and lease proofs are signed with.", no_args_is_help=True, rich_markup_mode=None
    )
    keys.command("new")(new_key)
    keys.command("lease-list")(list_lease_keys)
    keys.command("lease-rotate")(rotate_lease_key)
    keys.command("lease-drop")(drop_lease_key)
    app.add_typer(keys, name="keys")


def token(
    *,
    tenant: Tenant = None,
    scope: Annotated[str, typer.Option(metavar="SCOPE[,SCOPE...]", help="produce, work, read, admin.")],
    queues: Annotated[
        str | None, typer.Option(metavar="QUEUE[,QUEUE...]", help="The only queues it is for; if not given, all.")
    ] = None,
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="How long it holds.")] = "1h",
    subject: Annotated[str, typer.Option(help="Who it is for: the worker id where a claim names none.")] = "",
    key_file: KeyFile = None,
    private_key: Annotated[
        Path | None, typer.Option("--private-key", metavar="FILE", help="A private key of `holdfast keys new`.")
    ] = None,
    issuer: Issuer = None,
    audience: Audience = None,
    tenant_claim: TenantClaim = None,
) -> None:
    """Print a signed token for the HTTP service, for development."""
    lifetime = duration("ttl", ttl)
    made = _signing().sign(
        token_settings(key_file, None, issuer, audience, tenant_claim),
        tenant=tenant_name(tenant),
        scopes=words("scope", scope) or [],
        lifetime_s=3600.0 if lifetime is None else lifetime.total_seconds(),
        queues=words("queues", queues),
        subject=subject,
        private_key=None if private_key is None else private_key.read_bytes(),
    )
    print(made)


def new_key(
    *,
    algorithm: Annotated[str, typer.Option(help="HS256 (a shared key), or RS256, ES256, EdDSA (a pair).")] = "HS256",
    private_key: Annotated[
        Path | None, typer.Option("--private-key", metavar="FILE", help="Where the private key of a pair goes.")
    ] = None,
    jwks: Annotated[
        Path | None, typer.Option("--jwks", metavar="FILE", help="The set to which the public key is added.")
    ] = None,
) -> None:
    """Make a key. A shared one is printed; a pair goes into two files."""
    signing = _signing()
    if algorithm == "HS256":
        print(signing.new_secret())
        return
    private, public = signing.new_pair(algorithm)
    if private_key is None or jwks is None:
        raise InvalidOption("keys", "a pair goes into files: pass --private-key and --jwks")
    private_key.touch(mode=0o600, exist_ok=False)
    private_key.write_text(json.dumps(private), encoding="utf-8")
    known: dict[str, Any] = json.loads(jwks.read_text(encoding="utf-8")) if jwks.exists() else {"keys": []}
    known["keys"].append(public)
    jwks.write_text(json.dumps(known, indent=2), encoding="utf-8")
    note(f"made key {public['kid']}: the private part is in {private_key}, the public one in {jwks}")


def list_lease_keys(*, store: Store = None, json: Json = False) -> None:
    """List the keys of lease proofs in a store, by number; never what they are."""
    from holdfast.service.proofs import LeaseKeys

    found = with_store(store, lambda opened: LeaseKeys(opened).all())
    if json:
        emit({"keys": [{"kid": key.kid, "age_s": key.age_ms / 1000} for key in found]})
    else:
        show(["kid", "age"], ([key.kid, f"{key.age_ms // 1000} s"] for key in found), "No lease keys yet.")


def rotate_lease_key(*, store: Store = None) -> None:
    """Add a key for lease proofs, and print its number. Services sign with it after 10 s; older keys still verify."""
    from holdfast.service.proofs import LeaseKeys

    print(with_store(store, lambda opened: LeaseKeys(opened).rotate()))


def drop_lease_key(
    kid: Annotated[str, typer.Argument(metavar="KID", help="The number of the key.")], *, store: Store = None
) -> None:
    """Drop a key of lease proofs. Within 5 s the leases that it signed can no longer be finished or extended."""
    from holdfast.service.proofs import LeaseKeys

    with_store(store, lambda opened: LeaseKeys(opened).drop(kid))
    note(f"dropped lease key {kid}")


def _signing() -> ModuleType:
    with needing_service("token"):
        from holdfast.service import signing

        return signing
