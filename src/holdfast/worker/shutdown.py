"""SIGTERM and SIGINT for whatever runs in an event loop: the first asks to end, the second to end at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_callbacks: dict[object, Callable[[], None]] = {}
_before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}


@contextmanager
def on_signal(callback: Callable[[], None]) -> Generator[None]:
    """Call `callback` in the running loop at each signal inside the block, then restore what was before.

    Several blocks may be open in one loop; each is called. In another thread than the main one nothing is installed:
    Python delivers signals to the main thread alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    token = object()
    if not _callbacks:
        for number in SIGNALS:
            _before[number] = signal.getsignal(number)
            loop.add_signal_handler(number, _call_all)
    _callbacks[token] = callback
    try:
        yield
    finally:
        del _callbacks[token]
        if not _callbacks:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
                before = _before.pop(number)
                # None: it was not installed from Python and cannot be put back.
                if before is not None:
                    signal.signal(number, before)


@contextmanager
def stop_event() -> Generator[asyncio.Event]:
    """An event that the first signal sets.

    with stop_event() as stop:
        await maintain(url, stop=stop)
    """
    event = asyncio.Event()
    with on_signal(event.set):
        yield event


def _call_all() -> None:
    for callback in list(_callbacks.values()):
        callback()
