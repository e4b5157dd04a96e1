"""Deletes finished jobs whose retention is over, and the blobs of their results. [KEEP-1]"""

from __future__ import annotations

import asyncio
import random

from holdfast.blobs import Blobs
from holdfast.store import Store
from holdfast.telemetry.logging import get_logger

BATCH = 1_000
EVERY_S = 10.0
"""Pruning also updates the counts that budgets are checked against: they are at most this old. [TENANT-5]"""

_log = get_logger(__name__)


async def prune(store: Store, blobs: Blobs | None = None) -> float:
    """Delete finished jobs that are due, in batches. Returns in how many seconds to do it again."""
    while True:
        # Without a blob store here, leave the blobs to a process that has one.
        pruned = await store.prune(BATCH, blobs=blobs is not None)
        for name in pruned.blobs:
            await _delete(name, blobs)
        if not pruned.more:
            # Vary the interval, so that a fleet does not prune at the same time.
            return EVERY_S * random.uniform(0.6, 1.0)  # noqa: S311 - no secret
        await asyncio.sleep(0)


async def _delete(name: str, blobs: Blobs | None) -> None:
    if blobs is None:
        _log.warning("a blob is no longer needed, and no blob store is configured here", blob=name)
        return
    try:
        await blobs.delete([name])
    except Exception:  # noqa: BLE001 - the other blobs must be deleted anyway
        # The job is gone and nothing else refers to this blob: the log is its last trace.
        _log.exception("a blob is no longer needed and could not be deleted", blob=name)
