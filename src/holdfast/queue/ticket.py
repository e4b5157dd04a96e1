"""What an enqueue returns: a handle for the job."""

from __future__ import annotations

from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from msgspec import Struct

from holdfast.core.errors import HoldfastError, InvalidOption, ResultExpired
from holdfast.core.job import JobKey, JobState, Result
from holdfast.jobs.options import Seconds
from holdfast.queue.records import Cancellation, JobRecord, decode_result

R = TypeVar("R")

TicketStatus = Literal["queued", "duplicate", "completed", "replayed", "refused"]


class Owner(Protocol):
    """What a ticket needs from its Queue."""

    async def get(self, id: str, *, queue: str | None = None) -> JobRecord | None: ...

    async def cancel(self, id: str, *, queue: str | None = None, only_waiting: bool = False) -> Cancellation: ...

    async def wait_for(self, key: JobKey, timeout: Seconds | None, *, known: bool, result_type: Any = Any) -> Any: ...


class Typed(Protocol):
    """What a ticket needs from a job definition."""

    @property
    def result_type(self) -> Any: ...


class Ticket(Struct, Generic[R], eq=False, gc=False):
    """A job that was enqueued or existed already. [ENQ-2]

    `status` is "queued" for a new job, "duplicate" or "completed" if the id or key existed, "replayed" for a dead
    letter that was replayed; in a batch "refused" for an item that was not enqueued, with the `error`.
    """

    owner: Owner | None
    key: JobKey
    status: TicketStatus
    state: JobState | None
    definition: Typed | None = None
    kept: Result | None = None
    blob: bytes | None = None
    error: HoldfastError | None = None

    @property
    def id(self) -> str:
        return self.key.id

    @property
    def tenant(self) -> str:
        return self.key.tenant

    @property
    def queue(self) -> str:
        return self.key.queue

    @property
    def result(self) -> R | None:
        """The cached result if the status is "completed", else None."""
        if self.kept is None:
            return None
        return cast("R", decode_result(self.kept, self.blob, self.result_type))

    async def wait(self, timeout: Seconds | None = None) -> R:
        """The job's result, once it is there. [RESULT-2]

        Raises JobFailed, JobCanceled, WaitTimeout (the job continues) or ResultExpired; for a refused item, its error.
        """
        owner = self._owner()
        if self.kept is not None and (not self.kept.blob or self.blob is not None):
            return cast("R", self.result)
        return await owner.wait_for(self.key, timeout, known=True, result_type=self.result_type)

    async def cancel(self, *, only_waiting: bool = False) -> Cancellation:
        """Cancel the job. [CANCEL-1]"""
        return await self._owner().cancel(self.id, queue=self.queue, only_waiting=only_waiting)

    async def refresh(self) -> JobRecord:
        """The job as it is now. It updates `state`, too. Raises ResultExpired if the job was removed."""
        record = await self._owner().get(self.id, queue=self.queue)
        if record is None:
            raise ResultExpired(self.queue, self.id)
        self.state = record.state
        return record

    @property
    def result_type(self) -> Any:
        """The handler's declared return type. Any if it is not known here."""
        return Any if self.definition is None else self.definition.result_type

    def _owner(self) -> Owner:
        if self.error is not None:
            raise self.error
        if self.owner is None:
            reason = f"{self!r} came from another process; use its id and queue with a Queue of this one"
            raise InvalidOption("ticket", reason)
        return self.owner

    def __reduce__(self) -> tuple[object, ...]:
        # Pickled without the Queue, which stays in its process: PartlyRefused can carry tickets to another process.
        return Ticket, (None, self.key, self.status, self.state, None, self.kept, self.blob, self.error)

    def __repr__(self) -> str:
        return f"<Ticket {self.queue}/{self.id} {self.status}>"
