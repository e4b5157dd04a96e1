"""How a worker was asked to work."""

from __future__ import annotations

from msgspec import Struct

from holdfast.blobs import Blobs
from holdfast.core.policy import TypeInfo


class Settings(Struct, frozen=True):
    """The options of a worker, checked. `tenant` None serves all, `prefetch` None finds its own measure."""

    tenant: str | None
    queues: tuple[str, ...]
    worker_id: str
    concurrency: int
    prefetch: int | None
    lease_ms: int
    grace_s: float
    codec: str
    blobs: Blobs | None
    unknown_ms: int
    types: tuple[TypeInfo, ...] = ()
    name: str = "default"
    """The queue of jobs that name none."""
