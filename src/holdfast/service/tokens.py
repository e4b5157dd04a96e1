"""Who calls: a JSON Web Token says the tenant, the scopes and, for some workers, the queues. [TENANT-1]

Checked in this order, and refused at the first that does not hold: size, header (algorithm, critical extensions, key),
signature, `exp`, `nbf`, `iat`, `iss`, `aud`, the tenant, the scopes. Tokens are never logged and never kept: what was
checked is remembered by its digest until the keys change. Of those that are not known, an address that sends too many
bad ones has to wait: whoever guesses, or makes us check signatures, is bounded, and who has a good one goes on.
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
ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")
TENANT_ALIASES = ("tid", "tenant", "tenant_id", "tenantId", "organization_id", "organizationId")
"""Claims that name a tenant elsewhere: if a token has several, they must say the same."""

REMEMBERED = 10_000
_LAST_TIME = 253_402_300_800
"""The end of the year 9999."""
_REQUIRED = ["exp", "iss", "aud"]
_TYPES = ("JWT", "AT+JWT", "APPLICATION/AT+JWT")


class Caller(Struct, frozen=True):
    """Who calls, and what he may."""

    tenant: str
    scopes: frozenset[str]
    queues: frozenset[str] | None
    """The only queues he may touch, none of Holdfast's own among them; None: all of the tenant's."""
    subject: str
    expires_at: float
    digest: bytes
    """Stands for the token, however its signature is spelt, where it must be told from others."""
    token_id: str = ""
    """The `jti`; "" without one."""
    issued_at: float | None = None

    def need(self, scope: str) -> None:
        """Raise a refusal unless the token has that scope."""
        if scope not in self.scopes:
            challenge = f'Bearer realm="holdfast", error="insufficient_scope", scope="{scope}"'
            raise Refusal("scope_missing", f"the token lacks the scope {scope}", {"www-authenticate": challenge})

    def need_queue(self, queue: str) -> None:
        """Raise a refusal if the token is for other queues."""
        if self.queues is not None and queue not in self.queues:
            raise Refusal("queue_forbidden", f"the token is not for the queue {queue!r}")


class Tokens:
    """Checks tokens."""

    def __init__(self, settings: TokenSettings, keys: Keys, limits: Limits) -> None:
        self._settings = settings
        self._keys = keys
        self._most_bytes = limits.token_bytes
        self._bad = BadTokens(limits.bad_tokens)
        self._known: dict[bytes, Caller] = {}
        self._generation = keys.generation

    async def caller(self, authorization: bytes | None, address: str) -> Caller:
        """Who sent this header from there. Raises a refusal with 401, or 429 after too many of those."""
        token = self._bearer(authorization)
        self._keys.renew_in_time()
        digest = hashlib.sha256(token).digest()
        if self._generation != self._keys.generation:
            self._generation = self._keys.generation
            self._known.clear()
        caller = self._known.pop(digest, None)
        if caller is None:
            caller = await self._check_new(token.decode("ascii"), address)
        if len(self._known) >= REMEMBERED:
            # Who has not been here for longest.
            del self._known[next(iter(self._known))]
        self._known[digest] = caller
        if self.left_s(caller) <= 0:
            # It was good: nobody guesses, and there is nothing to check.
            raise _expired()
        return caller

    async def _check_new(self, token: str, address: str) -> Caller:
        self._bad.check(address)
        try:
            return await self._check(token)
        except Refusal:
            self._bad.count(address)
            raise

    def left_s(self, caller: Caller) -> float:
        """How much longer the caller's token holds."""
        return caller.expires_at + self._settings.leeway_s - time.time()

    def _bearer(self, authorization: bytes | None) -> bytes:
        if authorization is None:
            raise Refusal("token_missing", "send `Authorization: Bearer TOKEN`", _challenge(""))
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not token or not token.isascii():
            raise refused("the header is not `Bearer TOKEN`")
        if len(token) > self._most_bytes:
            raise refused("it is too long")
        return token

    async def _check(self, token: str) -> Caller:
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
            # By its kind alone: some messages repeat a part of the token.
            raise refused(_WHY.get(type(error).__name__, "it cannot be read or its signature is wrong")) from None
        _check_times(claims)
        subject, token_id, issued_at = claims.get("sub"), claims.get("jti"), claims.get("iat")
        # A signature can be spelt in many ways, what is signed in one.
        digest = hashlib.sha256(token.rpartition(".")[0].encode()).digest()
        return Caller(
            self._tenant(claims), _scopes(claims), _queues(claims), subject if isinstance(subject, str) else "",
            float(claims["exp"]), digest, token_id if isinstance(token_id, str) else "",
            None if issued_at is None else float(issued_at),
        )  # fmt: skip

    def _tenant(self, claims: dict[str, Any]) -> str:
        name = self._settings.tenant_claim
        tenant = claims.get(name)
        if tenant is None:
            raise refused(f"it has no claim `{name}`")
        try:
            check_tenant(tenant)
        except InvalidName:
            raise refused(f"its claim `{name}` is not the name of a tenant") from None
        if any(claims[alias] != tenant for alias in TENANT_ALIASES if alias in claims):
            raise refused("its claims name different tenants")
        return tenant


_WHY = {
    "InvalidAudienceError": "it is for another audience",
    "InvalidIssuerError": "it is from another issuer",
    "MissingRequiredClaimError": "it lacks one of `exp`, `iss`, `aud`",
    "InvalidIssuedAtError": "its `iat` is not a time",
}


def refused(why: str) -> Refusal:
    """A token that is not accepted."""
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
        raise refused("it has critical extensions, and none are known here")
    if str(header.get("typ", "JWT")).upper() not in _TYPES:
        raise refused("its type is not JWT")
    kid = header.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise refused("its `kid` is not a string")
    return str(algorithm)


def _check_times(claims: dict[str, Any]) -> None:
    """PyJWT takes whatever `int` takes, strings too."""
    for name in ("exp", "nbf", "iat"):
        if name in claims and not (type(claims[name]) in (int, float) and 0 <= claims[name] < _LAST_TIME):
            raise refused(f"its `{name}` is not a time")


def _scopes(claims: dict[str, Any]) -> frozenset[str]:
    scope = claims.get("scope", "")
    if not isinstance(scope, str):
        raise refused("its `scope` is not one string")
    return frozenset(scope.split()) & frozenset(SCOPES)


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
    # All flows and schedules of the tenant are in the reserved ones: who is for some queues has their own routes.
    return frozenset(name for name in names if not name.startswith(RESERVED))
