"""Login by an OpenID Connect issuer: authorization code with PKCE.

A login begins with a state, a nonce and a verifier. The browser keeps them in a signed cookie until it comes back, so
a login that was begun elsewhere cannot end here. The issuer is asked for the token over a connection of our own; the
token is verified like those of the API, by the issuer's keys. Only addresses from the settings and from the issuer's
own document are used, and the way back is always the public URL of the settings.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from hmac import compare_digest
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, cast
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from holdfast.core.errors import InvalidOption
from holdfast.dashboard.view import Viewer
from holdfast.service.errors import Refusal
from holdfast.service.keys import FETCH_S, Keys, fetch, is_safe
from holdfast.service.limits import BadTokens
from holdfast.service.settings import Limits, TokenSettings
from holdfast.service.tokens import OPERATOR_SCOPE, SCOPES, Caller, Tokens, refused
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

BEGIN, RETURN = "/login/oidc", "/login/oidc/return"
PENDING_S = 600
"""How long a login at the issuer may take."""
SESSION_S = 8 * 3600.0
"""A session lasts this long, however short the life of the issuer's token is."""
RENEW_S, RETRY_S = 3600.0, 5.0
"""How often the issuer's document is read again, and how soon after a failure."""
MAX_USED = 10_000
MAX_CODE = 4096
_SHORT = {scope.partition(":")[2]: scope for scope in (*SCOPES, OPERATOR_SCOPE)}


class OidcSettings(Struct, frozen=True, kw_only=True):
    """An issuer, and how its claims become rights."""

    issuer: str
    client_id: str
    public_url: str
    """The address of the dashboard as browsers see it. The issuer sends them back to `{public_url}/login/oidc/return`,
    which must be registered there."""
    client_secret: str | None = None
    """None for a public client."""
    scope: str = "openid"
    tenant_claim: str = "tid"
    """A person without this claim needs the scope `jobs:operator`, and sees all tenants."""
    roles_claim: str = "roles"
    """A list of names, or one string of them. A dot names a claim inside a claim: `realm_access.roles`."""
    roles: Mapping[str, str] = {}
    """The scopes of a role, such as `{"oncall": "read,produce,admin"}`. A role named like a scope has that scope."""

    def check(self) -> OidcSettings:
        """Return the settings if a login can work with them. Raises InvalidOption."""
        if not is_safe(self.issuer):
            raise InvalidOption("oidc_issuer", "give the issuer's https:// URL")
        parts = urlsplit(self.public_url)
        if not is_safe(self.public_url) or parts.query or parts.fragment or parts.username is not None:
            raise InvalidOption("public_url", "give the https:// address of the dashboard as browsers see it")
        if not self.client_id or "openid" not in self.scope.split():
            raise InvalidOption("oidc_client_id", "a login needs a client id, and the scope openid")
        for role, names in self.roles.items():
            for name in names.split(","):
                if _SHORT.get(name, name) not in _SHORT.values():
                    raise InvalidOption("oidc_role", f"{role}={names}: {name!r} is not one of {', '.join(_SHORT)}")
        return self


class Pending(Struct, frozen=True):
    """A login that has begun."""

    state: str
    nonce: str
    verifier: str
    next: str
    ends_at: float


class _Discovery(Struct):
    """The discovery document of an issuer."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _TokenAnswer(Struct):
    id_token: str


class Issuer:
    """Sends people to an issuer, and logs them in when they come back."""

    def __init__(self, settings: OidcSettings, limits: Limits | None = None) -> None:
        self.settings = settings.check()
        self.host = urlsplit(settings.issuer).hostname or ""
        self._limits = limits or Limits()
        self._bad = BadTokens(self._limits.bad_tokens)
        self._lock = asyncio.Lock()
        self._document: _Discovery | None = None
        self._read_at = -RENEW_S
        self._keys: Keys | None = None
        self._tokens: Tokens | None = None
        self._used: dict[str, None] = {}

    @property
    def is_secure(self) -> bool:
        """Whether browsers come back over TLS."""
        return urlsplit(self.settings.public_url).scheme == "https"

    @property
    def back(self) -> str:
        """Where the issuer sends browsers back to."""
        return f"{self.settings.public_url.rstrip('/')}{RETURN}"

    async def close(self) -> None:
        """End a read of the keys that is in progress."""
        if self._keys is not None:
            await self._keys.close()

    async def begin(self, following: str) -> tuple[str, Pending]:
        """A new login: where to send the browser, and what it must keep until it comes back. Raises Refusal."""
        document, _ = await self._discover()
        pending = Pending(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), following,
            time.time() + PENDING_S,
        )  # fmt: skip
        digest = hashlib.sha256(pending.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.back,
            "scope": self.settings.scope,
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        to = document.authorization_endpoint
        return f"{to}{'&' if urlsplit(to).query else '?'}{urlencode(asked)}", pending

    async def finish(self, pending: Pending | None, query: Mapping[str, str], address: str) -> tuple[Viewer, str]:
        """The person who came back from the issuer, and the page they asked for. Works once a login. Raises Refusal."""
        self._bad.check(address)
        try:
            if pending is None:
                raise _refusal(f"This login did not begin in this browser at {self.settings.public_url}.")
            return await self._finish(pending, query), pending.next
        except Refusal as refusal:
            _log.warning("a login was refused", issuer=self.host, error=refusal.detail)
            self._bad.count(address)
            raise

    async def _finish(self, pending: Pending, query: Mapping[str, str]) -> Viewer:
        if not compare_digest(query.get("state", "").encode(), pending.state.encode()):
            raise _refusal("This is the answer to another login.")
        if pending.ends_at < time.time() or pending.state in self._used:
            raise _refusal("This login has expired or was already used.")
        if len(self._used) >= MAX_USED:
            del self._used[next(iter(self._used))]
        self._used[pending.state] = None
        # Some issuers name themselves in their answers: refuse an answer of another one. (RFC 9207)
        if query.get("iss", self.settings.issuer) != self.settings.issuer:
            raise _refusal("This answer is from another issuer.")
        if "error" in query:
            declined = query["error"] == "access_denied"
            raise _refusal("The login was declined." if declined else "The issuer could not log you in.")
        code = query.get("code", "")
        if not 0 < len(code) <= MAX_CODE:
            raise _refusal("The issuer's answer has no code.")
        document, tokens = await self._discover()
        token = await self._exchange(document, code, pending.verifier)
        if self._keys is not None:
            self._keys.renew_in_time()
        if len(token) > self._limits.token_bytes:
            raise refused("it is too long")
        claims = await tokens.claims(token)
        self._check(claims, pending.nonce)
        return self._viewer(self._caller(tokens, token, claims))

    def _check(self, claims: Mapping[str, Any], nonce: str) -> None:
        """The checks of an id token beyond those of any token."""
        given, audience = claims.get("nonce"), claims["aud"]
        if not isinstance(given, str) or not compare_digest(given.encode(), nonce.encode()):
            raise refused("it was made for another login")
        party = claims.get("azp")
        if (isinstance(audience, list) and len(cast("list[Any]", audience)) > 1 and party is None) or (
            party is not None and party != self.settings.client_id
        ):
            raise refused("it was made for another client")
        if not isinstance(claims.get("sub"), str) or not claims["sub"] or "iat" not in claims:
            raise refused("it lacks `sub` or `iat`")

    def _caller(self, tokens: Tokens, token: str, claims: Mapping[str, Any]) -> Caller:
        """The rights of verified claims: the scopes of the roles, for the tenant that the claims name. [TENANT-1]"""
        settings = self.settings
        scopes = self._scopes(claim_of(claims, settings.roles_claim))
        if not scopes:
            raise _refusal(f"Your account has no role for this dashboard: its claim {settings.roles_claim} names none.")
        known = {name: claims[name] for name in ("sub", "iat", "exp", "queues") if name in claims}
        tenant = claim_of(claims, settings.tenant_claim)
        if tenant is not None:
            known[settings.tenant_claim] = tenant
        return tokens.caller_of(token, {**known, "scope": " ".join(sorted(scopes))})

    def _scopes(self, value: Any) -> set[str]:
        names = value.split() if isinstance(value, str) else cast("list[Any]", value) if isinstance(value, list) else []
        scopes: set[str] = set()
        for name in names:
            if isinstance(name, str):
                scopes |= {_SHORT.get(one, one) for one in self.settings.roles.get(name, "").split(",") if one}
                scopes |= {name} & {*_SHORT.values()}
        return scopes

    @staticmethod
    def _viewer(caller: Caller) -> Viewer:
        return Viewer(
            caller.subject, caller.tenant or None, caller.scopes, caller.queues, "", caller.issued_at,
            time.time() + SESSION_S,
        )  # fmt: skip

    # Requests to the issuer --------------------------------------------------------------------------------

    async def _exchange(self, document: _Discovery, code: str, verifier: str) -> str:
        """The id token for a code."""
        settings = self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.back,
            "client_id": settings.client_id,
            "code_verifier": verifier,
        }
        headers = {"accept": "application/json"}
        if settings.client_secret is not None:
            if "client_secret_basic" in document.token_endpoint_auth_methods_supported:
                pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
                headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = settings.client_secret
        try:
            text = await _fetched(document.token_endpoint, urlencode(form).encode(), headers)
            return msgspec.json.decode(text, type=_TokenAnswer).id_token
        except HTTPError as error:
            _log.warning("the issuer refused a code", issuer=self.host, status=error.code)
            if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise _unreachable() from None
            raise _refusal("The issuer did not accept the code of this login.") from None
        except _FAILURES as error:
            _log.warning("the issuer gave no token", issuer=self.host, error=type(error).__name__)
            raise _unreachable() from None

    async def _discover(self) -> tuple[_Discovery, Tokens]:
        """The issuer's document, and what verifies its tokens. If it cannot be read again, the old one stays in use."""
        async with self._lock:
            if time.monotonic() - self._read_at > RENEW_S:
                try:
                    self._take(await _fetched(f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"))
                    self._read_at = time.monotonic()
                except _FAILURES as error:
                    self._read_at = time.monotonic() - RENEW_S + RETRY_S
                    _log.warning("the issuer's document was not read", issuer=self.host, error=str(error))
            if self._document is None or self._tokens is None:
                raise _unreachable()
            return self._document, self._tokens

    def _take(self, text: bytes) -> None:
        found = msgspec.json.decode(text, type=_Discovery)
        if found.issuer != self.settings.issuer:
            raise ValueError(f"it is of another issuer: {found.issuer[:200]!r}")
        for address in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            if not is_safe(address):
                raise ValueError(f"it names an address without TLS: {address[:200]!r}")
        if self._document is None or self._document.jwks_uri != found.jwks_uri:
            settings = TokenSettings(
                jwks=found.jwks_uri, issuer=found.issuer, audience=self.settings.client_id,
                tenant_claim=self.settings.tenant_claim,
            )  # fmt: skip
            self._keys = Keys(None, found.jwks_uri)
            self._tokens = Tokens(settings, self._keys, self._limits)
        self._document = found


_FAILURES = (OSError, ValueError, HTTPException, msgspec.MsgspecError)


async def _fetched(url: str, form: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    async with asyncio.timeout(2 * FETCH_S):
        return await asyncio.to_thread(fetch, url, form, headers)


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots. None: it is missing."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = cast("dict[str, Any]", found).get(part) if isinstance(found, Mapping) else None
    return found


def _refusal(why: str) -> Refusal:
    return Refusal("token_invalid", why)


def _unreachable() -> Refusal:
    return Refusal("stopping", "The issuer cannot be reached. Try again in a moment.")
