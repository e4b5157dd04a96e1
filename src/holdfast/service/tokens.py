"""Verifies JSON Web Tokens. A token names the tenant, the scopes and, optionally, the queues of its caller. [TENANT-1]

The checks, in this order: size, header (algorithm, critical extensions, key), signature, `exp`, `nbf`, `iat`, `iss`,
`aud`, tenant, scopes. Tokens are never logged and never stored: a verified token is remembered by its digest until the
keys change. An address that sends too many invalid tokens must wait before a new one is checked. That bounds guesses
and the work for signatures, while remembered tokens keep working.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import jwt
from jwt.exceptions import ExpiredSignatureError, ImmatureSignatureError, PyJWTError
from msgspec import Struct

from holdfast.core.errors import InvalidName
from holdfast.core.names import RESERVED, check_queue, check_tenant
from holdfast.service.errors import Refusal
from holdfast.service.keys import Keys
from holdfast.service.limits import BadTokens
from holdfast.service.settings import Limits, TokenSettings

PRODUCE, WORK, READ, ADMIN = "jobs:produce", "jobs:work", "jobs:read", "jobs:admin"
SCOPES = (PRODUCE, WORK, READ, ADMIN)
OPERATOR_SCOPE = "jobs:operator"
"""Of a token without a tenant: it is for all tenants, on the dashboard and on the routes for operators."""
ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")
TENANT_ALIASES = ("tid", "tenant", "tenant_id", "tenantId", "organization_id", "organizationId")
"""Common claims for the tenant. If a token has several of them, they must agree."""

MAX_REMEMBERED = 10_000
_LAST_TIME = 253_402_300_800
"""The end of the year 9999."""
_REQUIRED = ["exp", "iss", "aud"]
_TYPES = ("JWT", "AT+JWT", "APPLICATION/AT+JWT")


class Caller(Struct, frozen=True):
    """The caller of a request, with its rights."""

    tenant: str
    """"" for an operator's token: it is for all tenants."""
    scopes: frozenset[str]
    queues: frozenset[str] | None
    """The queues that it may use, without Holdfast's own; None: all queues of the tenant."""
    subject: str
    expires_at: float
    digest: bytes
    """Identifies the token, whatever the spelling of its signature."""
    token_id: str = ""
    """The `jti`; "" without one."""
    issued_at: float | None = None
    session: str = ""
    """The session of the dashboard that the token began; "" for a request to the API."""

    @property
    def name(self) -> str:
        """Who it is, for people."""
        return self.subject or self.token_id or "a token"

    def need(self, scope: str) -> None:
        """Raise a refusal unless the token has the scope."""
        if scope not in self.scopes:
            challenge = f'Bearer realm="holdfast", error="insufficient_scope", scope="{scope}"'
            raise Refusal("scope_missing", f"the token needs the scope {scope}", {"www-authenticate": challenge})

    def need_queue(self, queue: str) -> None:
        """Raise a refusal unless the token is for the queue."""
        if self.queues is not None and queue not in self.queues:
            raise Refusal("queue_forbidden", f"the token is not for the queue {queue!r}")


class Tokens:
    """Verifies tokens."""

    def __init__(self, settings: TokenSettings, keys: Keys, limits: Limits) -> None:
        self._settings = settings
        self._keys = keys
        self._max_bytes = limits.token_bytes
        self._bad = BadTokens(limits.bad_tokens)
        self._known: dict[bytes, Caller] = {}
        self._generation = keys.generation

    async def caller(self, authorization: bytes | None, address: str, *, operators: bool = False) -> Caller:
        """The caller that an Authorization header names. Raises a refusal: 401, or 429 after too many of those.

        A token of an operator names no tenant, and is refused unless `operators` is true. [TENANT-1]
        """
        token = self._bearer(authorization)
        self._keys.renew_in_time()
        digest = hashlib.sha256(token).digest()
        if self._generation != self._keys.generation:
            self._generation = self._keys.generation
            self._known.clear()
        caller = self._known.pop(digest, None)
        if caller is None:
            caller = await self._check_new(token.decode("ascii"), address)
        if len(self._known) >= MAX_REMEMBERED:
            # The least recently used.
            del self._known[next(iter(self._known))]
        self._known[digest] = caller
        if self.left_s(caller) <= 0:
            # The token was valid once, so this is not a guess and does not count as one.
            raise _expired()
        if not caller.tenant and not operators:
            raise self._without_tenant()
        return caller

    async def _check_new(self, token: str, address: str) -> Caller:
        self._bad.check(address)
        try:
            return await self._check(token)
        except Refusal:
            self._bad.count(address)
            raise

    def left_s(self, caller: Caller) -> float:
        """The remaining lifetime of the caller's token."""
        return caller.expires_at + self._settings.leeway_s - time.time()

    def _bearer(self, authorization: bytes | None) -> bytes:
        if authorization is None:
            raise Refusal("token_missing", "send `Authorization: Bearer TOKEN`", _challenge(""))
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not token or not token.isascii():
            raise refused("the header is not `Bearer TOKEN`")
        if len(token) > self._max_bytes:
            raise refused("it is too long")
        return token

    async def _check(self, token: str) -> Caller:
        return self.caller_of(token, await self.claims(token))

    async def claims(self, token: str) -> dict[str, Any]:
        """The claims of a token, verified. Raises a refusal."""
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
            algorithm = _check_header(header)
            key = await self._keys.find(algorithm, header.get("kid"))
            if key is None:
                raise refused("no key of ours fits its algorithm and `kid`")
            claims = jwt.decode(
                token,
                key.material,
                algorithms=[key.algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": _REQUIRED},
            )
        except ExpiredSignatureError:
            raise _expired() from None
        except ImmatureSignatureError:
            raise refused("it is not valid yet") from None
        except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            # Not the error's own text, which may contain a part of the token.
            raise refused(_WHY.get(type(error).__name__, "it is malformed or its signature is wrong")) from None
        _check_times(claims)
        return claims

    def caller_of(self, token: str, claims: dict[str, Any]) -> Caller:
        """The caller that verified claims name. Raises a refusal. [TENANT-1]"""
        subject, token_id, issued_at = claims.get("sub"), claims.get("jti"), claims.get("iat")
        # A signature has several spellings, the signed part has one.
        digest = hashlib.sha256(token.rpartition(".")[0].encode()).digest()
        tenant = self._tenant(claims)
        scopes = _scopes(claims) - ({OPERATOR_SCOPE} if tenant else set())
        return Caller(
            tenant, scopes, _queues(claims), subject if isinstance(subject, str) else "",
            float(claims["exp"]), digest, token_id if isinstance(token_id, str) else "",
            None if issued_at is None else float(issued_at),
        )  # fmt: skip

    def _tenant(self, claims: dict[str, Any]) -> str:
        name = self._settings.tenant_claim
        tenant = claims.get(name)
        if tenant is None:
            if OPERATOR_SCOPE not in _scopes(claims) or any(alias in claims for alias in TENANT_ALIASES):
                raise self._without_tenant()
            return ""
        try:
            check_tenant(tenant)
        except InvalidName:
            raise refused(f"its claim `{name}` is not the name of a tenant") from None
        if any(claims[alias] != tenant for alias in TENANT_ALIASES if alias in claims):
            raise refused("its claims name different tenants")
        return tenant

    def _without_tenant(self) -> Refusal:
        return refused(f"it has no claim `{self._settings.tenant_claim}`")


_WHY = {
    "InvalidAudienceError": "it is for another audience",
    "InvalidIssuerError": "it is from another issuer",
    "MissingRequiredClaimError": "it lacks one of `exp`, `iss`, `aud`",
    "InvalidIssuedAtError": "its `iat` is not a time",
}


def refused(why: str) -> Refusal:
    """The refusal of an invalid token."""
    return Refusal("token_invalid", f"the token is not accepted: {why}", _challenge(why))


def _expired() -> Refusal:
    return Refusal("token_expired", "the token has expired", _challenge("the token has expired"))


def _challenge(why: str) -> dict[str, str]:
    error = f', error="invalid_token", error_description="{why}"' if why else ""
    return {"www-authenticate": f'Bearer realm="holdfast"{error}'}


def _check_header(header: dict[str, Any]) -> str:
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise refused("its algorithm is none of HS256, RS256, ES256, EdDSA")
    if "crit" in header or "b64" in header:
        raise refused("it has critical extensions, which are not supported")
    if str(header.get("typ", "JWT")).upper() not in _TYPES:
        raise refused("its type is not JWT")
    kid = header.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise refused("its `kid` is not a string")
    return str(algorithm)


def _check_times(claims: dict[str, Any]) -> None:
    """Check that times are numbers: PyJWT accepts strings too."""
    for name in ("exp", "nbf", "iat"):
        if name in claims and not (type(claims[name]) in (int, float) and 0 <= claims[name] < _LAST_TIME):
            raise refused(f"its `{name}` is not a time")


def _scopes(claims: dict[str, Any]) -> frozenset[str]:
    scope = claims.get("scope", "")
    if not isinstance(scope, str):
        raise refused("its `scope` is not one string")
    return frozenset(scope.split()) & frozenset((*SCOPES, OPERATOR_SCOPE))


def _queues(claims: dict[str, Any]) -> frozenset[str] | None:
    queues = claims.get("queues")
    if queues is None:
        return None
    try:
        if not isinstance(queues, list) or not queues:
            raise refused("its `queues` are not a list of names")
        names = {check_queue(queue) for queue in queues}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    except InvalidName:
        raise refused("its `queues` are not names of queues") from None
    # The reserved queues hold all flows and schedules of the tenant. These have routes of their own.
    return frozenset(name for name in names if not name.startswith(RESERVED))
