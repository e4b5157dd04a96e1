"""The result of a move."""

from __future__ import annotations

from msgspec import Struct, field


class MovedQueue(Struct):
    """The result for one queue."""

    queue: str
    jobs: int = 0
    """The jobs that were moved."""
    source_sum: int = 0
    target_sum: int = 0
    """Order-free checksums (modulo 2^64) of the jobs as read in the source, and as the target has them."""
    left: int = 0
    """Jobs that stay in the source, because they no longer waited when it was their turn to be removed."""
    finished: int = 0
    """Finished jobs, which stay in the source, too."""
    paused: bool = False
    """Whether it is paused in the target."""
    source_paused: bool = False


class Moved(Struct):
    """The result of a move."""

    source: str
    target: str
    tenant: str
    queues: list[MovedQueue] = field(default_factory=list[MovedQueue])
    settings: int = 0
    """How many settings (weights, quotas, budgets) were copied."""
    passes: int = 0
    resumed: bool = False
    """Whether it continued an interrupted move."""

    @property
    def jobs(self) -> int:
        return sum(one.jobs for one in self.queues)

    @property
    def left(self) -> int:
        return sum(one.left for one in self.queues)
