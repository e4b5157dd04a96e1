"""Hints by LISTEN: `Listener` receives the notifications of a handle, on a connection of its own.

The connection is made for the first listener and closed soon after the last one has left. After each connect all
listeners are notified to read for themselves: hints may have been missed.
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
from holdfast.store import Hint, Signal
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.stores.postgres.errors import DRIVER_ERRORS
from holdfast.stores.postgres.lanes import LaneCache
from holdfast.stores.postgres.notifications import Notification, channel_of

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
LINGER_S = 1.0
"""How long the connection is kept after its last listener has left: the next one often comes soon."""
POLL_S = 0.25
"""How often listeners are notified to read if there is no LISTEN (`listen=0`)."""

_log = logging.getLogger("holdfast")
_decode = msgspec.json.Decoder(Notification).decode


class InboxChannel:
    """The channel of one worker's inbox. `take` is called with each payload."""

    def __init__(self, secret: str, take: Callable[[str], None], stop: Callable[[InboxChannel], None]) -> None:
        self.take = take
        self.number = 0
        """The number of the inbox: a new one with each connection, 0 while there is no connection."""
        self._secret = secret
        self._stop = stop
        self._stopped = False

    @property
    def channel(self) -> str:
        return self.channel_of(self.number)

    def channel_of(self, number: int) -> str:
        return f"hfp{number:016x}{self._secret}"

    def stop(self) -> None:
        """Receive nothing more. Calling it twice is harmless."""
        self._stopped = True
        self._stop(self)

    def receive(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        if not self._stopped:
            self.take(str(payload))


class Listener:
    """The listeners of one handle, in one event loop."""

    def __init__(self, client: PostgresClient, cache: LaneCache) -> None:
        self.origin = uuid.uuid4().hex[:12]
        """Names this handle in its notifications."""
        self._client = client
        self._cache = cache
        self._connection: Any = None
        self._kinds: set[Hint] = set()
        """The kinds of hints that the connection listens for."""
        self._asking = asyncio.Lock()
        """A connection runs one statement at a time."""
        self._listeners: dict[object, tuple[Callable[[Signal], None], frozenset[Hint]]] = {}
        self._inboxes: set[InboxChannel] = set()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned = False
        self._closed = False
        self._linger: asyncio.TimerHandle | None = None

    def listen(self, listener: Callable[[Signal], None], hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` in this event loop for each of these hints. Call the returned function to stop."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        key = object()
        self._listeners[key] = (listener, frozenset(hints))
        if self._connection is not None and not self._wanted <= self._kinds:
            self._start(self._listen_for_more(self._connection))
        self._connect_soon()

        def stop() -> None:
            self._listeners.pop(key, None)
            self._leave(loop)

        return stop

    def open_inbox(self, take: Callable[[str], None]) -> InboxChannel:
        """Call `take` with each payload that is sent to a channel of this inbox alone.

        Each time it starts to listen, the listeners for READY are notified to read.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()

        def stop(inbox: InboxChannel) -> None:
            if inbox in self._inboxes:
                self._inboxes.discard(inbox)
                number, inbox.number = inbox.number, 0
                if self._connection is not None and number:
                    self._start(self._close_inbox(self._connection, inbox, number))
                self._leave(loop)

        inbox = InboxChannel(self._cache.secret, take, stop)
        self._inboxes.add(inbox)
        if self._connection is not None:
            self._start(self._open_inboxes(self._connection, [inbox]))
        self._connect_soon()
        return inbox

    def deliver(self, signal: Signal) -> None:
        """Notify the listeners of this handle alone."""
        for key, (listener, hints) in list(self._listeners.items()):
            if signal.hint in hints and key in self._listeners:
                try:
                    listener(signal)
                except Exception:  # noqa: BLE001 - A listener that fails does not affect the others.
                    _log.exception("a listener failed at %r", signal.hint.value)

    async def close(self) -> None:
        """Stop everything. Calling it twice is harmless."""
        self._closed = True
        self._listeners.clear()
        self._inboxes.clear()
        self._disconnect()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # The connection -------------------------------------------------------------------------------------------

    def _connect_soon(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._task is None:
            self._task = self._start(self._run() if self._client.address.listen else self._poll())

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._listeners and not self._inboxes and self._task is not None and not loop.is_closed():
            if self._linger is not None:
                self._linger.cancel()
            self._linger = loop.call_later(LINGER_S, self._disconnect)

    def _disconnect(self) -> None:
        if not self._listeners and not self._inboxes and self._task is not None:
            self._task.cancel()
            self._task = None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="holdfast hints")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self) -> None:
        """Stay connected until canceled."""
        pause_s = FIRST_PAUSE_S
        while True:
            connection: Any = None
            try:
                connection = await self._client.connect()
                lost = _watched(connection)
                # If the schema is replaced, its channels have other names: then connect again.
                self._cache.watchers[self] = partial(_end, asyncio.get_running_loop(), lost)
                self._kinds = self._wanted
                async with self._ask(connection):
                    for hint in self._kinds:
                        await connection.add_listener(channel_of(self._cache.secret, hint), self._receive)
                self._connection = connection
                await self._open_inboxes(connection, list(self._inboxes))
                if not self._wanted <= self._kinds:
                    await self._listen_for_more(connection)
                pause_s = FIRST_PAUSE_S
                self._warned = False
                self._notify_all()
                await self._watch(connection, lost)
                reason = "the connection was lost"
                # Listeners read after the reconnect, and must not use other dead connections then.
                self._client.drop_idle()
            except StoreError as error:
                reason = str(error)
            except DRIVER_ERRORS as error:
                reason = str(error) or type(error).__name__
            finally:
                self._cache.watchers.pop(self, None)
                self._connection = None
                for inbox in self._inboxes:
                    inbox.number = 0
                if connection is not None:
                    connection.terminate()
            _log.log(logging.DEBUG if self._warned else logging.WARNING, "hints may be late: %s", reason)
            self._warned = True
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def _watch(self, connection: Any, lost: asyncio.Event) -> None:
        """Return when the connection has ended. Raises if it does not answer in time."""
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
            self._notify_all()
            await asyncio.sleep(POLL_S * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    # Channels -------------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> set[Hint]:
        return {hint for _, hints in self._listeners.values() for hint in hints}

    @contextlib.asynccontextmanager
    async def _ask(self, connection: Any) -> AsyncGenerator[None]:
        """Use the connection alone, for a limited time: if it is dead, other statements must find out too."""
        async with self._asking, asyncio.timeout(self._client.address.timeout_s):
            try:
                yield
            except AttributeError as error:
                # The driver raises it if a connection ends during a statement.
                if not connection.is_closed():
                    raise
                raise ConnectionResetError("the connection was ended") from error

    async def _listen_for_more(self, connection: Any) -> None:
        """Listen for the kinds that are wanted by now, and notify their listeners to look."""
        more = self._wanted - self._kinds
        self._kinds |= more
        try:
            async with self._ask(connection):
                for hint in more:
                    await connection.add_listener(channel_of(self._cache.secret, hint), self._receive)
        except DRIVER_ERRORS:
            connection.terminate()  # It is lost, and the next one listens for everything.
        self._notify_all(more)

    async def _open_inboxes(self, connection: Any, inboxes: Iterable[InboxChannel]) -> None:
        """Listen on these channels. The advisory lock shows that the inbox is read. It ends with the connection."""
        try:
            for inbox in inboxes:
                number = random.SystemRandom().getrandbits(63) or 1
                async with self._ask(connection):
                    await connection.execute(self._client.sql["lock_inbox"], number)
                    await connection.add_listener(inbox.channel_of(number), inbox.receive)
                if inbox not in self._inboxes:
                    await self._close_inbox(connection, inbox, number)
                elif connection is self._connection:
                    # Not earlier: a payload that is sent before LISTEN is lost.
                    inbox.number = number
        except DRIVER_ERRORS:
            connection.terminate()
        self._notify_all((Hint.READY,))

    async def _close_inbox(self, connection: Any, inbox: InboxChannel, number: int) -> None:
        try:
            async with self._ask(connection):
                await connection.execute(self._client.sql["unlock_inbox"], number)
                await connection.remove_listener(inbox.channel_of(number), inbox.receive)
        except DRIVER_ERRORS:
            connection.terminate()

    # Signals --------------------------------------------------------------------------------------------------

    def _notify_all(self, hints: Iterable[Hint] = tuple(Hint)) -> None:
        """Notify all listeners of these kinds to look for themselves."""
        for hint in hints:
            self._cache.note_hint(hint, "", "")
            self.deliver(Signal(hint))

    def _receive(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        try:
            message = _decode(str(payload))
            if message.origin == self.origin:
                return
            record = message.record
            signals = [Signal(*h, None if record is None else rows.to_ended(record, *h[1:])) for h in message.hints]
        except (msgspec.MsgspecError, ValueError):
            # A newer version may have sent it.
            self._notify_all()
            return
        for (hint, tenant, queue, _), signal in zip(message.hints, signals, strict=True):
            self._cache.note_hint(hint, tenant, queue)
            self.deliver(signal)


def _watched(connection: Any) -> asyncio.Event:
    """An event that is set when the connection has ended."""
    lost = asyncio.Event()

    def ended(_: object) -> None:
        lost.set()

    connection.add_termination_listener(ended)
    return lost


def _end(loop: asyncio.AbstractEventLoop, lost: asyncio.Event) -> None:
    """Treat the connection of this event, which belongs to that loop, as lost."""
    with contextlib.suppress(RuntimeError):  # The loop is closed.
        loop.call_soon_threadsafe(lost.set)
