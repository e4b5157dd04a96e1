"""Sessions in signed cookies: a cookie holds who logged in, what they may do, and until when.

Only sessions that were ended early are kept, with the revoked tokens (see `service.revoked`). So several processes can
share a key, and a restart ends no session. The token itself is never in a cookie. Every login makes a new session, so
that no session can be prepared for another person.
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
from holdfast.service.revoked import SESSION_S

MIN_KEY = 32


class Sessions:
    """Makes and reads session cookies, and the tokens of forms."""

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) < MIN_KEY:
            raise InvalidOption("key", f"the key of the dashboard's sessions needs at least {MIN_KEY} bytes")
        self._key = key or secrets.token_bytes(MIN_KEY)

    def start(self, viewer: Viewer) -> tuple[str, float]:
        """A new session: the value of its cookie, and how many seconds it lasts."""
        now = time.time()
        ends = min(now + SESSION_S, now + SESSION_S if viewer.expires_at is None else viewer.expires_at)
        viewer = replace(viewer, session=secrets.token_urlsafe(16), expires_at=ends)
        return self.sign("session", msgspec.json.encode(viewer)), max(0.0, ends - now)

    def viewer(self, cookie: str) -> Viewer | None:
        """The viewer of a session. None if the session has expired, or the cookie is not one of ours."""
        data = self.verified("session", cookie)
        if data is None:
            return None
        viewer = msgspec.json.decode(data, type=Viewer)
        return viewer if self.lasts(viewer) else None

    def lasts(self, viewer: Viewer) -> bool:
        """Whether a session has not expired."""
        return (viewer.expires_at or 0.0) > time.time()

    def form_token(self, viewer: Viewer | None) -> str:
        """What a form of this session must send. Another site can neither read nor guess it."""
        return self._digest("form", (viewer.session if viewer else "").encode())

    def sign(self, purpose: str, data: bytes) -> str:
        """Signed text for a cookie. The signature is valid for this purpose only."""
        # Padding would make a browser quote the cookie.
        return f"{base64.urlsafe_b64encode(data).decode().rstrip('=')}.{self._digest(purpose, data)}"

    def verified(self, purpose: str, text: str) -> bytes | None:
        """The data that was signed. None if this key did not sign it for this purpose."""
        encoded, _, digest = text.rpartition(".")
        try:
            data = base64.b64decode(f"{encoded}{'=' * (-len(encoded) % 4)}".encode(), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        return data if hmac.compare_digest(digest.encode(), self._digest(purpose, data).encode()) else None

    def _digest(self, purpose: str, data: bytes) -> str:
        return hmac.new(self._key, f"{purpose}:".encode() + data, hashlib.sha256).hexdigest()
