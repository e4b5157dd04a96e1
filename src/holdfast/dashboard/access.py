"""Who may look: any user of this machine, the holder of a token, or a person whom an issuer names (see `oidc`)."""

from __future__ import annotations

from typing import Protocol

from starlette.requests import Request

from holdfast.core.errors import StoreError
from holdfast.dashboard.oidc import Issuer, OidcSettings
from holdfast.dashboard.sessions import Sessions
from holdfast.dashboard.view import EVERYTHING, NotShown, Viewer
from holdfast.service.errors import Refusal
from holdfast.service.keys import Keys
from holdfast.service.listening import is_loopback
from holdfast.service.revoked import Revoked
from holdfast.service.settings import Limits, TokenSettings
from holdfast.service.tokens import Caller, Tokens, refused
from holdfast.store import Store

COOKIE, SAFE_COOKIE = "holdfast-session", "__Host-holdfast-session"
"""The second name is for TLS: browsers accept it from this host alone, and send it back over TLS alone."""
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Access(Protocol):
    """Decides who may look."""

    sessions: Sessions

    @property
    def has_login(self) -> bool:
        """Whether there is a login."""
        ...

    @property
    def takes_tokens(self) -> bool:
        """Whether one can log in by pasting a token."""
        ...

    @property
    def issuer(self) -> Issuer | None:
        """The issuer where people can log in, if there is one."""
        ...

    async def open(self) -> None:
        """Get ready, when the store is open."""
        ...

    async def close(self) -> None:
        """Release what was opened."""
        ...

    async def viewer(self, request: Request) -> Viewer | None:
        """The sender of a request. None: they must log in first. Raises NotShown."""
        ...

    async def holds(self, viewer: Viewer) -> bool:
        """Whether a viewer may still look. A stream asks this regularly."""
        ...

    async def end(self, viewer: Viewer) -> None:
        """End the session of a viewer, in every process."""
        ...


class OnLoopback:
    """Any user of this machine, without a login. Requests from elsewhere are refused.

    The header Host must name this machine: a foreign page whose name resolves to this machine (DNS rebinding) sends its
    own name. Other sites, and other programs on this machine, can link here. But their pages cannot open streams, or
    load anything from here as an image or a frame.
    """

    has_login = takes_tokens = False
    issuer = None

    def __init__(self) -> None:
        self.sessions = Sessions()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def viewer(self, request: Request) -> Viewer | None:
        if not is_loopback(_host_of(request.headers.get("host", ""))):
            raise NotShown(403, "This dashboard answers only on localhost.")
        client = request.client
        if client is None or not is_loopback(client.host) or any(name in request.headers for name in _FORWARDED):
            raise NotShown(403, "This dashboard is for this machine alone. Behind a proxy, use tokens.")
        site, place = request.headers.get("sec-fetch-site"), request.headers.get("sec-fetch-dest")
        if site in ("cross-site", "same-site") and place != "document":
            raise NotShown(403, "A page of another site sent this request.")
        return Viewer("local", None, EVERYTHING)

    async def holds(self, viewer: Viewer) -> bool:
        del viewer
        return True

    async def end(self, viewer: Viewer) -> None:
        pass


class ByToken:
    """The holder of a token of the HTTP service, who pastes it once and gets a session. [TENANT-1]

    With an `issuer`, people can log in there too. Without `tokens`, they can log in only there.
    """

    has_login = True

    def __init__(
        self,
        tokens: Tokens | None,
        revoked: Revoked,
        keys: Keys | None = None,
        *,
        key: bytes | None = None,
        issuer: Issuer | None = None,
    ) -> None:
        self.sessions = Sessions(key)
        self.issuer = issuer
        self._tokens = tokens
        self._revoked = revoked
        self._keys = keys

    @classmethod
    def of(
        cls,
        settings: TokenSettings | None,
        store: Store,
        *,
        key: bytes | None = None,
        oidc: OidcSettings | None = None,
    ) -> ByToken:
        """An instance with keys and revocations of its own."""
        given = TokenSettings() if settings is None else settings.check()
        keys = Keys(given.hs256_key, given.jwks)
        tokens = None if settings is None else Tokens(given, keys, Limits())
        return cls(tokens, Revoked(store), keys, key=key, issuer=None if oidc is None else Issuer(oidc))

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    async def open(self) -> None:
        if self._keys is not None:
            await self._keys.open()

    async def close(self) -> None:
        if self._keys is not None:
            await self._keys.close()
            await self._revoked.close()
        if self.issuer is not None:
            await self.issuer.close()

    async def viewer(self, request: Request) -> Viewer | None:
        viewer = self.sessions.viewer(request.cookies.get(cookie_name(request), ""))
        return viewer if viewer is not None and await self.holds(viewer) else None

    async def holds(self, viewer: Viewer) -> bool:
        try:
            await self._revoked.check(_caller(viewer))
        except (Refusal, StoreError):
            return False
        return self.sessions.lasts(viewer)

    async def end(self, viewer: Viewer) -> None:
        await self._revoked.end_session(viewer.tenant or "", viewer.session)

    async def log_in(self, token: str, address: str) -> Viewer:
        """The viewer that a token names. Raises Refusal for a bad token, or after too many bad ones."""
        if self._tokens is None:
            raise refused("this dashboard accepts no tokens")
        caller = await self._tokens.caller(b"Bearer " + token.encode(errors="replace"), address, operators=True)
        await self._revoked.check(caller)
        return Viewer(
            caller.name, caller.tenant or None, caller.scopes, caller.queues,
            caller.token_id, caller.issued_at, caller.expires_at,
        )  # fmt: skip


def _caller(viewer: Viewer) -> Caller:
    """The caller that the token of a session named, to look it up in the list of revoked tokens."""
    return Caller(
        viewer.tenant or "", viewer.scopes, viewer.queues, viewer.name, viewer.expires_at or 0.0, b"",
        viewer.token_id, viewer.issued_at, viewer.session,
    )  # fmt: skip


def cookie_name(request: Request) -> str:
    """The name of the session's cookie on this connection."""
    return SAFE_COOKIE if request.url.scheme == "https" else COOKIE


def _host_of(header: str) -> str:
    """The name in a Host header, without the port."""
    return header.partition("]")[0] if header.startswith("[") else header.partition(":")[0]
