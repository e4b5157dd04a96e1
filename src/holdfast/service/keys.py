"""The keys that tokens are checked with: from settings, a file or a URL; read again when they change.

A key has one algorithm, by its kind and never by what a token says. Only addresses that the operator gave are ever
asked: `jku`, `x5u`, `jwk` and `x5c` of a token are not looked at.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec
from jwt.exceptions import PyJWTError

from holdfast.core.errors import InvalidOption
from holdfast.opening import shown_url
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

MOST_BYTES = 1024 * 1024
MOST_KEYS = 100
FETCH_S = 5.0
RENEW_S = 300.0
"""How often to read the keys again ..."""
LEAST_S = 10.0
"""... and how soon, when a token names one that is not there. Whoever sends made-up names costs no more than this."""

PRIVATE_PARTS = ("d", "p", "q", "dp", "dq", "qi", "key_ops")
"""What a private key has beyond its public one."""

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_RSA_LEAST_BITS = 2048
_KINDS: dict[Any, str] = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}


class Key(msgspec.Struct, frozen=True):
    """A key and the one algorithm it is for."""

    algorithm: str
    material: Any


class Keys:
    """The keys as they are now. `generation` changes with them."""

    def __init__(self, hs256_key: str | None, source: str | None) -> None:
        self.generation = 0
        self._shared = None if hs256_key is None else Key("HS256", hs256_key.encode())
        self._source = source
        self._by_id: dict[str, Key] = {}
        self._nameless: list[Key] = []
        self._read_at = -RENEW_S
        self._text = b""
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the keys for the first time. Raises InvalidOption where there are none."""
        if self._source is None:
            return
        try:
            self._take(await asyncio.to_thread(_fetch, self._source))
        except (OSError, ValueError, HTTPException, PyJWTError, msgspec.MsgspecError) as error:
            raise InvalidOption("jwks", f"no keys at {shown_url(self._source)}: {_why(error)}") from error
        if not self._by_id and not self._nameless:
            raise InvalidOption("jwks", f"{shown_url(self._source)} has no key of RS256, ES256 or EdDSA")

    async def find(self, algorithm: str, kid: str | None) -> Key | None:
        """The key that a token is to be checked with. One that is not known is looked for again, but not often."""
        if algorithm == "HS256":
            return self._shared
        if self._source is None:
            return None
        key = self._find(algorithm, kid)
        if key is None and time.monotonic() - self._read_at > LEAST_S:
            self._renew()
        if key is None and self._reading is not None:
            await asyncio.wait([self._reading], timeout=FETCH_S)
            key = self._find(algorithm, kid)
        return key

    def renew_in_time(self) -> None:
        """Read the keys again if it is time; whoever asks meanwhile is checked with those that are known."""
        if self._source is not None and time.monotonic() - self._read_at > RENEW_S:
            self._renew()

    async def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _find(self, algorithm: str, kid: str | None) -> Key | None:
        if kid is not None:
            key = self._by_id.get(kid)
            return key if key is not None and key.algorithm == algorithm else None
        every = [key for key in (*self._by_id.values(), *self._nameless) if key.algorithm == algorithm]
        # Without a name it must be clear which one is meant.
        return every[0] if len(every) == 1 else None

    def _renew(self) -> None:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            self._take(await asyncio.to_thread(_fetch, self._source or ""))
        except Exception as error:  # noqa: BLE001 - the old keys go on holding
            _log.warning("keys not renewed", error=_why(error))
        finally:
            self._read_at = time.monotonic()
            self._reading = None

    def _take(self, text: bytes) -> None:
        self._read_at = time.monotonic()
        if text == self._text:
            return
        by_id, nameless = _parse(text)
        self._text, self._by_id, self._nameless = text, by_id, nameless
        self.generation += 1


def _fetch(source: str) -> bytes:
    parts = urlsplit(source)
    if parts.scheme in ("", "file"):
        text = Path(parts.path if parts.scheme else source).read_bytes()
    elif parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL):
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(source, timeout=FETCH_S) as answer:
            text = answer.read(MOST_BYTES + 1)
    else:
        raise ValueError("give a file, or a URL with https://")
    if len(text) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    return text


def _why(error: Exception) -> str:
    """Why there are no keys. What `http.client` says of a URL may be a piece of a password in it."""
    return type(error).__name__ if isinstance(error, HTTPException) else str(error)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow nobody."""


def _parse(text: bytes) -> tuple[dict[str, Key], list[Key]]:
    document = msgspec.json.decode(text, type=_Set)
    by_id: dict[str, Key] = {}
    nameless: list[Key] = []
    skipped = 0
    for entry in document.keys[:MOST_KEYS]:
        try:
            key, kid = _key(entry), entry.get("kid")
            if key is not None and kid is None:
                nameless.append(key)
            elif key is not None:
                _name(key, kid, by_id)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one, the others hold
            skipped += 1
            _log.warning("a key is skipped", error=error)
    if skipped and not by_id and not nameless:
        raise ValueError("none of its keys can be read")
    return by_id, nameless


def _name(key: Key, kid: Any, by_id: dict[str, Key]) -> None:
    if not isinstance(kid, str) or kid in by_id:
        raise ValueError(f"the name of a key is not a string, or stands twice: {kid!r}")
    by_id[kid] = key


class _Set(msgspec.Struct):
    keys: list[Any]


def _key(entry: dict[str, Any]) -> Key | None:
    """The key, if it is one to check with and of a kind we take. A shared secret in a public place is none."""
    algorithm = _KINDS.get((entry.get("kty"), entry.get("crv")))
    if algorithm is None or entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in entry.items() if name not in PRIVATE_PARTS}
    material = jwt.PyJWK(public, algorithm).key
    if algorithm == "RS256" and material.key_size < _RSA_LEAST_BITS:
        return None
    return Key(algorithm, material)
