"""Hints by NOTIFY and LISTEN.

NOTIFY takes a lock on the whole database at commit. So it is sent after the change, in a transaction of its own, at
most once in 5 ms for each handle after a first burst, with all that has gathered meanwhile; the last is never dropped.
A handle tells its own listeners itself and passes over what comes back to it.

The listening connection comes and goes; when it has come, at first or again, everybody is told to look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any

import msgspec

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.store import Hint, Listener, Signal
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import Client
from holdfast.stores.postgres.errors import DRIVER_ERRORS, is_unsent
from holdfast.stores.postgres.lanes import LaneCache

Notice = tuple[Hint, str, str, str]
Payloads = tuple[list[str], list[str]]
"""Channels, and what to send on each."""

GATHER_S = 0.005
MAX_BURST = 20
"""How many times in a row hints go at once, before their pace is held to one in `GATHER_S`."""
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
LINGER_S = 1.0
"""How long the connection is kept after its last listener left, since the next one often comes soon."""
POLL_S = 0.25
"""Without LISTEN (`listen=0`) everybody looks that often."""
FULL_S = 5.0
"""For how long no notification goes with a change after the server had no room for one."""
MAX_PAYLOAD = 7500
"""How many bytes a notification has at most; the server takes 8000."""

_log = logging.getLogger("holdfast")
_encode = msgspec.json.Encoder().encode


class _Message(msgspec.Struct, array_like=True):
    """A notification: who sent it, and with one that a job has completed alone perhaps its record."""

    origin: str
    hints: list[Notice]
    record: rows.Record | None = None


_decode = msgspec.json.Decoder(_Message).decode


def channel_of(secret: str, hint: Hint) -> str:
    """The channel of a schema for one kind of hint: whoever listens for one is not woken by the others.

    Any role that may connect can LISTEN, so the name is one that only those can know who may read the tables.
    """
    return f"hf{hint.value[0]}{secret}"


def payloads(origin: str, hints: Iterable[Notice]) -> list[tuple[Hint, str]]:
    """What to send, each on the channel of its kind: as few notifications as they fit in."""
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


def notes(secret: str, found: Iterable[tuple[Hint, str]]) -> Payloads:
    """The channels and what is to be sent there, as the server takes them."""
    pairs = list(found)
    return [channel_of(secret, kind) for kind, _ in pairs], [payload for _, payload in pairs]


def _watched(connection: Any) -> asyncio.Event:
    """An event that is set when the connection has ended."""
    lost = asyncio.Event()

    def ended(_: object) -> None:
        lost.set()

    connection.add_termination_listener(ended)
    return lost


def _end(loop: asyncio.AbstractEventLoop, lost: asyncio.Event) -> None:
    """Have the connection of this event, which is of that loop, count as lost."""
    with contextlib.suppress(RuntimeError):  # The loop is closed.
        loop.call_soon_threadsafe(lost.set)


class InboxChannel:
    """One worker's own channel: `take` is called with what comes there."""

    def __init__(self, secret: str, take: Callable[[str], None], stop: Callable[[InboxChannel], None]) -> None:
        self.take = take
        self.number = 0
        """Under which number it is message: another one with each connection, 0 while there is none."""
        self._secret = secret
        self._stop = stop
        self._stopped = False

    @property
    def channel(self) -> str:
        return self.channel_of(self.number)

    def channel_of(self, number: int) -> str:
        return f"hfp{number:016x}{self._secret}"

    def stop(self) -> None:
        """Hear no more. Twice is harmless."""
        self._stopped = True
        self._stop(self)

    def message(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        if not self._stopped:
            self.take(str(payload))


class Notifications:
    """The listeners of one handle, in one event loop, and what it tells others."""

    def __init__(self, client: Client, cache: LaneCache, note: Callable[[Notice], None]) -> None:
        self._client = client
        self._cache = cache
        self._note = note
        self._origin = uuid.uuid4().hex[:12]
        self._connection: Any = None
        self._kinds: set[Hint] = set()
        """What the connection listens for."""
        self._asking = asyncio.Lock()
        """A connection can be asked one thing at a time."""
        self._listeners: dict[object, tuple[Listener, frozenset[Hint]]] = {}
        self._inboxes: set[InboxChannel] = set()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None
        self._pending: dict[Notice, None] = {}
        self._urgent = asyncio.Event()
        self._waits = False
        """What is untold is in no hurry: it waits for a hint to go with."""
        self._warned = False
        self._closed = False
        self._full_until = 0.0
        self._warned_full = False
        self._next_at = 0.0
        """When the next hints would be due if they went at an even pace."""
        self._idle_timer: asyncio.TimerHandle | None = None

    # Telling --------------------------------------------------------------------------------------------------

    def to_send(self, hints: list[Notice]) -> Payloads | None:
        """What may be sent along with a change that is about to be made; None: it has to wait for its time.

        What still waits for an urgent hint goes with it. If the change is not made after all, say so by `unsent`.
        """
        now = asyncio.get_running_loop().time()
        early = now < self._next_at - MAX_BURST * GATHER_S
        if (self._sending is not None and not self._waits) or self._urgent.is_set() or early or self.full:
            return None
        found = payloads(self._origin, [*self._pending, *hints])
        if len(found) > len(Hint):
            return None
        self._count(now)
        self._pending = {}
        return notes(self._cache.secret, found)

    @property
    def full(self) -> bool:
        """Whether the server had no room for a notification just now: nothing is handed over either."""
        return asyncio.get_running_loop().time() < self._full_until

    def is_full(self) -> None:
        """The server refused a notification."""
        self._full_until = asyncio.get_running_loop().time() + FULL_S
        if not self._warned_full:
            self._warned_full = True
            cure = "see pg_stat_activity for a connection that listens and is idle in a transaction, in any database"
            _log.warning("hints are late: the server's queue of notifications is full; %s", cure)

    def _count(self, now: float) -> None:
        self._next_at = max(now, self._next_at) + GATHER_S

    def payload_of(self, hint: Notice) -> list[str]:
        """The channel of one hint, and what to send there."""
        ((_, payload),) = payloads(self._origin, [hint])
        return [channel_of(self._cache.secret, hint[0]), payload]

    def unsent(self) -> None:
        """What `to_send` gave was not sent: of what had gathered only that the log grew is not told of."""
        self.notify([(Hint.EVENTS, "", "", "")])

    def notify_own(self, hints: list[Notice]) -> None:
        """A change is committed, and others have been told."""
        if self._listeners:
            for hint in hints:
                self._deliver(Signal(*hint))

    def notify(self, hints: list[Notice]) -> None:
        """A change is committed: tell our own listeners now, and others soon."""
        self.notify_own(hints)
        self._pending |= dict.fromkeys(hints)
        if any(hint[0] is not Hint.EVENTS for hint in hints):
            self._urgent.set()
        if self._pending and self._sending is None and not self._closed:
            self._waits = True
            self._sending = asyncio.get_running_loop().create_task(self._notify(), name="holdfast notify")

    async def _notify(self) -> None:
        try:
            while self._pending:
                # That the log grew follows every change, and goes with the next hint that somebody may wait for.
                if not self._closed:
                    self._waits = True
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._urgent.wait(), GATHER_S)
                self._waits = False
                self._urgent.clear()
                hints, self._pending = self._pending, {}
                found = payloads(self._origin, hints)
                # A hint that cannot be sent costs those who wait for it a look of their own, later.
                try:
                    if found:
                        await self._client.rows("notify", *notes(self._cache.secret, found), repeat=True)
                        self._warned_full = False
                except StoreError as error:
                    if is_unsent(error.__cause__):
                        self.is_full()
                if found:
                    self._count(asyncio.get_running_loop().time())
                    await asyncio.sleep(0 if self._closed else GATHER_S)
        finally:
            self._sending = None
            self._waits = False

    # Listening ------------------------------------------------------------------------------------------------

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` in this event loop when one of `hints` was told; the answer ends it."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        key = object()
        self._listeners[key] = (listener, frozenset(hints))
        if self._connection is not None and not self._wanted <= self._kinds:
            self._start(self._listen_for_more(self._connection))
        self._wake()

        def stop() -> None:
            self._listeners.pop(key, None)
            self._leave(loop)

        return stop

    def open_inbox(self, take: Callable[[str], None]) -> InboxChannel:
        """Call `take` with what is sent to a channel of one's own.

        When it has begun to be message, at first or again, whoever waits for jobs is told to look.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()

        def stop(channel: InboxChannel) -> None:
            if channel in self._inboxes:
                self._inboxes.discard(channel)
                number, channel.number = channel.number, 0
                if self._connection is not None and number:
                    self._start(self._close_channel(self._connection, channel, number))
                self._leave(loop)

        channel = InboxChannel(self._cache.secret, take, stop)
        self._inboxes.add(channel)
        if self._connection is not None:
            self._start(self._open_channels(self._connection, [channel]))
        self._wake()
        return channel

    def _wake(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._task is None:
            self._task = self._start(self._run() if self._client.address.listen else self._poll())

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._listeners and not self._inboxes and self._task is not None and not loop.is_closed():
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._idle_timer = loop.call_later(LINGER_S, self._stop_listening)

    async def close(self) -> None:
        """Tell what is untold, and end it all. Twice is harmless."""
        self._closed = True
        self._listeners.clear()
        self._inboxes.clear()
        self._urgent.set()
        if self._sending is not None:
            await asyncio.wait([self._sending])
        self._stop_listening()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def _wanted(self) -> set[Hint]:
        return {hint for _, hints in self._listeners.values() for hint in hints}

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="holdfast hints")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @contextlib.asynccontextmanager
    async def _ask(self, connection: Any) -> AsyncGenerator[None]:
        """Ask the connection something; on a dead line it does not keep others from finding that out."""
        async with self._asking, asyncio.timeout(self._client.address.timeout_s):
            try:
                yield
            except AttributeError as error:
                # What the driver makes of a connection that is ended while a statement is on its way.
                if not connection.is_closed():
                    raise
                raise ConnectionResetError("the connection was ended") from error

    async def _listen_for_more(self, connection: Any) -> None:
        """Listen for what is wanted by now; whoever waits for it is told to look."""
        more = self._wanted - self._kinds
        self._kinds |= more
        try:
            async with self._ask(connection):
                for hint in more:
                    await connection.add_listener(channel_of(self._cache.secret, hint), self._received)
        except DRIVER_ERRORS:
            connection.terminate()  # It is lost, and the next one listens for everything.
        self.notify_all(more)

    async def _open_channels(self, connection: Any, notifications: Iterable[InboxChannel]) -> None:
        """Open channels. The lock says to all that they are message: it goes with the connection."""
        try:
            for channel in notifications:
                number = random.SystemRandom().getrandbits(63) or 1
                async with self._ask(connection):
                    await connection.execute(self._client.sql["lock_inbox"], number)
                    await connection.add_listener(channel.channel_of(number), channel.message)
                if channel not in self._inboxes:
                    await self._close_channel(connection, channel, number)
                elif connection is self._connection:
                    # Not before: what is sent where nobody listens yet is lost.
                    channel.number = number
        except DRIVER_ERRORS:
            connection.terminate()
        self.notify_all((Hint.READY,))

    async def _close_channel(self, connection: Any, channel: InboxChannel, number: int) -> None:
        try:
            async with self._ask(connection):
                await connection.execute(self._client.sql["unlock_inbox"], number)
                await connection.remove_listener(channel.channel_of(number), channel.message)
        except DRIVER_ERRORS:
            connection.terminate()

    def _stop_listening(self) -> None:
        if not self._listeners and not self._inboxes and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        """Stay connected, whatever happens, until canceled."""
        pause_s = FIRST_PAUSE_S
        while True:
            connection: Any = None
            try:
                connection = await self._client.connect()
                lost = _watched(connection)
                # Where the schema was replaced, its channels have other names: listen anew, and let all look.
                self._cache.watchers[self] = partial(_end, asyncio.get_running_loop(), lost)
                self._kinds = self._wanted
                async with self._ask(connection):
                    for hint in self._kinds:
                        await connection.add_listener(channel_of(self._cache.secret, hint), self._received)
                self._connection = connection
                await self._open_channels(connection, list(self._inboxes))
                if not self._wanted <= self._kinds:
                    await self._listen_for_more(connection)
                pause_s = FIRST_PAUSE_S
                self._warned = False
                self.notify_all()
                await self._watch(connection, lost)
                reason = "the connection was lost"
                # Whoever is told to look when we are back must not do so on a line as dead as this one.
                self._client.drop_idle()
            except StoreError as error:
                reason = str(error)
            except DRIVER_ERRORS as error:
                reason = str(error) or type(error).__name__
            finally:
                self._cache.watchers.pop(self, None)
                self._connection = None
                for channel in self._inboxes:
                    channel.number = 0
                if connection is not None:
                    connection.terminate()
            _log.log(logging.DEBUG if self._warned else logging.WARNING, "hints may be late: %s", reason)
            self._warned = True
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def _watch(self, connection: Any, lost: asyncio.Event) -> None:
        """Return when the connection has ended, or does not answer when asked for a sign of life."""
        timeout_s = self._client.address.timeout_s
        while not lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s / 2):
                    await lost.wait()
            if not lost.is_set():
                async with self._asking:
                    await connection.execute("SELECT 1", timeout=timeout_s / 2)

    async def _poll(self) -> None:
        while True:
            self.notify_all()
            await asyncio.sleep(POLL_S * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    def notify_all(self, hints: Iterable[Hint] = tuple(Hint)) -> None:
        """Everybody looks."""
        for hint in hints:
            self._note((hint, "", "", ""))
            self._deliver(Signal(hint))

    def _received(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        try:
            message = _decode(str(payload))
            if message.origin == self._origin:
                return
            record = message.record
            signals = [Signal(*h, None if record is None else rows.to_ended(record, *h[1:])) for h in message.hints]
        except (msgspec.MsgspecError, ValueError):
            # Whoever sent it may be newer than we are.
            self.notify_all()
            return
        for hint, signal in zip(message.hints, signals, strict=True):
            self._note(hint)
            self._deliver(signal)

    def _deliver(self, signal: Signal) -> None:
        for key, (listener, hints) in list(self._listeners.items()):
            if signal.hint in hints and key in self._listeners:
                try:
                    listener(signal)
                except Exception:  # noqa: BLE001 - One that fails takes nothing from the others.
                    _log.exception("a listener failed at %r", signal.hint.value)

    def deliver(self, signal: Signal) -> None:
        """Tell our own listeners alone."""
        self._deliver(signal)
