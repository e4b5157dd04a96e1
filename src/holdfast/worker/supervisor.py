"""Keeps several worker processes running: `holdfast worker --processes N`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from holdfast.telemetry.logging import get_logger

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A child that lived this long before it died is restarted almost at once."""
KILL_S = 5.0
"""How long a child may take to exit after a second signal."""

_log = get_logger(__name__)


def supervise(target: Callable[[int], object], processes: int) -> int:
    """Run `target(number)` in each of `processes` child processes, and restart those that die.

    The children are spawned, so they must be able to import `target` by name. Each SIGTERM and SIGINT is passed on to
    them; five seconds after the second one, the remaining children are killed. Call it in the main thread. Returns the
    exit code for the program: 0 if every child exited by itself with 0.
    """
    return _Supervisor(target, processes).run()


class _Slot:
    """One child, or the pause before the next one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: SpawnProcess | None = None
        self.started_at = 0.0
        self.start_at: float | None = 0.0
        """When to start the next child. None: never again."""
        self.pause_s = FIRST_PAUSE_S


class _Supervisor:
    def __init__(self, target: Callable[[int], object], processes: int) -> None:
        self._target = target
        self._slots = [_Slot(number) for number in range(processes)]
        self._signals = 0
        self._kill_at: float | None = None
        self._failed = False

    def run(self) -> int:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        # A signal does not end the wait below unless it makes something readable.
        fd_before = signal.set_wakeup_fd(theirs.fileno())
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._keep_running(ours)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(fd_before)
            ours.close()
            theirs.close()
        return 1 if self._failed else 0

    def _keep_running(self, signal_socket: socket.socket) -> None:
        while True:
            self._start_due()
            running = [slot.process for slot in self._slots if slot.process is not None]
            if not running and all(slot.start_at is None for slot in self._slots):
                return
            ready = wait([signal_socket, *(process.sentinel for process in running)], self._timeout_s())
            if signal_socket in ready:
                signal_socket.recv(4096)
            for slot in self._slots:
                if slot.process is not None and slot.process.exitcode is not None:
                    self._process_ended(slot, slot.process)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._send(signal.SIGKILL)

    def _start_due(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.process is None and slot.start_at is not None and slot.start_at <= now:
                context = multiprocessing.get_context("spawn")
                slot.process = context.Process(target=_child, args=(self._target, slot.number))
                slot.process.start()
                slot.started_at = now

    def _process_ended(self, slot: _Slot, process: SpawnProcess) -> None:
        code = process.exitcode
        process.join()
        process.close()
        slot.process = None
        if code == 0 or self._signals:
            self._failed = self._failed or code != 0
            slot.start_at = None
            return
        now = time.monotonic()
        if now - slot.started_at >= STEADY_S:
            slot.pause_s = FIRST_PAUSE_S
        _log.error("a worker process died", number=slot.number, code=code, again_in_s=slot.pause_s)
        slot.start_at = now + slot.pause_s
        slot.pause_s = min(LONGEST_PAUSE_S, 2 * slot.pause_s)

    def _timeout_s(self) -> float | None:
        moments = [slot.start_at for slot in self._slots if slot.process is None and slot.start_at is not None]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signals += 1
        if self._signals > 1:
            self._kill_at = time.monotonic() + KILL_S
        for slot in self._slots:
            slot.start_at = None
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for slot in self._slots:
            if slot.process is not None and slot.process.pid is not None and slot.process.exitcode is None:
                os.kill(slot.process.pid, number)


def _child(target: Callable[[int], object], number: int) -> None:
    # A process group of its own: Ctrl-C reaches only the supervisor, which passes it on once.
    os.setpgid(0, 0)
    threading.Thread(target=_follow_parent, daemon=True).start()
    target(number)


def _follow_parent() -> None:
    """Stop gracefully when the supervisor is gone, even if it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
