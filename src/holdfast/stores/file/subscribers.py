"""The listeners of one process: callbacks in its event loops, and one FIFO for each loop that has any.

Changes by this process reach the callbacks directly, changes by other processes through the FIFOs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from holdfast.store import Hint, Listener, Signal
from holdfast.stores.file.notifications import FifoListener, FifoNotifier, mask_of, running

LINGER_S = 5.0
"""How long to keep asking for a hint after its last listener has left: the next one often comes soon, and renaming the
FIFO makes the next commit flush the directory too."""


class Subscribers:
    """The callbacks to notify of changes. Safe from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._callbacks: dict[object, tuple[asyncio.AbstractEventLoop, Listener, frozenset[Hint]]] = {}
        self._fifos: dict[asyncio.AbstractEventLoop, FifoListener] = {}
        self._lock = threading.Lock()
        self._narrowing: set[asyncio.AbstractEventLoop] = set()
        """Event loops with a timer that drops hints without a listener."""
        self._notifier = FifoNotifier(folder, self._is_own)
        self.closed = False
        """Set it before the FIFOs are closed: no listener opens a new one."""

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` in the current event loop after changes. Returns the function that ends this."""
        loop = asyncio.get_running_loop()
        key = object()
        self._callbacks[key] = (loop, listener, frozenset(hints))
        self._update(loop)

        def stop() -> None:
            if self._callbacks.pop(key, None) is not None:
                self._update(loop)

        return stop

    def notify(self, signals: Sequence[Signal]) -> None:
        """Notify the listeners of this process, then the other processes. From the writer's thread."""
        for loop, listener, hints in list(self._callbacks.values()):
            wanted = [signal for signal in signals if signal.hint in hints]
            if wanted:
                with contextlib.suppress(RuntimeError):  # The event loop has been closed.
                    loop.call_soon_threadsafe(_deliver, listener, wanted)
        with contextlib.suppress(OSError):
            self._notifier.notify(signals)

    def close_fifos(self) -> None:
        """Stop listening to other processes."""
        with self._lock:
            for fifo in self._fifos.values():
                fifo.close()
            self._fifos.clear()

    def close_notifier(self) -> None:
        """Close the FIFOs of other processes, once nothing is sent any more."""
        self._notifier.close()

    def forked(self) -> None:
        """In the child of a fork: close the descriptors of the parent."""
        self._notifier.close()
        for fifo in self._fifos.values():
            fifo.forked()

    def _is_own(self, name: str) -> bool:
        with self._lock:
            return any(fifo.path.name == name for fifo in self._fifos.values())

    def _update(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the FIFO of `loop` ask for the hints of its listeners. Unwanted hints are dropped later."""
        with self._lock:
            if self.closed:
                return
            mask, fifo = self._wanted(loop), self._fifos.get(loop)
            if mask and fifo is None:
                self._drop_dead()
                fifo = self._fifos[loop] = FifoListener(
                    self._folder, loop, lambda signals: self._received(loop, signals)
                )
            if fifo is None:
                return
            fifo.want(fifo.mask | mask)
            if fifo.mask == mask:
                return
        if running() is not loop:
            self._narrow(loop)
        elif loop not in self._narrowing:
            self._narrowing.add(loop)
            loop.call_later(LINGER_S, self._narrow, loop)

    def _narrow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask for no more than the listeners want, and close a FIFO without any."""
        with self._lock:
            self._narrowing.discard(loop)
            mask, fifo = self._wanted(loop), self._fifos.get(loop)
            if fifo is not None and mask:
                fifo.want(mask)
            elif fifo is not None:
                del self._fifos[loop]
                fifo.close()

    def _drop_dead(self) -> None:
        """Close the FIFOs of event loops that were closed first."""
        for loop in [loop for loop, fifo in self._fifos.items() if fifo.is_dead]:
            self._fifos.pop(loop).close()
            self._narrowing.discard(loop)

    def _wanted(self, loop: asyncio.AbstractEventLoop) -> int:
        owned = [hints for owner, _, hints in list(self._callbacks.values()) if owner is loop]
        return mask_of({hint for hints in owned for hint in hints})

    def _received(self, loop: asyncio.AbstractEventLoop, signals: Sequence[Signal]) -> None:
        for owner, listener, hints in list(self._callbacks.values()):
            if owner is loop:
                # A separate callback for each: if one raises, the others still run.
                loop.call_soon(_deliver, listener, [signal for signal in signals if signal.hint in hints])


def _deliver(listener: Listener, signals: list[Signal]) -> None:
    for signal in signals:
        listener(signal)
