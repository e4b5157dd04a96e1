"""Makes tokens and keys, for development and for deployments without an identity provider."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from msgspec import json

from holdfast.core.errors import InvalidOption
from holdfast.core.names import check_queue, check_tenant
from holdfast.service.keys import PRIVATE_PARTS
from holdfast.service.settings import TokenSettings
from holdfast.service.tokens import OPERATOR_SCOPE, SCOPES

Algorithm = Literal["HS256", "RS256", "ES256", "EdDSA"]


def sign(
    settings: TokenSettings,
    *,
    tenant: str | None,
    scopes: Sequence[str],
    lifetime_s: float = 3600.0,
    queues: Sequence[str] | None = None,
    subject: str = "",
    private_key: bytes | None = None,
) -> str:
    """Make a token, signed with the shared key or a private key (a JWK). Raises InvalidOption or InvalidName.

    Without a tenant it is an operator's, and needs the scope `operator`.
    """
    if (tenant is None) != any(_scope(scope) == OPERATOR_SCOPE for scope in scopes):
        raise InvalidOption("scope", "a token of an operator has the scope `operator` and no tenant")
    claims: dict[str, Any] = {
        "iss": settings.issuer,
        "aud": settings.audience,
        **({} if tenant is None else {settings.tenant_claim: check_tenant(tenant)}),
        "scope": " ".join(map(_scope, scopes)),
        "iat": int(time.time()),
        "exp": int(time.time() + lifetime_s),
        "jti": uuid.uuid4().hex,
    }
    if queues is not None:
        claims["queues"] = [check_queue(queue) for queue in queues]
    if subject:
        claims["sub"] = subject
    if private_key is not None:
        key = _private(private_key)
        kid = key.key_id
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(claims, key.key, algorithm=key.algorithm_name, headers=headers)
    if settings.hs256_key is None:
        raise InvalidOption("key", "set HOLDFAST_JWT_HS256_KEY, or pass --private-key with a private key")
    return jwt.encode(claims, settings.check().hs256_key or "", algorithm="HS256")


def new_secret() -> str:
    """A key for HS256: 32 random bytes as text."""
    return secrets.token_urlsafe(32)


def new_pair(algorithm: Algorithm) -> tuple[dict[str, Any], dict[str, Any]]:
    """A private key and its public key, as JWKs. Raises InvalidOption."""
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    if algorithm == "RS256":
        private = RSAAlgorithm.to_jwk(rsa.generate_private_key(public_exponent=65537, key_size=2048), as_dict=True)
    elif algorithm == "ES256":
        private = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True)
    elif algorithm == "EdDSA":
        private = OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate(), as_dict=True)
    else:
        raise InvalidOption("algorithm", f"{algorithm!r} has no key pair; use RS256, ES256 or EdDSA")
    names = {"kid": secrets.token_hex(8), "alg": algorithm, "use": "sig"}
    public = {name: value for name, value in private.items() if name not in PRIVATE_PARTS}
    return {**private, **names}, {**public, **names}


def _private(text: bytes) -> jwt.PyJWK:
    try:
        return jwt.PyJWK(json.decode(text, type=dict[str, Any]))
    except Exception as error:
        raise InvalidOption("key", "this is not a private key as `holdfast keys new` writes it") from error


def _scope(scope: str) -> str:
    full = scope if ":" in scope else f"jobs:{scope}"
    known = (*SCOPES, OPERATOR_SCOPE)
    if full not in known:
        raise InvalidOption("scope", f"{scope!r} is none of {', '.join(name.partition(':')[2] for name in known)}")
    return full
