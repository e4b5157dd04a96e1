"""Tokens that were revoked, of each tenant and of operators: by `jti`, by `sub`, or all issued before an instant.

Revocations are records in the store (see `records`). A process reads them in the background every `RENEW_S`, and uses
no copy older than `MAX_AGE_S`: a revoked token works for at most this long.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from typing import Literal

import msgspec
from msgspec import Struct

from holdfast.core.errors import InvalidOption, StoreError
from holdfast.core.names import REVOKED, check_tenant, join_key
from holdfast.service.errors import Refusal
from holdfast.service.records import Records
from holdfast.service.tokens import Caller, refused
from holdfast.store import Store

RENEW_S = 3.0
MAX_AGE_S = 10.0

Kind = Literal["jti", "sub", "issued_before"]


class Revocation(Struct, frozen=True):
    """Revokes tokens of a tenant: those with a `jti` or `sub`, or issued before an instant in seconds since 1970."""

    tenant: str
    """"" for tokens of operators, which are for all tenants."""
    kind: Kind
    value: str

    @property
    def id(self) -> str:
        """The id of its record. A digest: a `jti` may be longer than an id, or have control characters."""
        return hashlib.sha256(join_key(self.tenant, self.kind, self.value).encode(errors="replace")).hexdigest()


class RevokedTokens:
    """The revocations in a store, for operators."""

    def __init__(self, store: Store) -> None:
        self._records = Records(store, REVOKED)

    async def all(self, tenant: str | None = None) -> list[Revocation]:
        """The revocations of a tenant, or of all tenants, the oldest first."""
        found = [msgspec.json.decode(record.data, type=Revocation) for record in await self._records.all()]
        return [one for one in found if tenant is None or one.tenant == tenant]

    async def add(self, revocation: Revocation) -> bool:
        """Revoke tokens. Returns whether the revocation is new. Raises InvalidName or InvalidOption."""
        if revocation.tenant:
            check_tenant(revocation.tenant)
        if not revocation.value:
            raise InvalidOption(revocation.kind, "it is empty")
        return await self._records.add(revocation.id, msgspec.json.encode(revocation))

    async def remove(self, revocation: Revocation) -> bool:
        """Accept the tokens again. Returns whether they were revoked."""
        return await self._records.remove(revocation.id)


class Revoked:
    """The copy of all revocations in one process."""

    def __init__(self, store: Store) -> None:
        self._tokens = RevokedTokens(store)
        self._listed: frozenset[tuple[str, str, str]] = frozenset()
        self._issued_after: dict[str, float] = {}
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def check(self, caller: Caller) -> None:
        """Raise a refusal if the caller's token is revoked, or the store's error if the copy is too old."""
        await self.renew()
        self.refuse(caller)

    def is_fresh(self) -> bool:
        """Whether it is not yet time to read again."""
        return self._read_at is not None and time.monotonic() - self._read_at < RENEW_S

    def refuse(self, caller: Caller) -> None:
        """Raise a refusal if the copy says that the caller's token is revoked."""
        if not self._listed and not self._issued_after:
            return
        tenant = caller.tenant
        listed = (tenant, "jti", caller.token_id) in self._listed or (tenant, "sub", caller.subject) in self._listed
        # A token without `iat` may be older.
        if listed or (caller.issued_at or 0.0) < self._issued_after.get(tenant, 0.0):
            raise refused("it was revoked")

    async def is_revoked(self, caller: Caller) -> bool:
        """Whether the caller's token is revoked. False if the store cannot be read."""
        try:
            with contextlib.suppress(StoreError):
                await self.check(caller)
        except Refusal:
            return True
        return False

    async def renew(self) -> None:
        """Start to read again if it is time, and wait for it if the copy is too old."""
        age_s = MAX_AGE_S if self._read_at is None else time.monotonic() - self._read_at
        if age_s < RENEW_S:
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_retrieve)
        if age_s >= MAX_AGE_S:
            await asyncio.shield(self._reading)

    async def close(self) -> None:
        """End a read in progress."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            found = await self._tokens.all()
        finally:
            self._reading = None
        self._listed = frozenset((one.tenant, one.kind, one.value) for one in found)
        after: dict[str, float] = {}
        for one in found:
            if one.kind == "issued_before":
                after[one.tenant] = max(after.get(one.tenant, 0.0), float(one.value))
        self._issued_after, self._read_at = after, began


def _retrieve(reading: asyncio.Task[None]) -> None:
    """Retrieve the error of a failed read: the next request reads again."""
    if not reading.cancelled():
        reading.exception()
