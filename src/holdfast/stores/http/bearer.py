"""The token and its tenant. A token is never shown and never logged."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from typing import Any

from msgspec import MsgspecError, json

from holdfast.core.errors import AccessRefused, InvalidOption

VARIABLE = "HOLDFAST_TOKEN"
MISSING = f"no token; pass token=, or set {VARIABLE}"
_CLAIMS = ("tid", "tenant", "tenant_id")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")

Source = str | Callable[[], str] | None


class Bearer:
    """A token, or a function that returns a current one: workers run longer than tokens are valid."""

    def __init__(self, source: Source = None) -> None:
        if source is not None and not callable(source):
            _checked(source)
        self._source = source

    @classmethod
    def from_environment(cls) -> Bearer:
        """The token in HOLDFAST_TOKEN, if it is set."""
        return cls(os.environ.get(VARIABLE) or None)

    @property
    def renews(self) -> bool:
        """Whether a second call may return a different token."""
        return callable(self._source)

    def text(self) -> str:
        """The token. Raises AccessRefused if there is none."""
        if self._source is None:
            raise AccessRefused(MISSING)
        return _checked(self._source()) if callable(self._source) else self._source

    def tenant(self) -> str:
        """The tenant that the token names; "" if its claim is not known here. The service verifies it."""
        if self._source is None:
            raise InvalidOption("token", MISSING)
        parts = self.text().split(".")
        try:
            text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
            claims: dict[str, Any] = json.decode(text, type=dict[str, Any])
        except (IndexError, ValueError, MsgspecError):
            raise InvalidOption("token", "is not a JSON Web Token") from None
        named = [claims[name] for name in _CLAIMS if isinstance(claims.get(name), str)]
        return named[0] if named else ""

    def __repr__(self) -> str:
        return "<Bearer>"


def _checked(token: Any) -> str:
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise InvalidOption("token", "is not a JSON Web Token")
    return token
