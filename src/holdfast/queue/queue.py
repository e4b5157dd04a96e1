"""Queue: a store bound to one tenant. Each method names its subject's module, where the work is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from holdfast.blobs import BlobRef, Blobs, check_owner
from holdfast.budgets import TenantUsage, usage_of
from holdfast.core.budgets import Budgets
from holdfast.core.explain import Explanation
from holdfast.core.job import JobKey, PurgeStatus, TtlStatus
from holdfast.core.names import FLOWS
from holdfast.flows.flow import Flow, FlowRecord
from holdfast.jobs.definition import Message
from holdfast.jobs.options import EnqueueOptions, ScheduleOptions, Seconds
from holdfast.queue import bulk, dead_letters, events, explaining, inspect, results, scheduling, settings
from holdfast.queue.bulk import BulkOptions, BulkStep
from holdfast.queue.cancel import cancel_job
from holdfast.queue.connection import Address, Connection
from holdfast.queue.enqueue import OnRefused, Producer, as_message, options_of
from holdfast.queue.filters import DeadFilter, JobFilter, query_of
from holdfast.queue.records import Cancellation, Event, JobPage, JobRecord, Schedule, Stats, WorkerRecord
from holdfast.queue.ticket import Ticket
from holdfast.store import Capabilities, ListQuery, Reader, Store, TenantSettings
from holdfast.telemetry import tracing

R = TypeVar("R")


class Queue:
    """One tenant's jobs in a store: enqueue them, follow them, manage them.

        async with Queue("file:./data", tenant="acme") as queue:
            ticket = await queue.enqueue(send_email.message("a@example.com"))

    `name` is the default queue, for calls and job definitions that name none. Use one Queue from one event loop.
    Concurrent calls share round trips.
    """

    tenant: str
    name: str
    codec: str
    blobs: Blobs | None

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str | None = None,
        token: str | Callable[[], str] | None = None,
        name: str = "default",
        store: Store | None = None,
        codec: str = "json",
        blobs: str | Blobs | None = None,
        events: Literal["transitions", "all"] | None = None,
    ) -> None:
        self._connection = connection = Connection(
            url, store, tenant=tenant, token=token, name=name, codec=codec, blobs=blobs, events=events
        )
        self.tenant, self.name = connection.tenant, connection.name
        self.codec, self.blobs = connection.codec, connection.blobs
        self._producer = Producer(connection, self)

    @property
    def store(self) -> Store:
        """The store itself, for operations that a Queue does not have."""
        return self._connection.store

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this store: what stores may do differently."""
        return self._connection.store.capabilities

    def address(self) -> Address | None:
        """How another process opens the same store, or None if it cannot."""
        return self._connection.address()

    async def open(self) -> Self:
        """Connect to the store. It can be called more than once. A closed Queue can be opened again."""
        await self._connection.open()
        return self

    async def close(self) -> None:
        """Finish calls in flight, end every wait, and close the store unless it was passed in. Safe to repeat."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        # Without the URL: it may hold a password.
        return f"<{type(self).__name__} {self.name!r} of tenant {self.tenant!r} on {self.capabilities.name}>"

    # Enqueue ----------------------------------------------------------------------------------------------

    @overload
    async def enqueue(
        self, message: Message[R], *, connection: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Ticket[R]: ...
    @overload
    async def enqueue(
        self, message: Any, *, connection: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Ticket[Any]: ...
    async def enqueue(self, message: Any, *, connection: Any = None, **options: Unpack[EnqueueOptions]) -> Ticket[Any]:
        """Enqueue a message, or a payload without a job type. [ENQ-1 to ENQ-8]

        The ticket says "queued", or which job already has that id or key. `connection` joins the caller's own
        transaction where the store can. Raises InvalidName, InvalidOption, InvalidPayload, PayloadTooLarge or
        QuotaExceeded; then nothing was enqueued.
        """
        item = as_message(message)
        new = self._producer.new_job(item, options_of(item, options), tracing.inject())
        return await self._producer.send(new, item, connection)

    @overload
    async def enqueue_many(
        self,
        messages: Iterable[Message[R]] | AsyncIterable[Message[R]],
        *,
        connection: Any = None,
        on_refused: OnRefused | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[Ticket[R]]: ...
    @overload
    async def enqueue_many(
        self,
        messages: Iterable[Any] | AsyncIterable[Any],
        *,
        connection: Any = None,
        on_refused: OnRefused | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[Ticket[Any]]: ...
    async def enqueue_many(
        self,
        messages: Iterable[Any] | AsyncIterable[Any],
        *,
        connection: Any = None,
        on_refused: OnRefused | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[Ticket[Any]]:
        """Enqueue many messages, 1000 per round trip. Answers item by item, in order. [ENQ-4]

        A refused message affects no other: its ticket has the status "refused" and the `error`. After the last
        message, PartlyRefused is raised with all tickets. `on_refused="return"` returns them instead; with a
        `connection` that is the default, because the caller commits or rolls back. Duplicates are not refusals.
        `options` hold for all messages; `message.options(id=...)` gives one message its own. An error of the store
        or of `messages` ends the call; its notes say how many messages were answered before, and how many refused.
        """
        return await self._producer.enqueue_many(messages, connection, on_refused, options)

    @overload
    async def enqueue_and_wait(
        self,
        message: Message[R],
        *,
        timeout: Seconds | None = None,
        connection: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> R: ...
    @overload
    async def enqueue_and_wait(
        self,
        message: Any,
        *,
        timeout: Seconds | None = None,
        connection: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> Any: ...
    async def enqueue_and_wait(
        self,
        message: Any,
        *,
        timeout: Seconds | None = None,
        connection: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> Any:
        """Enqueue, and wait for the result. If the id or key is known, wait for that job. [RESULT-2, RESULT-3]

        Subscribes before it enqueues. Raises what `enqueue` and `result` raise, and InvalidOption if it would join the
        transaction of `connection`: no worker runs a job that is not committed.
        """
        return await self._producer.enqueue_and_wait(message, timeout, connection, options)

    # Look up and wait -------------------------------------------------------------------------------------

    async def get(self, id: str, *, queue: str | None = None) -> JobRecord | None:
        """The job as it is now, or None. None for another tenant's job, too. [TENANT-2]"""
        return await inspect.get(self._connection, self._connection.key(id, queue))

    async def explain(self, id: str, *, queue: str | None = None) -> Explanation:
        """Why a job is where it is, and what would move it. `print` makes a few plain lines of the answer.

        The work is bounded, whatever the backlog. `state` is None without such a job, or if it is another tenant's.
        """
        return await explaining.explain_job(self._connection, self._connection.key(id, queue))

    async def result(self, id: str, *, queue: str | None = None, timeout: Seconds | None = None) -> Any:
        """Wait for a job and return its result. [RESULT-2]

        Raises JobNotFound, JobFailed, JobCanceled, WaitTimeout (the job continues), or ResultExpired if the result was
        removed during the wait.
        """
        return await self.wait_for(self._connection.key(id, queue), timeout, known=False)

    async def results_of(self, keys: Mapping[str, JobKey]) -> dict[str, Any]:
        """The results of completed jobs, under the names of `keys`, in one read. Raises ResultExpired."""
        return await results.results_of(self._connection, keys)

    async def wait_for(self, key: JobKey, timeout: Seconds | None, *, known: bool, result_type: Any = Any) -> Any:
        """Wait for a job's result. `known`: the job is known to have existed. [RESULT-2]

        Raises JobFailed, JobCanceled, WaitTimeout, ResultExpired, or JobNotFound if it was not known to have existed.
        """
        return await results.wait_for(self._connection, key, timeout, known=known, result_type=result_type)

    async def list(
        self, *, newest: bool = False, cursor: str | None = None, limit: int = 100, **chosen: Unpack[JobFilter]
    ) -> JobPage:
        """A page of a queue's jobs: waiting jobs in claim order, then leased ones, then finished ones.

        `newest` lists the jobs of a queue, or without `queue` of all, by time, the latest first: when they are due,
        when their lease ends, or when they ended. `chosen`: `queue`, `state`, `type`, and with `newest` also `error`,
        `id` (its beginning), `since` and `until`. A page may be empty and still have a cursor.
        """
        query = await query_of(self._connection, chosen, newest=newest, cursor=cursor, limit=limit)
        return await inspect.page(self._connection, query)

    async def stats(self, queue: str | None = None) -> Stats:
        """Counts per state, and the age of the oldest ready job, of one queue."""
        return (await inspect.stats(self._connection, [self._connection.queue(queue)]))[0]

    async def queues(self) -> Sequence[Stats]:
        """The stats of every queue of the tenant, by name."""
        return await inspect.stats(self._connection, None)

    async def workers(self) -> Sequence[WorkerRecord]:
        """The live workers that serve this tenant."""
        return await inspect.workers(self._connection)

    # Cancel, replay, purge --------------------------------------------------------------------------------

    async def cancel(
        self, id: str, *, queue: str | None = None, only_waiting: bool = False, by: str = ""
    ) -> Cancellation:
        """Cancel a job, also a running one unless `only_waiting`; a flow with its steps. `by`: who acts. [CANCEL-1]"""
        return await cancel_job(self._connection, self._connection.key(id, queue), only_waiting=only_waiting, by=by)

    async def cancel_where(self, *, running: bool = False, **options: Unpack[BulkOptions]) -> BulkStep:
        """Cancel waiting jobs that match, with `running` leased ones too: one bounded step. [CANCEL-1]

        `options`: which jobs, as in `list(newest=True)`; `limit` (1000); `dry_run` to only count; the `cursor` of the
        step before; `by`. Without `queue`, of all queues.
        """
        return await bulk.change_where(self._connection, "cancel", running=running, **options)

    async def replay_where(self, **options: Unpack[BulkOptions]) -> BulkStep:
        """Replay dead letters that match: one bounded step, with the options of `cancel_where`. [DEAD-1]"""
        return await bulk.change_where(self._connection, "replay", **options)

    async def purge_where(self, **options: Unpack[BulkOptions]) -> BulkStep:
        """Purge dead letters that match: one bounded step, with the options of `cancel_where`. [DEAD-1]"""
        return await bulk.change_where(self._connection, "purge", **options)

    async def dead_letters(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,
        error: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> JobPage:
        """A page of failed jobs, oldest first. [DEAD-1]

        `error` is the last error's type or fingerprint, or a part of its message.
        """
        found = ListQuery(self.tenant, self._connection.queue(queue), dead_letters.FAILED, type, error, cursor, limit)
        return await inspect.page(self._connection, found)

    async def replay(self, id: str, *, queue: str | None = None, by: str = "") -> Ticket[Any]:
        """Replay a dead letter, with the same id and 0 attempts. This makes an event. [STATE-3]

        `by`: the operator who acts, for the data of the event; over HTTP the token says who. [EVENT-1]
        Raises JobNotFound, NotReplayable (also if a concurrent replay won) or QuotaExceeded.
        """
        return await dead_letters.replay(self._connection, self, self._connection.key(id, queue), by)

    async def replay_many(
        self, ids: Iterable[str] | None = None, *, by: str = "", **chosen: Unpack[DeadFilter]
    ) -> Sequence[Ticket[Any]]:
        """Replay the dead letters of these ids, or all that match by `queue`, `type`, `error`. [DEAD-1]

        Answers item by item: a ticket is "replayed", or "refused" with its `error`. A job that fails again during
        the call is not replayed a second time.
        """
        return await dead_letters.replay_many(self._connection, self, ids, by=by, **chosen)

    async def purge(self, id: str, *, queue: str | None = None, by: str = "") -> PurgeStatus:
        """Remove a finished job now: "purged", "not_terminal" or "not_found". This makes an event. [KEEP-1]"""
        return await dead_letters.purge(self._connection, self._connection.key(id, queue), by)

    async def purge_dead_letters(
        self, *, before: datetime | timedelta | None = None, by: str = "", **chosen: Unpack[DeadFilter]
    ) -> int:
        """Remove failed jobs that ended before an instant, or longer ago than a duration. Returns how many. [DEAD-1]

        `queue`, `type` and `error` choose further, as in `dead_letters`.
        """
        return await dead_letters.purge_matching(self._connection, before, by=by, **chosen)

    async def set_result_ttl(self, id: str, ttl: timedelta | float, *, queue: str | None = None) -> TtlStatus:
        """Keep a finished job for `ttl` from now: "updated", "not_terminal" or "not_found". [RESULT-1]

        Raises InvalidOption over the store's ceiling, 30 days unless its operator has raised it.
        """
        return await results.set_ttl(self._connection, self._connection.key(id, queue), ttl)

    # Schedules and flows ----------------------------------------------------------------------------------

    async def schedule(
        self,
        name: str,
        message: Any,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "UTC",
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Enqueue a message at every tick of a `cron` expression in a `timezone`, or once in `every` seconds.

        Call it whenever the program starts: it leaves an equal schedule of that name as it is, and replaces another.
        Each tick makes at most one job, `name@tick`. If ticks were missed, only the last one runs.
        Raises InvalidName, InvalidOption, InvalidPayload, PayloadTooLarge or QuotaExceeded.
        """
        when = scheduling.check_timing(self._connection, name, cron, every, timezone)
        return await scheduling.put(self._connection, self._producer, name, message, when, options)

    async def schedules(self) -> Sequence[Schedule]:
        """The tenant's schedules, by name."""
        return await scheduling.list_all(self._connection)

    async def get_schedule(self, name: str) -> Schedule | None:
        """A schedule as it is now, or None. None for another tenant's schedule, too. [TENANT-2]"""
        return await scheduling.get(self._connection, name)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule. Returns whether there was one. Jobs that it has enqueued stay as they are."""
        return await scheduling.remove(self._connection, name)

    async def start(self, flow: Flow, *, connection: Any = None) -> Ticket[dict[str, Any]]:
        """Start a flow. Maintenance enqueues each step when the steps before it have completed.

        The ticket is the flow's: `wait()` returns a dict of the steps by name, each with its `state` and its `result`,
        which is left out if all results together are too large. It raises JobFailed, which names the steps that did
        not complete. `cancel()` cancels the flow and its open steps. A flow id that exists is answered as in `enqueue`.
        [ENQ-2]
        Raises InvalidOption, PayloadTooLarge or QuotaExceeded; then nothing was started.
        """
        return await self._producer.start(flow, connection)

    async def flow(self, id: str) -> FlowRecord | None:
        """A flow and its steps as they are now, or None."""
        return await inspect.flow(self._connection, self._connection.key(id, FLOWS))

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, after: str | None = None, *, follow: bool = False) -> AsyncGenerator[Event]:
        """The tenant's events in order, after an offset (None: from the oldest kept). [EVENT-2, EVENT-3]

        With `follow` it waits for new events at the end of the log, without polling. Raises EventsTrimmed if events in
        between are gone, InvalidOption if `after` is not an offset of this store.
        """
        async with aclosing(events.follow(self._connection, after, forever=follow)) as found:
            async for event in found:
                yield event

    async def last_offset(self) -> str:
        """The end of the log now. `events(after=...)` from here shows only new events."""
        return await self._connection.counted("last_offset", self._connection.live.last_offset())

    async def register_reader(self, name: str, after: str | None = None) -> str:
        """Register a reader that trimming waits for, at `after` or at the end of the log. Returns that offset."""
        offset = await self.last_offset() if after is None else after
        await self.advance_reader(name, offset)
        return offset

    async def advance_reader(self, name: str, offset: str) -> None:
        """Record that a reader has handled everything up to `offset`. It never moves back. [EVENT-2]"""
        await events.set_reader(self._connection, name, offset)

    async def drop_reader(self, name: str) -> bool:
        """Remove a reader. Returns whether there was one."""
        return await self._connection.counted("drop_reader", self._connection.live.drop_reader(self.tenant, name))

    async def readers(self) -> Sequence[Reader]:
        """The tenant's registered readers."""
        return await self._connection.counted("readers", self._connection.live.readers(self.tenant))

    # Settings and blobs -----------------------------------------------------------------------------------

    async def pause(self, queue: str | None = None) -> None:
        """Hand out no more jobs of a queue. It still accepts new ones. [CLAIM-5]"""
        await settings.pause(self._connection, queue, paused=True)

    async def resume(self, queue: str | None = None) -> None:
        """Hand out a paused queue's jobs again."""
        await settings.pause(self._connection, queue, paused=False)

    async def set_tenant(
        self,
        *,
        weight: float | None = None,
        max_waiting: int | None = None,
        queue: str | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        """Set the tenant's weight and quota, for one queue or, without `queue`, for all together. [TENANT-4, TENANT-5]

        `budgets` are for the tenant as a whole; in them 0 means no limit. None changes nothing. Raises InvalidOption.
        """
        await settings.set_tenant(self._connection, weight, max_waiting, queue, budgets)

    async def tenant_settings(self) -> Sequence[TenantSettings]:
        """The tenant's own settings, then those of its queues by name."""
        return await self._connection.counted("tenant_settings", self._connection.live.tenant_settings(self.tenant))

    async def usage(self) -> TenantUsage:
        """What the tenant keeps and may keep, budget by budget. The counts are at most 10 s old. [TENANT-5]"""
        return await self._connection.counted("usage", usage_of(self._connection.live, self.tenant))

    async def put_blob(self, data: bytes) -> BlobRef:
        """Store a large payload in the blob store. Put the returned reference into a message.

        A handler reads it with `await current_job().read_blob(ref)`. Holdfast never deletes it: set a lifecycle rule on
        `<tenant>/payloads/` if the blob store has such rules.
        """
        return await results.blob_store(self._connection).add(self.tenant, data)

    async def read_blob(self, ref: BlobRef) -> bytes:
        """The payload of a reference. Raises InvalidPayload if it is gone or another tenant's."""
        return await results.blob_store(self._connection).read(check_owner(ref, self.tenant))
