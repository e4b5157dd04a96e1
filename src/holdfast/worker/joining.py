"""Jobs that are completed inside their handlers' own transactions. [ENQ-7]

Whether such a completion holds is decided when the transaction ends, out of our sight. So the handler's outcome is not
sent before the store was asked. While the transaction is open, other changes of the job wait for it: its lease
is not renewed in one call with others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
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
    """Completes jobs for their handlers. Belongs to the worker's event loop, which threads call into."""

    def __init__(self, store: Store, codec: str, running: Callable[[], Iterable[ActiveJob]]) -> None:
        self._store = store
        self._codec = codec
        self._running = running
        self._loop = asyncio.get_running_loop()

    async def complete(self, context: JobContext, connection: Any, result: Any) -> None:
        """Complete the job of this context with the commit of the connection's transaction."""
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidOption("complete_in", "call it in the handler's own event loop; in a thread, complete_in_sync")
        held = next((one for one in self._running() if one.context is context), None)
        if held is None:
            raise InvalidOption("complete_in", "the handler has ended; complete its job before it returns")
        data = codecs.encode(result, self._codec)
        if len(data) > RESULT_LIMIT:
            raise ResultTooLarge(len(data), RESULT_LIMIT)
        held.joined = True
        finish = Finish(held.key, held.token, "complete", Result(data, self._codec))
        (answer,) = await self._store.finish([finish], connection=connection)
        if not isinstance(answer, Finished):
            raise answer

    def complete_sync(self, context: JobContext, connection: Any, result: Any) -> None:
        """The same, from a thread."""
        work = self.complete(context, connection, result)
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


def is_completed(job: Job | None, token: int) -> bool:
    """Whether a job that was leased under this token was completed under it: its transaction has committed."""
    # A leased job is never forgotten: one that is gone had ended.
    return job is None or (job.state is JobState.COMPLETED and job.token == token)
