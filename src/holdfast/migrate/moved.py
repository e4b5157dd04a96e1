"""What a move came to."""

from __future__ import annotations

from msgspec import Struct, field


class MovedQueue(Struct):
    """What became of one queue."""

    queue: str
    jobs: int = 0
    """Moved."""
    source_sum: int = 0
    target_sum: int = 0
    """Order-free checksums (modulo 2^64) of what was read in the source, and of what the target has of it."""
    left: int = 0
    """Jobs that did not wait any more when they were to be taken away: they stay in the source."""
    finished: int = 0
    """Finished ones, which stay in the source, too."""
    paused: bool = False
    """In the target."""
    source_paused: bool = False


class Moved(Struct):
    """What a move came to."""

    source: str
    target: str
    tenant: str
    queues: list[MovedQueue] = field(default_factory=list[MovedQueue])
    settings: int = 0
    """How many settings (weights, quotas) the target took over."""
    passes: int = 0
    resumed: bool = False
    """It went on with a move that had not ended."""

    @property
    def jobs(self) -> int:
        return sum(one.jobs for one in self.queues)

    @property
    def left(self) -> int:
        return sum(one.left for one in self.queues)
