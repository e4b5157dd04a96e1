"""How long to wait for a store that does not answer."""

from __future__ import annotations

import random

from holdfast.core.errors import StoreBusy, StoreUnavailable

AWAY = (StoreUnavailable, StoreBusy, OSError)
"""The errors of a store that is unreachable for now."""

FIRST_S = 0.1
CAP_S = 5.0


class Pause:
    """Growing pauses with jitter, from 0.1 s to 5 s. A success resets them."""

    def __init__(self, cap_s: float = CAP_S) -> None:
        self._cap_s = cap_s
        self._next_s = FIRST_S

    def reset(self) -> None:
        """Call it after a success: the next pause is short again."""
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """How long to pause now."""
        pause = min(self._next_s, self._cap_s)
        self._next_s = min(self._next_s * 2, self._cap_s)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
