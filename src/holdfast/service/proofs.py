"""Proofs of leases: what a worker shows over HTTP in place of the number that is a token within a process. [LEASE-1]

A proof is `kid.fence.mac`. The MAC is HMAC-SHA-256, cut to 128 bits, over tenant, queue, id and fence, each with its
length before it. A worker that was not granted the lease cannot make one, and a guess costs one HMAC and no call to
the store.

The keys are records in the store (see `records`): all processes share them, and a restart keeps them. A process reads
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
from holdfast.service.records import Record, Records
from holdfast.store import Store

RENEW_S = 5.0
"""A process uses its copy of the keys for this long: a dropped key verifies no longer than that."""
LEAST_S = 2.0
"""The least time between two reads for proofs whose key is unknown."""
REMEMBERED = 5_000
"""The last proofs that a process has signed, this many to twice as many, are compared without an HMAC."""
SIGN_AFTER_MS = 10_000
"""A new key signs from this age on: by then every process can verify with it."""

_KEY_BYTES = 32
_MAC_DIGITS = 32
_MOST_DIGITS = 16
_LABEL = "holdfast lease 1 "
_INNER, _OUTER = (bytes(number ^ pad for number in range(256)) for pad in (0x36, 0x5C))

_Job = tuple[str, str, str]
_Halves = tuple[Any, Any]
"""Two hashes of SHA-256 that go on from the key."""


class LeaseKey(Struct, frozen=True):
    """A key of the ring. Keys are numbered from 1; the newest has the highest number."""

    kid: str
    secret: bytes
    age_ms: int


class LeaseKeys:
    """The ring in the store."""

    def __init__(self, store: Store) -> None:
        self._records = Records(store, LEASE_KEYS)

    async def all(self) -> list[LeaseKey]:
        """The keys, the oldest first."""
        return sorted(map(_key, await self._records.all()), key=lambda key: int(key.kid))

    async def some(self) -> list[LeaseKey]:
        """The same, and the first key is made where there is none.

        Processes that start at the same time end with the same ring: of adds of one number, one wins.
        """
        found = await self.all()
        if not found:
            await self._records.add("1", _new_secret())
            found = await self.all()
        return found

    async def rotate(self) -> str:
        """Add a key, and return its number. The others verify until they are dropped."""
        while True:
            kid = str(int((await self.some())[-1].kid) + 1)
            if await self._records.add(kid, _new_secret()):
                return kid

    async def drop(self, kid: str) -> None:
        """Remove a key: what it signed verifies no more. Raises InvalidOption for the newest, and where there is none.

        The newest stays, so that a number never comes again with another key.
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
        self._ring: list[tuple[str, bytes]] = []
        self._secrets: dict[str, _Halves] = {}
        self._signed: dict[_Job, tuple[int, str]] = {}
        self._signed_before: dict[_Job, tuple[int, str]] = {}
        self._signing = ""
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def renew(self, proofs: Iterable[str] = ()) -> None:
        """Read the keys again if it is time, or if a proof names one that is unknown. Call it before the others.

        Raises what the store raises: the request would meet the same there.
        """
        age_s = time.monotonic() - self._read_at
        if self._secrets and age_s < RENEW_S and (age_s < LEAST_S or not self._any_unknown(proofs)):
            return
        # Shared by the requests that meet here; one that is cancelled does not cancel it for the others.
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def close(self) -> None:
        """End a read that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def sign(self, tenant: str, queue: str, id: str, fence: int) -> str:
        """The proof of a lease."""
        proof = _proof(self._signing, self._secrets[self._signing], tenant, queue, id, fence)
        if len(self._signed) >= REMEMBERED:
            self._signed_before, self._signed = self._signed, {}
        self._signed[tenant, queue, id] = fence, proof
        return proof

    def fence(self, tenant: str, queue: str, id: str, proof: str) -> int:
        """The fence of the lease that this proves. Raises LeaseLost, whether there is such a job or not. [LEASE-1]"""
        job = tenant, queue, id
        signed = self._signed.get(job) or self._signed_before.get(job)
        if signed is not None and proof.isascii() and hmac.compare_digest(signed[1], proof):
            return signed[0]
        kid, digits, *_ = (*proof.split(".", 2), "")
        halves = self._secrets.get(kid)
        if halves is not None and proof.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS:
            # The whole text is compared: a proof has one spelling.
            fence = int(digits)
            if hmac.compare_digest(_proof(kid, halves, tenant, queue, id, fence), proof):
                return fence
        raise LeaseLost(queue, id)

    def _any_unknown(self, proofs: Iterable[str]) -> bool:
        return any(proof.partition(".")[0] not in self._secrets for proof in proofs)

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            keys = await self._keys.some()
        finally:
            self._reading = None
        ring = [(key.kid, key.secret) for key in keys]
        if ring != self._ring:
            self._ring, self._signed, self._signed_before = ring, {}, {}
            self._secrets = {kid: _halves(secret) for kid, secret in ring}
        self._signing = next((key.kid for key in reversed(keys) if key.age_ms >= SIGN_AFTER_MS), keys[0].kid)
        self._read_at = began


def _proof(kid: str, halves: _Halves, tenant: str, queue: str, id: str, fence: int) -> str:
    # What `hmac.digest` does, in less than half the time: the two halves of the key are hashed already.
    inner, outer = halves[0].copy(), halves[1].copy()
    inner.update(f"{_scope(tenant, queue)}{len(id)}:{id}{fence}".encode())
    outer.update(inner.digest())
    return f"{kid}.{fence}.{outer.hexdigest()[:_MAC_DIGITS]}"


@lru_cache
def _scope(tenant: str, queue: str) -> str:
    """The part of a message that the proofs of a claim share."""
    return f"{_LABEL}{len(tenant)}:{tenant}{len(queue)}:{queue}"


def _halves(secret: bytes) -> _Halves:
    """What HMAC hashes before the message, and before the digest of that (RFC 2104)."""
    block = secret.ljust(hashlib.sha256().block_size, b"\0")
    return hashlib.sha256(block.translate(_INNER)), hashlib.sha256(block.translate(_OUTER))


def _key(record: Record) -> LeaseKey:
    return LeaseKey(record.id, base64.b64decode(record.data), record.age_ms)


def _new_secret() -> bytes:
    """A key as a record has it: text, so that tools that show payloads can."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES))
