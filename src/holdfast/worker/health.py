"""Whether a worker lives: its event loop turns, and the store answered lately.

The instants come from a clock that stops while the machine sleeps. Any thread may ask, also while the loop is blocked.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.worker.state import RunState

TURN_S = 1.0
"""How often the loop shows that it turns."""
LOOP_S = 20.0
"""A loop that stood still for this long is blocked."""
STORE_S = 25.0
"""A store that has not answered for this long is out of reach. The heartbeat asks it every 10 s."""


def why_not_live(now: float, turned_at: float | None, reached_at: float | None) -> str:
    """The problem of a worker whose loop last turned, and whose store last answered, at these instants; "" if none.

    None: it does not run, or the store has not answered yet. Both are no reason to restart it.
    """
    if turned_at is not None and now - turned_at >= LOOP_S:
        return f"the event loop has stood still for {now - turned_at:.0f} s: a handler blocks it"
    if reached_at is not None and now - reached_at >= STORE_S:
        return f"the store has not answered for {now - reached_at:.0f} s"
    return ""


class WorkerHealth:
    """Whether one worker lives and is ready. The methods for probes may be called in any thread."""

    def __init__(self) -> None:
        self.turned_at: float | None = None
        self.reached_at: float | None = None
        self._state: RunState | None = None

    def why_not_live(self) -> str:
        """Why it should be restarted; "" if it lives."""
        return why_not_live(time.monotonic(), self.turned_at, self.reached_at)

    def why_not_ready(self) -> str:
        """Why it takes no jobs; "" if it does."""
        state = self._state
        if state is None or self.reached_at is None:
            return "the worker has not started"
        if state.stopping:
            return "the worker is stopping"
        return self.why_not_live()

    async def turn(self, state: RunState) -> None:
        """Show that the loop turns, until this is canceled."""
        self._state = state
        try:
            while True:
                self.turned_at = time.monotonic()
                await asyncio.sleep(TURN_S)
        finally:
            self.turned_at = None

    def reached(self) -> None:
        """Record that the store has answered."""
        self.reached_at = time.monotonic()

    def ended(self) -> None:
        """Record that the run is over."""
        self._state = self.reached_at = None
