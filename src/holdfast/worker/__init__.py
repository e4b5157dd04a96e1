"""Workers: they claim jobs from a store and run them."""

from __future__ import annotations

from holdfast.worker.callbacks import WorkerEvent
from holdfast.worker.worker import Worker

__all__ = ["Worker", "WorkerEvent"]
