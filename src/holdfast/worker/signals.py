"""SIGTERM and SIGINT in an event loop: the first signal asks to stop, the second to stop at once.

Python keeps one handler for each signal, and other code needs it, too: a web server around the worker, for example.

    installed before                                   what this module does
    SIG_DFL, default_int_handler, asyncio.Runner's     replaces it
    another Python handler                             replaces it, and calls it afterwards
    one that was set through the event loop            leaves it alone: it cannot be called from outside
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

from holdfast.telemetry.logging import get_logger

SIGNALS = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, FrameType | None], Any] | int | None

_callbacks: dict[object, Callable[[], None]] = {}
_installed: dict[int, tuple[Handler, Handler]] = {}
"""By signal: the handler installed here, and the one before it."""

_log = get_logger(__name__)


@contextmanager
def on_signal(callback: Callable[[], None]) -> Generator[None]:
    """Call `callback` in the running loop at each signal inside the block, then restore what was before.

    Several blocks may be open in one loop; each callback is called. Outside the main thread it installs nothing:
    Python delivers signals only to the main thread. A handler that other code has installed meanwhile stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    token = object()
    if not _callbacks:
        for number in SIGNALS:
            _install(number, asyncio.get_running_loop())
    _callbacks[token] = callback
    try:
        yield
    finally:
        del _callbacks[token]
        if not _callbacks:
            for number in list(_installed):
                _restore(number, asyncio.get_running_loop())


@contextmanager
def stop_event() -> Generator[asyncio.Event]:
    """An event that the first signal sets.

    with stop_event() as stop:
        await maintain(url, stop=stop)
    """
    event = asyncio.Event()
    with on_signal(event.set):
        yield event


def exit_early(number: int, frame: FrameType | None) -> None:
    """A handler for programs: exit with 0 while nothing else handles the signal. `on_signal` replaces it."""
    del number, frame
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    sys.exit(0)


def _install(number: int, loop: asyncio.AbstractEventLoop) -> None:
    before = signal.getsignal(number)
    if before is None or _is_of_loop(before, loop):
        name = signal.Signals(number).name
        _log.warning("the program has its own handler in the event loop; stop() or a cancel ends this", signal=name)
        return
    then = None if _is_default(before) else cast("Callable[[int, FrameType | None], Any]", before)

    def ours(signum: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(_call_all)
        if then is not None:
            then(signum, frame)

    with _held_back(number):
        # Without it, the loop could start waiting between the signal and its handler, and not wake up.
        loop.add_signal_handler(number, _woken)
        signal.signal(number, ours)
    _installed[number] = ours, before


def _restore(number: int, loop: asyncio.AbstractEventLoop) -> None:
    ours, before = _installed.pop(number)
    current = signal.getsignal(number)
    if not _is_of_loop(current, loop):
        with _held_back(number):
            loop.remove_signal_handler(number)
            signal.signal(number, before if current is ours else current)


@contextmanager
def _held_back(number: int) -> Generator[None]:
    """Delay a signal inside the block until its end."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _is_default(handler: Handler) -> bool:
    """Whether the default handler of the signal is installed."""
    if not callable(handler) or handler in (signal.default_int_handler, exit_early):
        return True
    return isinstance(handler, partial) and isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)


def _is_of_loop(handler: Handler, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether `loop.add_signal_handler` installed it: its module is in the package of the loop."""
    own = type(loop).__module__.partition(".")[0]
    return getattr(handler, "__module__", "").partition(".")[0] in (own, "asyncio") and not _is_default(handler)


def _woken() -> None:
    pass


def _call_all() -> None:
    for callback in list(_callbacks.values()):
        callback()
