"""Hints to the listeners of this process, sent after each change. [CLAIM-3, RESULT-2]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from holdfast.store import Hint, Listener, Signal
from holdfast.tables.log import TableLog


class LocalNotifier:
    """Collects the hints of one operation and sends them to the listeners, each in its own event loop."""

    def __init__(self, log: TableLog) -> None:
        self._log = log
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, Listener, frozenset[Hint]]] = {}
        self._pending: set[tuple[Hint, str, str, str]] = set()
        self._wanted: frozenset[Hint] = frozenset()
        """The hints that any listener asks for."""

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` in the current event loop. Call the returned function to stop."""
        subscription = object()
        self._listeners[subscription] = (asyncio.get_running_loop(), listener, frozenset(hints))
        self._update_wanted()

        def stop() -> None:
            if self._listeners.pop(subscription, None) is not None:
                self._update_wanted()

        return stop

    def _update_wanted(self) -> None:
        self._wanted = frozenset(hint for _, _, hints in list(self._listeners.values()) for hint in hints)

    def add(self, hint: Hint, tenant: str = "", queue: str = "", id_: str = "") -> None:
        """Add a hint, which `send` sends."""
        if hint in self._wanted:
            self._pending.add((hint, tenant, queue, id_))

    def send(self) -> None:
        """Send the pending hints. Call it at the end of each operation, still under the lock."""
        if self._log.grew:
            self._log.grew = False
            self.add(Hint.EVENTS)
        if not self._pending:
            return
        pending, self._pending = self._pending, set()
        for loop, listener, hints in list(self._listeners.values()):
            signals = [Signal(*hint) for hint in pending if hint[0] in hints]
            if signals and not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, listener, signals)


def _deliver(listener: Listener, signals: list[Signal]) -> None:
    for signal in signals:
        listener(signal)
