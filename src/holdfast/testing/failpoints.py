"""Failpoints: at a named step of the code, kill the process, stop it, raise, or call a function.

    failpoints.arm("worker.before_ack", "kill", nth=3)     # SIGKILL at the third passage of this step
    failpoints.arm_spec("file.before_commit:raise")        # as text, for a command line

The steps of a worker, in order: worker.after_claim, worker.before_run, worker.after_effect (the handler has returned),
worker.mid_batch (an acknowledgement joins others that wait to be sent), worker.before_ack, worker.after_ack; also
worker.mid_renewal, passed before and after each renewal. The coordinator of schedules and flows passes
coordinator.after_claim, coordinator.before_finish and coordinator.after_finish, and with each flow flows.after_enqueue
(steps were enqueued). The file store has file.before_commit, file.after_commit and file.after_sending (jobs were sent
to waiting workers). The HTTP service has service.mid_body (a part of a body has come), service.before_enqueue,
service.after_enqueue (nothing is answered yet), service.after_claim and service.before_finish. A move of a tenant
passes move.noted, move.source_paused and move.target_paused, in each pass move.copied, move.verified and move.taken
(and move.copy, move.verify, move.take with each page), at the end move.before_resume, move.target_resumed and
move.resumed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, get_args

from holdfast.core import failpoint
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Generator

Action = Literal["kill", "stop", "raise"]


class FailpointError(Exception):
    """Raised by a failpoint armed with "raise"."""


_lock = threading.Lock()
_armed: dict[str, tuple[int, Action | Callable[[], None]]] = {}


def arm(name: str, action: Action | Callable[[], None] = "kill", nth: int = 1) -> None:
    """Do `action` when the step `name` is passed for the `nth` time from now on, and then disarm it."""
    if not callable(action) and action not in get_args(Action):
        raise InvalidOption("action", f"{action!r} is not 'kill', 'stop', 'raise' or a function")
    with _lock:
        _armed[name] = (nth, action)
        failpoint.install(_pass)


def arm_spec(spec: str) -> None:
    """Arm from text: `step`, `step:action` or `step:action:nth`."""
    name, _, rest = spec.partition(":")
    action, _, nth = rest.partition(":")
    arm(name, action or "kill", int(nth or 1))  # pyright: ignore[reportArgumentType]


def disarm(name: str | None = None) -> None:
    """Disarm one failpoint, or all."""
    with _lock:
        if name is None:
            _armed.clear()
        else:
            _armed.pop(name, None)
        if not _armed:
            failpoint.install(None)


@contextmanager
def armed(name: str, action: Action | Callable[[], None] = "raise", nth: int = 1) -> Generator[None]:
    """Arm a failpoint inside the block."""
    arm(name, action, nth)
    try:
        yield
    finally:
        disarm(name)


def _pass(name: str) -> None:
    with _lock:
        if name not in _armed:
            return
        left, action = _armed[name]
        if left > 1:
            _armed[name] = (left - 1, action)
            return
        del _armed[name]
    if callable(action):
        action()
    elif action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise FailpointError(name)
