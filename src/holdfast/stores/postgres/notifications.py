"""Hints by NOTIFY: the format of notifications, and `Notifier`, which sends them.

NOTIFY locks the whole database at commit. So it is sent after the change, in a transaction of its own. After a first
burst a handle sends at most once in 5 ms, with everything that has gathered meanwhile; the last hint is never dropped.
A handle notifies its own listeners directly, and ignores its own notifications when they come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

import msgspec

from holdfast.core.errors import StoreError
from holdfast.store import Hint, Signal
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.stores.postgres.errors import is_unsent
from holdfast.stores.postgres.lanes import LaneCache

Notice = tuple[Hint, str, str, str]
"""A hint with tenant, queue and job id, each empty where it means all."""
Payloads = tuple[list[str], list[str]]
"""Channels, and the payload for each."""

LOGGED: Notice = (Hint.EVENTS, "", "", "")
"""The log has grown."""
GATHER_S = 0.005
MAX_BURST = 20
"""How many notifications a handle sends at once before their pace is one in `GATHER_S`."""
FULL_S = 5.0
"""How long changes are made without notifications after the server had no room for one."""
MAX_PAYLOAD = 7500
"""The most bytes of a notification. The server takes 8000."""

_log = logging.getLogger("holdfast")
_encode = msgspec.json.Encoder().encode


class Notification(msgspec.Struct, array_like=True):
    """A notification: the handle that sent it, and its hints. The hint of a single completion has the job's record."""

    origin: str
    hints: list[Notice]
    record: rows.Record | None = None


def channel_of(secret: str, hint: Hint) -> str:
    """The channel of a schema for one kind of hint, so that a listener is not woken by other kinds.

    Any role that may connect can LISTEN. So the name contains a secret, known only to roles that may read the tables.
    """
    return f"hf{hint.value[0]}{secret}"


def payloads(origin: str, hints: Iterable[Notice]) -> list[tuple[Hint, str]]:
    """The payloads to send, each on the channel of its kind: as few as the hints fit into."""
    found: list[tuple[Hint, str]] = []
    kinds: dict[Hint, list[Notice]] = {}
    for hint in dict.fromkeys(hints):
        kinds.setdefault(hint[0], []).append(hint)
    for kind, alike in kinds.items():
        gathered: list[Notice] = []
        size = 0
        for hint in alike:
            length = len(_encode(hint)) + 1
            if size + length > MAX_PAYLOAD and gathered:
                found.append((kind, _encode((origin, gathered)).decode()))
                gathered, size = [], 0
            gathered.append(hint)
            size += length
        found.append((kind, _encode((origin, gathered)).decode()))
    return found


def to_channels(secret: str, found: Iterable[tuple[Hint, str]]) -> Payloads:
    """The payloads with their channels, as arguments of a statement."""
    pairs = list(found)
    return [channel_of(secret, kind) for kind, _ in pairs], [payload for _, payload in pairs]


class Notifier:
    """Sends the hints of one handle, in one event loop."""

    def __init__(
        self, client: PostgresClient, cache: LaneCache, origin: str, deliver: Callable[[Signal], None]
    ) -> None:
        self._client = client
        self._cache = cache
        self._origin = origin
        self._deliver = deliver
        """Notifies the listeners of this handle."""
        self._sending: asyncio.Task[None] | None = None
        self._pending: dict[Notice, None] = {}
        self._urgent = asyncio.Event()
        self._waits = False
        """Whether the pending hints wait to be sent together with the next urgent one."""
        self._closed = False
        self._full_until = 0.0
        self._warned_full = False
        self._next_at = 0.0
        """When the next hints would be due if they were sent at an even pace."""

    def to_send(self, hints: list[Notice]) -> Payloads | None:
        """The payloads to send along with a change that is about to be made. None: they have to wait.

        Pending hints that wait for an urgent one are included. If the change is not made, call `unsent`.
        """
        now = asyncio.get_running_loop().time()
        early = now < self._next_at - MAX_BURST * GATHER_S
        if (self._sending is not None and not self._waits) or self._urgent.is_set() or early or self.full:
            return None
        found = payloads(self._origin, [*self._pending, *hints])
        if len(found) > len(Hint):
            return None
        self._keep_pace(now)
        self._pending = {}
        return to_channels(self._cache.secret, found)

    def payload_of(self, hint: Notice) -> list[str]:
        """The channel of one hint, and its payload."""
        ((_, payload),) = payloads(self._origin, [hint])
        return [channel_of(self._cache.secret, hint[0]), payload]

    def unsent(self) -> None:
        """The result of `to_send` was not sent. Of the pending hints it included, only LOGGED has to be sent again."""
        self.notify([LOGGED])

    @property
    def full(self) -> bool:
        """Whether the server had no room for a notification lately. No job is handed off meanwhile."""
        return asyncio.get_running_loop().time() < self._full_until

    def is_full(self) -> None:
        """Note that the server refused a notification."""
        self._full_until = asyncio.get_running_loop().time() + FULL_S
        if not self._warned_full:
            self._warned_full = True
            cure = "see pg_stat_activity for a connection that listens and is idle in a transaction, in any database"
            _log.warning("hints are late: the server's queue of notifications is full; %s", cure)

    def notify_own(self, hints: list[Notice]) -> None:
        """Notify the listeners of this handle. Others have been notified."""
        for hint in hints:
            self._deliver(Signal(*hint))

    def notify(self, hints: list[Notice]) -> None:
        """Notify of a committed change: the listeners of this handle now, others soon."""
        self.notify_own(hints)
        self._pending |= dict.fromkeys(hints)
        if any(hint[0] is not Hint.EVENTS for hint in hints):
            self._urgent.set()
        if self._pending and self._sending is None and not self._closed:
            self._waits = True
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="holdfast notify")

    async def close(self) -> None:
        """Send the pending hints and stop."""
        self._closed = True
        self._urgent.set()
        if self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        try:
            while self._pending:
                # LOGGED follows every change, and waits for the next hint that a process may be waiting for.
                if not self._closed:
                    self._waits = True
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._urgent.wait(), GATHER_S)
                self._waits = False
                self._urgent.clear()
                hints, self._pending = self._pending, {}
                found = payloads(self._origin, hints)
                # If a hint cannot be sent, the processes that wait for it find out by their next poll.
                try:
                    if found:
                        await self._client.rows("notify", *to_channels(self._cache.secret, found), repeat=True)
                        self._warned_full = False
                except StoreError as error:
                    if is_unsent(error.__cause__):
                        self.is_full()
                if found:
                    self._keep_pace(asyncio.get_running_loop().time())
                    await asyncio.sleep(0 if self._closed else GATHER_S)
        finally:
            self._sending = None
            self._waits = False

    def _keep_pace(self, now: float) -> None:
        self._next_at = max(now, self._next_at) + GATHER_S
