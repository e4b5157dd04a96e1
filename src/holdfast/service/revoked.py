"""Tokens that were revoked, of each tenant and of operators: by `jti`, by `sub`, or all issued before an instant.

Sessions of the dashboard that were ended before their time are kept with them, as long as a session can last.

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
from holdfast.service.records import Records, ServiceRecord
from holdfast.service.tokens import Caller, refused
from holdfast.store import Store

RENEW_S = 3.0
MAX_AGE_S = 10.0
SESSION_S = 12 * 3600.0
"""A session of the dashboard ends with its token, but at the latest after this."""
MAX_ENDED = 1000
"""The most ended sessions that are kept for one tenant, the newest."""

Kind = Literal["jti", "sub", "issued_before", "session"]


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
        found = [one for _, one in await self.records() if one.kind != "session"]
        return [one for one in found if tenant is None or one.tenant == tenant]

    async def records(self) -> list[tuple[ServiceRecord, Revocation]]:
        """All records, those of ended sessions too, the oldest first."""
        return [(record, msgspec.json.decode(record.data, type=Revocation)) for record in await self._records.all()]

    async def end_session(self, tenant: str, session: str) -> None:
        """End a session, and forget those that would be over by now."""
        ended = [(record, one.tenant) for record, one in await self.records() if one.kind == "session"]
        left = sum(owner == tenant for _, owner in ended) - MAX_ENDED + 1
        for record, owner in ended:
            is_surplus = owner == tenant and left > 0
            left -= owner == tenant
            if is_surplus or record.age_ms > SESSION_S * 1000:
                await self._records.remove(record.id)
        await self.add(Revocation(tenant, "session", session))

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
        names = (("jti", caller.token_id), ("sub", caller.subject), ("session", caller.session))
        listed = any((tenant, *name) in self._listed for name in names)
        # A token without `iat` may be older.
        if listed or (caller.issued_at or 0.0) < self._issued_after.get(tenant, 0.0):
            raise refused("it was revoked")

    async def end_session(self, tenant: str, session: str) -> None:
        """End a session of the dashboard: here at once, in other processes when they read again."""
        await self._tokens.end_session(tenant, session)
        if self._reading is not None:
            await asyncio.wait([self._reading])  # It may have begun before.
        self._listed |= {(tenant, "session", session)}

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
            found = [one for _, one in await self._tokens.records()]
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
