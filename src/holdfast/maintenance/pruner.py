"""Forgets finished jobs whose retention is over, and the blobs that held their results. [KEEP-1]"""

from __future__ import annotations

import asyncio
import random

from holdfast.blobs import Blobs
from holdfast.store import Store
from holdfast.telemetry.logging import get_logger

BATCH = 1_000
EVERY_S = 10.0
"""The counts that budgets are judged by are no older. [TENANT-5]"""

_log = get_logger(__name__)


async def prune(store: Store, blobs: Blobs | None = None) -> float:
    """Forget what may be forgotten, in batches. Returns in how many seconds to do it again."""
    while True:
        # Without a blob store, leave the names to a process that has one.
        pruned = await store.prune(BATCH, blobs=blobs is not None)
        for name in pruned.blobs:
            await _delete(name, blobs)
        if not pruned.more:
            # Spread, so that a fleet does not prune in step.
            return EVERY_S * random.uniform(0.6, 1.0)  # noqa: S311 - no secret
        await asyncio.sleep(0)


async def _delete(name: str, blobs: Blobs | None) -> None:
    if blobs is None:
        _log.warning("a blob is no longer needed, and no blob store is configured here", blob=name)
        return
    try:
        await blobs.delete([name])
    except Exception:  # noqa: BLE001 - the other blobs must go all the same
        # The job is forgotten already and nothing else names this blob, so log it.
        _log.exception("a blob is no longer needed and could not be deleted", blob=name)
