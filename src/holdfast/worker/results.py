"""Results that are too large for a job's record. [RESULT-1]"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.blobs import Blobs, result_name
from holdfast.core.errors import ResultTooLarge
from holdfast.core.job import RESULT_LIMIT, Finish, Result
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.worker import outcome
from holdfast.worker.messages import Raised

if TYPE_CHECKING:
    from holdfast.worker.active_job import ActiveJob

BLOB_TRIES = 5


async def store_large_result(blobs: Blobs | None, active: ActiveJob, data: bytes, codec: str) -> Finish:
    """Store the result as a blob and return an outcome that refers to it. Without a blob store, the job fails.

    Raises the blob store's error after five tries.
    """
    if blobs is None:
        error = outcome.describe(ResultTooLarge(len(data), RESULT_LIMIT))
        return outcome.finish(active, Raised("fail", error))
    name = result_name(active.key, active.token)
    pause = Pause()
    for tries_left in reversed(range(BLOB_TRIES)):
        try:
            await blobs.put(name, data)
            break
        except AWAY:
            if not tries_left:
                raise
            await asyncio.sleep(pause.next_s())
    return Finish(active.key, active.token, "complete", Result(b"", codec, name))
