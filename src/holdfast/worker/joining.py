"""Jobs that a handler completes inside its own transaction. [ENQ-7]

The worker does not see how that transaction ends, so it asks the store before it sends the handler's outcome. While
the transaction is open, other changes of the job wait for it. So its lease is renewed in a call of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import InvalidOption, ResultTooLarge
from holdfast.core.job import RESULT_LIMIT, Finish, Finished, JobState, Result
from holdfast.jobs import codec as codecs

if TYPE_CHECKING:
    from holdfast.core.job import Job
    from holdfast.jobs.context import JobContext
    from holdfast.store import Store
    from holdfast.worker.active_job import ActiveJob


class Joining:
    """Completes jobs for their handlers. Belongs to the worker's event loop; threads call into it."""

    def __init__(self, store: Store, codec: str, running: Iterable[ActiveJob]) -> None:
        self._store = store
        self._codec = codec
        self._running = running
        self._loop = asyncio.get_running_loop()

    async def complete(self, context: JobContext, connection: Any, result: Any) -> None:
        """Complete the job of this context with the commit of the connection's transaction."""
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidOption("complete_in", "call it in the handler's own event loop; in a thread, complete_in_sync")
        active = next((one for one in self._running if one.context is context), None)
        if active is None:
            raise InvalidOption("complete_in", "the handler has ended; complete its job before it returns")
        data = codecs.encode(result, self._codec)
        if len(data) > RESULT_LIMIT:
            raise ResultTooLarge(len(data), RESULT_LIMIT)
        active.joined = True
        finish = Finish(active.key, active.token, "complete", Result(data, self._codec))
        (answer,) = await self._store.finish([finish], connection=connection)
        if not isinstance(answer, Finished):
            raise answer

    def complete_sync(self, context: JobContext, connection: Any, result: Any) -> None:
        """The same, from a thread."""
        work = self.complete(context, connection, result)
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


def is_completed(job: Job | None, token: int) -> bool:
    """Whether the job was completed under this token, so that its transaction has committed."""
    # A leased job is never removed, so a missing one has ended.
    return job is None or (job.state is JobState.COMPLETED and job.token == token)
