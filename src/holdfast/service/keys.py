"""The keys that verify tokens: from settings, a file or a URL, and read again regularly.

A key has one algorithm, which follows from its type and never from a token. Only the operator's addresses are read:
`jku`, `x5u`, `jwk` and `x5c` in a token are ignored.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Mapping
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

MAX_BYTES = 1024 * 1024
MAX_KEYS = 100
FETCH_S = 5.0
RENEW_S = 300.0
"""How often to read the keys again."""
MIN_RENEW_S = 10.0
"""The least time between two reads because of unknown key names. It bounds the cost of tokens with made-up names."""

PRIVATE_PARTS = ("d", "p", "q", "dp", "dq", "qi", "key_ops")
"""The members of a private key that its public key does not have."""

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_RSA_LEAST_BITS = 2048
_KINDS: dict[Any, str] = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}


class Key(msgspec.Struct, frozen=True):
    """A key and its only algorithm."""

    algorithm: str
    material: Any


class Keys:
    """The current keys. `generation` changes with them."""

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
        """Read the keys for the first time. Raises InvalidOption if there are none."""
        if self._source is None:
            return
        try:
            self._take(await asyncio.to_thread(_fetch, self._source))
        except (OSError, ValueError, HTTPException, PyJWTError, msgspec.MsgspecError) as error:
            raise InvalidOption("jwks", f"no keys at {shown_url(self._source)}: {_why(error)}") from error
        if not self._by_id and not self._nameless:
            raise InvalidOption("jwks", f"{shown_url(self._source)} has no key of RS256, ES256 or EdDSA")

    async def find(self, algorithm: str, kid: str | None) -> Key | None:
        """The key for a token. If it is unknown, the keys are read again, within `MIN_RENEW_S`."""
        if algorithm == "HS256":
            return self._shared
        if self._source is None:
            return None
        key = self._find(algorithm, kid)
        if key is None and time.monotonic() - self._read_at > MIN_RENEW_S:
            self._renew()
        if key is None and self._reading is not None:
            await asyncio.wait([self._reading], timeout=FETCH_S)
            key = self._find(algorithm, kid)
        return key

    def renew_in_time(self) -> None:
        """Start to read the keys again if it is time. Until then tokens are checked with the known keys."""
        if self._source is not None and time.monotonic() - self._read_at > RENEW_S:
            self._renew()

    async def close(self) -> None:
        """End a read in progress."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _find(self, algorithm: str, kid: str | None) -> Key | None:
        if kid is not None:
            key = self._by_id.get(kid)
            return key if key is not None and key.algorithm == algorithm else None
        every = [key for key in (*self._by_id.values(), *self._nameless) if key.algorithm == algorithm]
        # A token without a key name needs a single candidate.
        return every[0] if len(every) == 1 else None

    def _renew(self) -> None:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            self._take(await asyncio.to_thread(_fetch, self._source or ""))
        except Exception as error:  # noqa: BLE001 - the old keys stay valid
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
    if is_safe(source):
        return fetch(source)
    if parts.scheme not in ("", "file"):
        raise ValueError("give a file, or a URL with https://")
    return _bounded(Path(parts.path if parts.scheme else source).read_bytes())


def is_safe(url: str) -> bool:
    """Whether what this URL answers cannot be changed on the way: it is TLS, or this machine."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL))


def fetch(url: str, form: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """What a safe URL answers, bounded in time and size, without redirects. `form` is sent by POST.

    Call it in a thread. Raises OSError, ValueError or HTTPException.
    """
    if not is_safe(url):
        raise ValueError("give a URL with https://")
    ends_at = time.monotonic() + FETCH_S
    opener = urllib.request.build_opener(_NoRedirect)
    text = b""
    with opener.open(urllib.request.Request(url, form, dict(headers or {})), timeout=FETCH_S) as answer:  # noqa: S310 - checked
        while part := answer.read1(64 * 1024):
            text = _bounded(text + part)
            if time.monotonic() > ends_at:
                raise TimeoutError(f"it took more than {FETCH_S:.0f} s")
    return text


def _bounded(text: bytes) -> bytes:
    if len(text) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return text


def _why(error: Exception) -> str:
    """The reason for a failed read. Messages of `http.client` may contain a part of a password in the URL."""
    return type(error).__name__ if isinstance(error, HTTPException) else str(error)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Do not follow redirects."""


def _parse(text: bytes) -> tuple[dict[str, Key], list[Key]]:
    document = msgspec.json.decode(text, type=_Set)
    by_id: dict[str, Key] = {}
    nameless: list[Key] = []
    skipped = 0
    for entry in document.keys[:MAX_KEYS]:
        try:
            key, kid = _key(entry), entry.get("kid")
            if key is not None and kid is None:
                nameless.append(key)
            elif key is not None:
                _name(key, kid, by_id)
        except Exception as error:  # noqa: BLE001 - one bad key must not disable the others
            skipped += 1
            _log.warning("a key is skipped", error=error)
    if skipped and not by_id and not nameless:
        raise ValueError("it has no readable key")
    return by_id, nameless


def _name(key: Key, kid: Any, by_id: dict[str, Key]) -> None:
    if not isinstance(kid, str) or kid in by_id:
        raise ValueError(f"the name of a key is not a string, or not unique: {kid!r}")
    by_id[kid] = key


class _Set(msgspec.Struct):
    keys: list[Any]


def _key(entry: dict[str, Any]) -> Key | None:
    """The key, if it verifies signatures with a supported algorithm. A shared secret in a public set is ignored."""
    algorithm = _KINDS.get((entry.get("kty"), entry.get("crv")))
    if algorithm is None or entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in entry.items() if name not in PRIVATE_PARTS}
    material = jwt.PyJWK(public, algorithm).key
    if algorithm == "RS256" and material.key_size < _RSA_LEAST_BITS:
        return None
    return Key(algorithm, material)
