"""Hints: a few keys are watched, and the log says what has changed. [CLAIM-3, RESULT-2]

Every change with an event adds to one of a few counters. Every other change that listeners must know of adds to another
one. A handle that has listeners watches them all. When one changes, it reads the new entries of the log and makes a
signal of each event. If there are very many, or if a watch was lost, it sends one hint of each kind instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from holdfast.core.errors import HoldfastError
from holdfast.core.events import Event
from holdfast.store import Hint, Listener, Signal
from holdfast.stores.foundationdb import entries
from holdfast.stores.foundationdb.database import FdbError, FdbWatch
from holdfast.stores.foundationdb.keyspace import ACTIVITY_PARTS
from holdfast.stores.foundationdb.log import end_of, read_entries
from holdfast.stores.foundationdb.transactions import Transactions
from holdfast.stores.foundationdb.unit_of_work import Work

MAX_ENTRIES = 500
"""With more new entries than this, one hint of each kind stands for all."""
RETRY_S = 0.2
LINGER_S = 5.0
"""How long to watch after the last listener has left: the next one often comes soon."""

_READY = frozenset({"enqueued", "retried", "released", "expired", "replayed"})
_DONE = frozenset({"completed", "failed", "canceled"})

_log = logging.getLogger("holdfast")


class Notifications:
    """The listeners of one handle, in one event loop."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._listeners: dict[object, tuple[Listener, frozenset[Hint]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._position: bytes | None = None
        """Listeners were notified of events up to here. None: notify them of everything."""
        self._watches: list[FdbWatch] = []

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` in this event loop. Returns a function that stops it."""
        key = object()
        loop = asyncio.get_running_loop()
        self._listeners[key] = (listener, frozenset(hints))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="hints of foundationdb")

        def stop() -> None:
            if self._listeners.pop(key, None) is not None and not self._listeners and self._task is not None:
                self._timer = loop.call_later(LINGER_S, self._task.cancel)

        return stop

    async def close(self) -> None:
        """Stop all listeners."""
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        self._position = None
        try:
            while True:
                try:
                    await self._round()
                except (FdbError, HoldfastError) as error:
                    _log.debug("hints of foundationdb were interrupted: %s", error)
                    self._position = None
                    await asyncio.sleep(RETRY_S)
        finally:
            self._cancel_watches()

    def _cancel_watches(self) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches = []

    async def _round(self) -> None:
        """Watch, notify of what has changed before, and wait for the next change."""
        signals = await self._look()
        try:
            self._notify(signals)
            await _first(self._watches)
        finally:
            self._cancel_watches()

    async def _look(self) -> list[Signal]:
        """The signals of what has changed, and watches for what changes from then on."""
        keys = self._transactions.keys
        transaction = self._transactions.database.transaction()
        while True:
            try:
                work = await self._transactions.begin(transaction)
                signals, position = await self._new_signals(work)
                notified = await transaction.get(keys.meta_of("notified"), snapshot=True)
                watched = [*(keys.activity_part(part) for part in range(ACTIVITY_PARTS)), keys.meta_of("notified")]
                self._watches = [transaction.watch(key) for key in watched]
                await transaction.commit()
                if notified != self._notified:
                    self._notified = notified
                    signals += [Signal(Hint.READY), Signal(Hint.DONE)]
                self._position = position
                return signals
            except FdbError as error:
                self._cancel_watches()
                await transaction.on_error(error)

    _notified: bytes | None = None

    async def _new_signals(self, work: Work) -> tuple[list[Signal], bytes]:
        end = await end_of(work)
        position = self._position
        if position is None or position < work.trimmed:
            return [Signal(hint) for hint in Hint], end
        if position >= end:
            return [], position
        found = await read_entries(work, position, MAX_ENTRIES)
        if len(found) >= MAX_ENTRIES:
            return [Signal(hint) for hint in Hint], end
        signals: dict[tuple[Hint, str, str, str], Signal] = {}
        for at, entry in found:
            for place, event in entries.to_events(at, entry):
                if entries.at_number(at, place) > position:
                    for signal in _signals_of(event):
                        signals[signal.hint, signal.tenant, signal.queue, signal.id] = signal
        signals[Hint.EVENTS, "", "", ""] = Signal(Hint.EVENTS)
        return list(signals.values()), end

    def _notify(self, signals: list[Signal]) -> None:
        for listener, hints in list(self._listeners.values()):
            for signal in signals:
                if signal.hint in hints:
                    listener(signal)


def _signals_of(event: Event) -> list[Signal]:
    if event.kind in _READY:
        return [Signal(Hint.READY, event.tenant, event.queue)]
    if event.kind not in _DONE:
        return []
    done = Signal(Hint.DONE, event.tenant, event.queue, event.job_id)
    if event.kind == "canceled":
        return [done, Signal(Hint.CANCELED, event.tenant, event.queue, event.job_id)]
    return [done]


async def _first(watches: list[FdbWatch]) -> None:
    """Wait until one of them is done."""
    tasks = [asyncio.ensure_future(_wait(watch)) for watch in watches]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _wait(watch: FdbWatch) -> None:
    await watch
