"""Sessions without a memory: a cookie holds who logged in and what they may, signed, until it ends.

Nothing is kept in the process but the sessions that were ended early, so several processes can share a key, and a
restart ends no session. The token itself is never in a cookie. Every login makes a new session, so that no session
can be prepared for another person.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidOption
from holdfast.dashboard.view import Viewer

LIFETIME_S = 12 * 3600.0
"""A session ends with its token, but at the latest after this."""
MAX_ENDED = 10_000
MIN_KEY = 32


class Sessions:
    """Makes and reads session cookies, and the tokens of forms."""

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) < MIN_KEY:
            raise InvalidOption("key", f"the key of the dashboard's sessions needs at least {MIN_KEY} bytes")
        self._key = key or secrets.token_bytes(MIN_KEY)
        self._ended: dict[str, None] = {}

    def start(self, viewer: Viewer) -> tuple[str, float]:
        """A new session: the value of its cookie, and how many seconds it lasts."""
        now = time.time()
        ends = min(now + LIFETIME_S, now + LIFETIME_S if viewer.expires_at is None else viewer.expires_at)
        viewer = replace(viewer, session=secrets.token_urlsafe(16), expires_at=ends)
        return self.sign("session", msgspec.json.encode(viewer)), max(0.0, ends - now)

    def viewer(self, cookie: str) -> Viewer | None:
        """Whose session this is; None if it is not one of ours, or over."""
        data = self.verified("session", cookie)
        if data is None:
            return None
        viewer = msgspec.json.decode(data, type=Viewer)
        return viewer if self.lasts(viewer) else None

    def lasts(self, viewer: Viewer) -> bool:
        """Whether a session has neither expired nor been ended here."""
        return viewer.session not in self._ended and (viewer.expires_at or 0.0) > time.time()

    def end(self, viewer: Viewer) -> None:
        """End a session. Other processes accept a stolen copy of its cookie until it expires."""
        if len(self._ended) >= MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[viewer.session] = None

    def form_token(self, viewer: Viewer | None) -> str:
        """What a form of this session must send. Another site can neither read nor guess it."""
        return self._digest("form", (viewer.session if viewer else "").encode())

    def sign(self, purpose: str, data: bytes) -> str:
        """Text for a cookie. A signature for one purpose is none for another."""
        # Padding would make a browser quote the cookie.
        return f"{base64.urlsafe_b64encode(data).decode().rstrip('=')}.{self._digest(purpose, data)}"

    def verified(self, purpose: str, text: str) -> bytes | None:
        """What was signed; None if it was not signed here, for this."""
        encoded, _, digest = text.rpartition(".")
        try:
            data = base64.b64decode(f"{encoded}{'=' * (-len(encoded) % 4)}".encode(), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        return data if hmac.compare_digest(digest.encode(), self._digest(purpose, data).encode()) else None

    def _digest(self, purpose: str, data: bytes) -> str:
        return hmac.new(self._key, f"{purpose}:".encode() + data, hashlib.sha256).hexdigest()
