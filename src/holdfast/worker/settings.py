"""The options of a worker."""

from __future__ import annotations

from msgspec import Struct

from holdfast.blobs import Blobs
from holdfast.core.policy import TypeInfo


class Settings(Struct, frozen=True):
    """The checked options of a worker. `tenant` None: serve all. `prefetch` None: choose it by the rate of jobs."""

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
    """The queue for jobs that name none."""
