"""Proofs of leases: the tokens of leases over HTTP. Within a process a token is a plain number. [LEASE-1]

A proof is `kid.fence.mac`. The MAC is HMAC-SHA-256, cut to 128 bits, over tenant, queue, id and fence, each name with
its length before it. A worker without the lease cannot make a proof, and a guess costs one HMAC and no call to the
store.

The keys are records in the store (see `records`): all processes share them, and they survive a restart. A process reads
them again at the first request after `RENEW_S`. It signs with the newest key that every process has read by then, and
verifies with every key that the operator has not dropped.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from msgspec import Struct

from holdfast.core.errors import InvalidOption, LeaseLost
from holdfast.core.names import LEASE_KEYS
from holdfast.service.records import Records, ServiceRecord
from holdfast.store import Store

RENEW_S = 5.0
"""How long a process uses its copy of the keys, and so how long a dropped key may still verify."""
MIN_RENEW_S = 2.0
"""The least time between two reads because of proofs with an unknown key."""
MAX_REMEMBERED = 5_000
"""A process verifies its last proofs without an HMAC: it remembers at least this many, at most twice as many."""
SIGN_AFTER_MS = 10_000
"""A new key signs from this age on: by then every process can verify with it."""

_KEY_BYTES = 32
_MAC_DIGITS = 32
_MAX_DIGITS = 16
_LABEL = "holdfast lease 1 "
_INNER, _OUTER = (bytes(number ^ pad for number in range(256)) for pad in (0x36, 0x5C))

_Job = tuple[str, str, str]
_Halves = tuple[Any, Any]
"""Two states of SHA-256, after the key's inner and outer block."""


class LeaseKey(Struct, frozen=True):
    """A signing key. Keys are numbered from 1; the newest has the highest number."""

    kid: str
    secret: bytes
    age_ms: int


class LeaseKeys:
    """The signing keys in the store."""

    def __init__(self, store: Store) -> None:
        self._records = Records(store, LEASE_KEYS)

    async def all(self) -> list[LeaseKey]:
        """The keys, the oldest first."""
        return sorted(map(_key, await self._records.all()), key=lambda key: int(key.kid))

    async def ensure(self) -> list[LeaseKey]:
        """The keys, the oldest first. If there is none, it creates one.

        Processes that start at the same time get the same keys: of concurrent adds of one number, one wins.
        """
        found = await self.all()
        if not found:
            await self._records.add("1", _new_secret())
            found = await self.all()
        return found

    async def rotate(self) -> str:
        """Add a key, and return its number. The others verify until they are dropped."""
        while True:
            kid = str(int((await self.ensure())[-1].kid) + 1)
            if await self._records.add(kid, _new_secret()):
                return kid

    async def drop(self, kid: str) -> None:
        """Remove a key: its proofs are no longer valid. Raises InvalidOption for the newest key, or an unknown one.

        The newest key stays, so that a number is never used for two keys.
        """
        known = [key.kid for key in await self.all()]
        if kid not in known:
            raise InvalidOption("kid", f"there is no lease key {kid[:80]!r}; there are: {', '.join(known) or 'none'}")
        if kid == known[-1]:
            raise InvalidOption("kid", f"{kid} is the newest lease key; run `holdfast keys lease-rotate` first")
        await self._records.remove(kid)


class Proofs:
    """Makes and verifies proofs in one process."""

    def __init__(self, store: Store) -> None:
        self._keys = LeaseKeys(store)
        self._read_keys: list[tuple[str, bytes]] = []
        self._secrets: dict[str, _Halves] = {}
        self._signed: dict[_Job, tuple[int, str]] = {}
        self._signed_before: dict[_Job, tuple[int, str]] = {}
        self._signing = ""
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def renew(self, proofs: Iterable[str] = ()) -> None:
        """Read the keys again if it is time, or if a proof names an unknown key. Call it before `sign` and `fence`.

        Raises the store's errors.
        """
        age_s = time.monotonic() - self._read_at
        if self._secrets and age_s < RENEW_S and (age_s < MIN_RENEW_S or not self._any_unknown(proofs)):
            return
        # Concurrent requests share the read. A canceled request does not cancel it for the others.
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def close(self) -> None:
        """End a read in progress."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def sign(self, tenant: str, queue: str, id: str, fence: int) -> str:
        """Make the proof of a lease."""
        proof = _proof(self._signing, self._secrets[self._signing], tenant, queue, id, fence)
        if len(self._signed) >= MAX_REMEMBERED:
            self._signed_before, self._signed = self._signed, {}
        self._signed[tenant, queue, id] = fence, proof
        return proof

    def fence(self, tenant: str, queue: str, id: str, proof: str) -> int:
        """Verify a proof and return its fence. Raises LeaseLost, whether the job exists or not. [LEASE-1]"""
        job = tenant, queue, id
        signed = self._signed.get(job) or self._signed_before.get(job)
        if signed is not None and proof.isascii() and hmac.compare_digest(signed[1], proof):
            return signed[0]
        kid, digits, *_ = (*proof.split(".", 2), "")
        halves = self._secrets.get(kid)
        if halves is not None and proof.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS:
            # Compare the whole text: a proof has one spelling.
            fence = int(digits)
            if hmac.compare_digest(_proof(kid, halves, tenant, queue, id, fence), proof):
                return fence
        raise LeaseLost(queue, id)

    def _any_unknown(self, proofs: Iterable[str]) -> bool:
        return any(proof.partition(".")[0] not in self._secrets for proof in proofs)

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            keys = await self._keys.ensure()
        finally:
            self._reading = None
        pairs = [(key.kid, key.secret) for key in keys]
        if pairs != self._read_keys:
            self._read_keys, self._signed, self._signed_before = pairs, {}, {}
            self._secrets = {kid: _halves(secret) for kid, secret in pairs}
        self._signing = next((key.kid for key in reversed(keys) if key.age_ms >= SIGN_AFTER_MS), keys[0].kid)
        self._read_at = began


def _proof(kid: str, halves: _Halves, tenant: str, queue: str, id: str, fence: int) -> str:
    # What `hmac.digest` does, in less than half the time: the key and the names of the queue are hashed already.
    inner, outer = _of_queue(halves[0], tenant, queue).copy(), halves[1].copy()
    inner.update(f"{len(id)}:{id}{fence}".encode())
    outer.update(inner.digest())
    return f"{kid}.{fence}.{outer.hexdigest()[:_MAC_DIGITS]}"


@lru_cache
def _of_queue(inner: Any, tenant: str, queue: str) -> Any:
    """The inner half after the part of a message that all jobs of a queue share."""
    shared = inner.copy()
    shared.update(f"{_LABEL}{len(tenant)}:{tenant}{len(queue)}:{queue}".encode())
    return shared


def _halves(secret: bytes) -> _Halves:
    """The states of SHA-256 after the inner and the outer key block of HMAC (RFC 2104)."""
    block = secret.ljust(hashlib.sha256().block_size, b"\0")
    return hashlib.sha256(block.translate(_INNER)), hashlib.sha256(block.translate(_OUTER))


def _key(record: ServiceRecord) -> LeaseKey:
    return LeaseKey(record.id, base64.b64decode(record.data), record.age_ms)


def _new_secret() -> bytes:
    """A random key in base64: tools show payloads as text."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES))
