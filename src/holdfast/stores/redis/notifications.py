"""Notifications by PUBLISH and SUBSCRIBE, on a connection of their own.

While a subscription is in flight, its listener may already read the store, and a change may happen in
between. So when the server confirms a subscription, all its listeners are notified once: at the start, and after each
lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, cast

from redis.exceptions import ResponseError

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.store import Hint, Listener, Signal
from holdfast.stores.redis.client import RedisClient
from holdfast.stores.redis.connection import RedisConnection, pack
from holdfast.stores.redis.errors import REDIS_ERRORS

Decode = Callable[[Hint, bytes], Iterable[Signal]]
"""Turns a published message into signals."""

MIN_RECONNECT_S = 0.05
MAX_RECONNECT_S = 1.0
"""The first and the longest wait before connecting again."""

LINGER_S = 5.0
"""How long to keep a subscription after its last listener has left: the next one often comes soon."""

_log = logging.getLogger("holdfast")


class RedisListener:
    """The listeners of one store handle, in one event loop, and the connection that serves them."""

    def __init__(self, client: RedisClient, prefix: str, decode: Decode, *, linger_s: float = LINGER_S) -> None:
        self._client = client
        self._decode = decode
        self._linger_s = linger_s
        self._channels = {hint: f"{prefix}:{hint.value}".encode() for hint in Hint}
        self._hints = {channel: hint for hint, channel in self._channels.items()}
        self._inboxes: dict[bytes, Callable[[bytes], None]] = {}
        """Channels of single workers, and the functions that receive their messages."""
        self._listeners: dict[Hint, dict[object, Listener]] = {hint: {} for hint in Hint}
        self._subscriptions: _Subscriptions | None = None
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """The current task, and canceled ones that have not ended yet."""
        self._linger_timer: asyncio.TimerHandle | None = None
        self._left_at = 0.0
        self._is_down = False
        self._warned = False
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` in this event loop when one of `hints` is published. Returns a function that stops it.

        Nothing is missed: each time a subscription begins, the listener gets a `Signal` without an address.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        key = object()
        for hint in hints:
            self._listeners[hint][key] = listener
        self._start()

        def stop() -> None:
            for table in self._listeners.values():
                table.pop(key, None)
            self._left(loop)

        return stop

    def open_inbox(self, channel: bytes, receive: Callable[[bytes], None]) -> Callable[[], None]:
        """Call `receive` with each message on one worker's channel. Returns a function that stops it.

        Each time the subscription begins, workers that wait for jobs are notified.
        """
        loop = asyncio.get_running_loop()
        self._inboxes[channel] = receive
        self._start()

        def stop() -> None:
            self._inboxes.pop(channel, None)
            self._update_subscriptions()  # At once: a channel with a subscriber is sent jobs.
            self._left(loop)

        return stop

    def is_subscribed(self, channel: bytes) -> bool:
        """Whether the server has confirmed the subscription to a channel."""
        return self._subscriptions is not None and self._subscriptions.confirmed(channel)

    async def ready(self) -> None:
        """Return once the server has confirmed all subscriptions, or if it cannot be reached."""
        if not self._is_ready():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)

    async def close(self) -> None:
        """Stop all listeners and disconnect. Closing twice is harmless."""
        self._closed = True
        for table in self._listeners.values():
            table.clear()
        self._inboxes.clear()
        self._disconnect_if_unused()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # The connection -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._update_subscriptions()
        if self._task is None and self._wanted():
            self._is_down = False
            self._task = asyncio.get_running_loop().create_task(self._run(), name="holdfast notifications")
            self._tasks.add(self._task)
            self._task.add_done_callback(self._tasks.discard)

    def _left(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wake_if_ready()
        if self._task is not None and not loop.is_closed():
            self._left_at = loop.time()
            if self._linger_timer is None:
                self._linger_timer = loop.call_later(self._linger_s, self._stop_lingering, loop)

    async def _run(self) -> None:
        """Stay connected until canceled."""
        wait_s = MIN_RECONNECT_S
        while True:
            try:
                connection = await self._client.connect()
                subscriptions = _Subscriptions(connection, self._client.timeout_s)
                try:
                    await self._serve(connection, subscriptions)
                finally:
                    got_replies = subscriptions.got_replies
                    await subscriptions.close()
                # Reconnecting notifies all listeners. They must not use connections that are as dead as this one.
                await self._client.drop_connections()
                if got_replies:
                    wait_s = MIN_RECONNECT_S
                reason = "the connection was lost"
            except StoreError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001  # Never stop: without notifications everything takes longer.
                _log.exception("notifications failed with an unexpected error")
                reason = repr(error)
            self._lost(reason)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
            wait_s = min(2 * wait_s, MAX_RECONNECT_S)

    async def _serve(self, connection: RedisConnection, subscriptions: _Subscriptions) -> None:
        """Subscribe and pass messages on until the connection ends."""
        self._subscriptions = subscriptions
        self._is_down = False
        connection.on_reply = self._deliver  # A worker waits for the job: do not lose a turn of the event loop.
        self._update_subscriptions()
        while (message := await subscriptions.next()) is not None:
            if message[0] == b"message":
                hint = self._hints.get(message[1])
                if hint is not None:
                    self._received(hint, message[2])
            elif message[0] == b"subscribe" and subscriptions.confirm(message[1]):
                hint = self._hints.get(message[1], Hint.READY)
                self._warned = False
                self._notify(hint, (Signal(hint),))
                self._wake_if_ready()

    def _lost(self, reason: str) -> None:
        # One warning for each outage, however many attempts to connect fail.
        _log.log(logging.DEBUG if self._warned else logging.WARNING, "notifications may be late: %s", reason)
        self._warned = True
        self._subscriptions = None
        self._is_down = True
        self._wake_if_ready()

    def _stop_lingering(self, loop: asyncio.AbstractEventLoop) -> None:
        """End subscriptions without listeners, unless a listener left less than LINGER_S ago."""
        self._linger_timer = None
        left_s = self._left_at + self._linger_s - loop.time()
        if left_s > 0:
            self._linger_timer = loop.call_later(left_s, self._stop_lingering, loop)
        elif self._wanted():
            self._update_subscriptions()
        else:
            self._disconnect_if_unused()

    def _disconnect_if_unused(self) -> None:
        if not self._wanted() and self._task is not None:
            self._task.cancel()
            self._task = None
            self._subscriptions = None
            self._wake_if_ready()

    def _update_subscriptions(self) -> None:
        if self._subscriptions is not None:
            self._subscriptions.want(self._wanted())

    def _wanted(self) -> set[bytes]:
        return {self._channels[hint] for hint, table in self._listeners.items() if table} | self._inboxes.keys()

    def _is_ready(self) -> bool:
        if self._is_down or self._task is None:
            return True
        return self._subscriptions is not None and all(map(self._subscriptions.confirmed, self._wanted()))

    def _wake_if_ready(self) -> None:
        """Wake the callers of `ready`."""
        if self._waiting and self._is_ready():
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)

    # The listeners --------------------------------------------------------------------------------------------

    def _deliver(self, reply: Any) -> bool:
        """Pass a message on a worker's channel on. Returns whether it was one."""
        if not isinstance(reply, list) or reply[0] != b"message":
            return False
        _, channel, data = cast("list[bytes]", reply)
        receive = self._inboxes.get(channel)
        if receive is None:
            return False
        try:
            receive(data)
        except Exception:  # noqa: BLE001  # A newer version may have published it.
            _log.exception("cannot read a message with handed-off jobs: the worker will release them")
        return True

    def _received(self, hint: Hint, data: bytes) -> None:
        if not self._listeners[hint]:
            return  # The last listener left while the message was in flight.
        try:
            signals = tuple(self._decode(hint, data))
        except Exception:  # noqa: BLE001  # A newer version may have published it.
            _log.exception("cannot read a notification of %r: all its listeners are notified", hint.value)
            signals = (Signal(hint),)
        self._notify(hint, signals)

    def _notify(self, hint: Hint, signals: tuple[Signal, ...]) -> None:
        table = self._listeners[hint]
        for key, listener in list(table.items()):
            for signal in signals:
                if key not in table:
                    break  # A listener stopped it meanwhile.
                try:
                    listener(signal)
                except Exception:  # noqa: BLE001  # One failing listener must not affect the others.
                    _log.exception("a listener failed at %r", hint.value)


class _Subscriptions:
    """One connection with its subscriptions."""

    def __init__(self, connection: RedisConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._channels: set[bytes] = set()
        self._unconfirmed: dict[bytes, int] = {}
        """How many confirmations of each channel are still to come."""
        self.got_replies = False

    def want(self, channels: set[bytes]) -> None:
        """Subscribe to exactly these channels. Commands leave in the order of the calls."""
        added, removed = channels - self._channels, self._channels - channels
        self._channels = channels
        for channel in added:
            self._unconfirmed[channel] = self._unconfirmed.get(channel, 0) + 1
        commands = b"".join(_commands(added, removed))
        if commands:
            self._send(commands)

    def confirm(self, channel: bytes) -> bool:
        """Count a confirmation. Returns whether it was the last one expected and its channel is still wanted.

        An earlier one proves nothing: the server may have ended that subscription since.
        """
        self._unconfirmed[channel] -= 1
        return self.confirmed(channel)

    def confirmed(self, channel: bytes) -> bool:
        return channel in self._channels and not self._unconfirmed[channel]

    async def next(self) -> list[Any] | None:
        """The next message; None if the connection has ended, or if the server does not answer a PING."""
        pinged = False
        while True:
            try:
                message = await self._connection.read(self._timeout_s / 2)
            except TimeoutError:
                if pinged:
                    return None
                pinged = True
                self._send(_PING)
                continue
            except REDIS_ERRORS:
                return None
            if isinstance(message, ResponseError):
                # Most likely NOPERM: by default, a new user may not use any channel.
                raise StoreUnavailable(f"the server refuses to send notifications: {message}") from message
            self.got_replies = True
            pinged = False
            if isinstance(message, list):
                return cast("list[Any]", message)

    async def close(self) -> None:
        """Close the connection. Does not suspend."""
        await self._connection.abort()

    def _send(self, commands: bytes) -> None:
        with contextlib.suppress(*REDIS_ERRORS):  # `next` will notice.
            self._connection.send(commands)


_PING = pack("PING")


def _commands(added: Iterable[bytes], removed: Iterable[bytes]) -> Iterator[bytes]:
    # Subscribe first: without any subscription a RESP2 connection leaves the subscribed mode.
    if added:
        yield pack("SUBSCRIBE", *added)
    if removed:
        yield pack("UNSUBSCRIBE", *removed)
