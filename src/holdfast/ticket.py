"""What an enqueue gives back: a handle on the job."""

from __future__ import annotations

from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from holdfast.core.errors import HoldfastError, ResultExpired
from holdfast.core.job import JobKey, JobState, Result
from holdfast.options import Seconds
from holdfast.records import Cancellation, JobRecord, decode_result

R = TypeVar("R")

TicketStatus = Literal["queued", "duplicate", "completed", "replayed", "refused"]


class Owner(Protocol):
    """What a ticket needs of its Queue."""

    async def get(self, id: str, *, queue: str | None = None) -> JobRecord | None: ...

    async def cancel(
        self, id: str, *, queue: str | None = None, only_waiting: bool = False
    ) -> Cancellation: ...

    async def wait_for(
        self, key: JobKey, timeout: Seconds | None, *, known: bool, result_type: Any = Any
    ) -> Any: ...


class Ticket(Generic[R]):
    """A job that was enqueued, or was found to be there already. [ENQ-2]

    `status` is "queued" for a new job, "duplicate" or "completed" where the id or key was known, "replayed" for
    a dead letter started again; in a batch "refused" for an item that was not taken, with the `error`.
    """

    __slots__ = ("_blob", "_key", "_owner", "_result", "_result_type", "error", "state", "status")

    def __init__(
        self,
        owner: Owner,
        key: JobKey,
        status: TicketStatus,
        state: JobState | None,
        result_type: Any = Any,
        result: Result | None = None,
        blob: bytes | None = None,
        error: HoldfastError | None = None,
    ) -> None:
        self._owner = owner
        self._key = key
        self._result_type = result_type
        self._result = result
        self._blob = blob
        self.status: TicketStatus = status
        self.state = state
        self.error = error

    @property
    def id(self) -> str:
        return self._key.id

    @property
    def tenant(self) -> str:
        return self._key.tenant

    @property
    def queue(self) -> str:
        return self._key.queue

    @property
    def result(self) -> R | None:
        """The cached result where the status is "completed", else None."""
        if self._result is None:
            return None
        return cast("R", decode_result(self._result, self._blob, self._result_type))

    async def wait(self, timeout: Seconds | None = None) -> R:
        """The job's result, once it is there. [RESULT-2]

        Raises JobFailed, JobCanceled, WaitTimeout (the job goes on) or ResultExpired; the error of a refused item.
        """
        self._check()
        if self._result is not None:
            return cast("R", self.result)
        return await self._owner.wait_for(self._key, timeout, known=True, result_type=self._result_type)

    async def cancel(self, *, only_waiting: bool = False) -> Cancellation:
        """Cancel the job. [CANCEL-1]"""
        self._check()
        return await self._owner.cancel(self.id, queue=self.queue, only_waiting=only_waiting)

    async def refresh(self) -> JobRecord:
        """The job as it is now; `state` follows. Raises ResultExpired once it is forgotten."""
        self._check()
        record = await self._owner.get(self.id, queue=self.queue)
        if record is None:
            raise ResultExpired(self.queue, self.id)
        self.state = record.state
        return record

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def __repr__(self) -> str:
        return f"<Ticket {self.queue}/{self.id} {self.status}>"
