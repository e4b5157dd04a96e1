"""Hints by PUBLISH and SUBSCRIBE, on a connection of their own.

A subscription travels to the server while its listener already looks at the store, and a change may fall in between.
So when the server has confirmed a subscription, everybody who waited for it is told to look again: once at the start,
and once after each lost connection.
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
from holdfast.stores.redis.client import Link
from holdfast.stores.redis.connection import Wire, pack
from holdfast.stores.redis.errors import TROUBLES

Decode = Callable[[Hint, bytes], Iterable[Signal]]
"""What a published message says."""

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
"""How long to wait before connecting again: at first, and at most."""

LINGER_S = 5.0
"""How long a subscription is kept after its last listener left, since the next one often comes soon."""

_log = logging.getLogger("holdfast")


class Ears:
    """The listeners of one store handle, in one event loop, and the connection that serves them."""

    def __init__(self, link: Link, prefix: str, decode: Decode, *, linger_s: float = LINGER_S) -> None:
        self._link = link
        self._decode = decode
        self._linger_s = linger_s
        self._channels = {hint: f"{prefix}:{hint.value}".encode() for hint in Hint}
        self._hints = {channel: hint for hint, channel in self._channels.items()}
        self._posts: dict[bytes, Callable[[bytes], None]] = {}
        """Channels that only one listens to, and what is called with their messages."""
        self._listeners: dict[Hint, dict[object, Listener]] = {hint: {} for hint in Hint}
        self._line: _Line | None = None
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Also those that are about to end."""
        self._relaxing: asyncio.TimerHandle | None = None
        self._left_at = 0.0
        self._down = False
        self._warned = False
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` in this event loop when one of `hints` was published; the answer ends it.

        Nothing is missed: a `Signal` without address comes when a subscription has begun, at first or again.
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
            self._leave(loop)

        return stop

    def post(self, channel: bytes, take: Callable[[bytes], None]) -> Callable[[], None]:
        """Call `take` with what is published on a channel of one's own; the answer ends it.

        When the channel has begun to be heard, at first or again, whoever waits for jobs is told to look.
        """
        loop = asyncio.get_running_loop()
        self._posts[channel] = take
        self._start()

        def stop() -> None:
            self._posts.pop(channel, None)
            self._tune()  # At once: whoever hears it is sent jobs.
            self._leave(loop)

        return stop

    def hears(self, channel: bytes) -> bool:
        """Whether the server has confirmed a channel of one's own."""
        return self._line is not None and self._line.confirmed(channel)

    async def ready(self) -> None:
        """Return when the server has confirmed all that is wanted now, or when it cannot be reached."""
        if not self._settled():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)

    async def close(self) -> None:
        """End it all; listeners hear nothing more. Twice is harmless."""
        self._closed = True
        for table in self._listeners.values():
            table.clear()
        self._posts.clear()
        self._rest()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # The connection -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._tune()
        if self._task is None and self._wanted():
            self._down = False
            self._task = asyncio.get_running_loop().create_task(self._run(), name="holdfast hints")
            self._tasks.add(self._task)
            self._task.add_done_callback(self._tasks.discard)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self._release()
        if self._task is not None and not loop.is_closed():
            self._left_at = loop.time()
            if self._relaxing is None:
                self._relaxing = loop.call_later(self._linger_s, self._relax, loop)

    async def _run(self) -> None:
        """Stay connected, whatever happens, until canceled."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                wire = await self._link.dial()
                line = _Line(wire, self._link.timeout_s)
                try:
                    await self._serve(wire, line)
                finally:
                    heard = line.heard_anything
                    await line.close()
                # Whoever is told to look when we are back must not do so on a line as dead as this one.
                await self._link.distrust()
                if heard:
                    pause_s = FIRST_PAUSE_S
                reason = "the connection was lost"
            except StoreError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001  # Whatever it is: without hints everything takes longer.
                _log.exception("hints failed in a way that nobody expected")
                reason = repr(error)
            self._lost(reason)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def _serve(self, wire: Wire, line: _Line) -> None:
        """Subscribe, and pass on what comes, until the connection ends."""
        self._line = line
        self._down = False
        wire.at_once = self._came  # Somebody waits for the job: not even a turn of the event loop is lost.
        self._tune()
        while (message := await line.next()) is not None:
            if message[0] == b"message":
                hint = self._hints.get(message[1])
                if hint is not None:
                    self._heard(hint, message[2])
            elif message[0] == b"subscribe" and line.confirm(message[1]):
                hint = self._hints.get(message[1], Hint.READY)
                self._warned = False
                self._tell(hint, (Signal(hint),))
                self._release()

    def _lost(self, reason: str) -> None:
        # One line for each outage, however often we try.
        _log.log(logging.DEBUG if self._warned else logging.WARNING, "hints may be late: %s", reason)
        self._warned = True
        self._line = None
        self._down = True
        self._release()

    def _relax(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let go of what nobody has come back for, unless somebody was there since."""
        self._relaxing = None
        left = self._left_at + self._linger_s - loop.time()
        if left > 0:
            self._relaxing = loop.call_later(left, self._relax, loop)
        elif self._wanted():
            self._tune()
        else:
            self._rest()

    def _rest(self) -> None:
        """End the connection if nobody has come back."""
        if not self._wanted() and self._task is not None:
            self._task.cancel()
            self._task = None
            self._line = None
            self._release()

    def _tune(self) -> None:
        """Have the server send just what is wanted."""
        if self._line is not None:
            self._line.want(self._wanted())

    def _wanted(self) -> set[bytes]:
        return {self._channels[hint] for hint, table in self._listeners.items() if table} | self._posts.keys()

    def _settled(self) -> bool:
        if self._down or self._task is None:
            return True
        return self._line is not None and all(self._line.confirmed(channel) for channel in self._wanted())

    def _release(self) -> None:
        """Let those go on who wait for `ready`."""
        if self._waiting and self._settled():
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)

    # The listeners --------------------------------------------------------------------------------------------

    def _came(self, reply: Any) -> bool:
        """Pass on what came on a channel of one's own; whether that is what it was."""
        if not isinstance(reply, list) or reply[0] != b"message":
            return False
        _, channel, data = cast("list[bytes]", reply)
        take = self._posts.get(channel)
        if take is None:
            return False
        try:
            take(data)
        except Exception:  # noqa: BLE001  # Whoever published it may be newer than we are.
            _log.exception("jobs that were handed over cannot be read: they are given back")
        return True

    def _heard(self, hint: Hint, data: bytes) -> None:
        if not self._listeners[hint]:
            return  # It was on its way when the last one left.
        try:
            signals = tuple(self._decode(hint, data))
        except Exception:  # noqa: BLE001  # Whoever published it may be newer than we are.
            _log.exception("a hint %r that cannot be read: everybody looks", hint.value)
            signals = (Signal(hint),)
        self._tell(hint, signals)

    def _tell(self, hint: Hint, signals: tuple[Signal, ...]) -> None:
        table = self._listeners[hint]
        for key, listener in list(table.items()):
            for signal in signals:
                if key not in table:
                    break  # It was ended by another listener, or by itself.
                try:
                    listener(signal)
                except Exception:  # noqa: BLE001  # One that fails takes nothing from the others.
                    _log.exception("a listener failed at %r", hint.value)


class _Line:
    """One connection with its subscriptions."""

    def __init__(self, wire: Wire, timeout_s: float) -> None:
        self._wire = wire
        self._timeout_s = timeout_s
        self._asked: set[bytes] = set()
        self._due: dict[bytes, int] = {}
        """How many confirmations are still to come."""
        self.heard_anything = False

    def want(self, channels: set[bytes]) -> None:
        """Subscribe to just these. The words leave in the order of the calls."""
        more, less = channels - self._asked, self._asked - channels
        self._asked = channels
        for channel in more:
            self._due[channel] = self._due.get(channel, 0) + 1
        words = b"".join(_words(more, less))
        if words:
            self._send(words)

    def confirm(self, channel: bytes) -> bool:
        """Note a confirmation; whether it was the last one due and its channel is still wanted.

        An earlier one says nothing: the server may have ended that subscription since.
        """
        self._due[channel] -= 1
        return self.confirmed(channel)

    def confirmed(self, channel: bytes) -> bool:
        return channel in self._asked and not self._due[channel]

    async def next(self) -> list[Any] | None:
        """The next message; None when the connection has ended, or is silent although asked for a sign of life."""
        silent = False
        while True:
            try:
                message = await self._wire.read(self._timeout_s / 2)
            except TimeoutError:
                if silent:
                    return None
                silent = True
                self._send(_PING)
                continue
            except TROUBLES:
                return None
            if isinstance(message, ResponseError):
                # Most likely NOPERM: a new user may use no channel at all.
                raise StoreUnavailable(f"the server refuses to send hints: {message}") from message
            self.heard_anything = True
            silent = False
            if isinstance(message, list):
                return cast("list[Any]", message)

    async def close(self) -> None:
        """Let go of the connection. Does not suspend."""
        await self._wire.hang_up()

    def _send(self, words: bytes) -> None:
        with contextlib.suppress(*TROUBLES):  # Whoever reads will notice.
            self._wire.send(words)


_PING = pack("PING")


def _words(more: Iterable[bytes], less: Iterable[bytes]) -> Iterator[bytes]:
    # In this order: at no time is there no subscription at all, as RESP2 would then leave the mode for them.
    if more:
        yield pack("SUBSCRIBE", *more)
    if less:
        yield pack("UNSUBSCRIBE", *less)
