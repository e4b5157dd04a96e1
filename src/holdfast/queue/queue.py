"""Queue: a store bound to one tenant. Checks, coalescing and telemetry, once for all stores."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar, Unpack, cast, overload

from msgspec import convert

from holdfast.core.budgets import check_envelope
from holdfast.core.errors import HoldfastError, InvalidOption, PartlyRefused, ResultExpired
from holdfast.core.job import (
    Duplicate,
    Envelope,
    JobKey,
    JobState,
    NewJob,
    Queued,
)
from holdfast.core.names import FLOWS
from holdfast.core.schedule import target_of
from holdfast.extensions import FlowReader, ScheduleKeeper
from holdfast.flows.flow import Flow, FlowRecord, flow_record
from holdfast.ids import new_id
from holdfast.jobs.definition import Message, untyped
from holdfast.jobs.options import EnqueueOptions, Resolved, ScheduleOptions, Seconds, resolve, timeout_s
from holdfast.queue.administration import Administration
from holdfast.queue.coalesce import BATCH_LIMIT
from holdfast.queue.records import Schedule
from holdfast.queue.ticket import Ticket
from holdfast.schedules.schedules import check_plain, scheduling
from holdfast.schedules.ticks import check_name, timing
from holdfast.store import EnqueueAnswer
from holdfast.telemetry import metrics, tracing

R = TypeVar("R")

PART = 250
"""Of a long enqueue so many jobs are made at a time: in between the event loop can send on what is on its way."""

_Jobs = list[tuple[Message[Any], NewJob | HoldfastError]]
"""Messages, and what each came to: a job, or why it is none."""


_NOTHING = Message.raw(None)
"""Stands for an item that is no message."""

OnRefused = Literal["raise", "return"]


class Queue(Administration):
    """One tenant's jobs in a store: enqueue them, follow them, steer them.

        async with Queue("file:./data", tenant="acme") as queue:
            ticket = await queue.enqueue(send_email.message("a@example.com"))

    `name` is the queue that jobs go to and are looked up in where neither the call nor the job's definition
    names one. Use one Queue from one event loop; concurrent calls share round trips.
    """

    @overload
    async def enqueue(
        self, message: Message[R], *, connection: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Ticket[R]: ...
    @overload
    async def enqueue(
        self, message: Any, *, connection: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Ticket[Any]: ...
    async def enqueue(self, message: Any, *, connection: Any = None, **options: Unpack[EnqueueOptions]) -> Ticket[Any]:
        """Take in a message, or a payload without a job type. [ENQ-1 to ENQ-8]

        The ticket says "queued", or what was there already under that id or key. `connection` joins the caller's
        own transaction where the store can. Raises InvalidName, InvalidOption, InvalidPayload, PayloadTooLarge
        or QuotaExceeded, and then nothing was enqueued.
        """
        item = _message(message)
        new = self._new_job(item, _options(item, options), tracing.inject())
        ticket = self._ticket(new.key, item, await self._send(new, connection))
        if ticket.error is not None:
            raise ticket.error
        if ticket.status == "completed":
            await self._add_blob(ticket)
        return ticket

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
        """Take in many messages, 1000 to a round trip, and answer item by item, in order. [ENQ-4]

        A refused message spoils no other: its ticket has the status "refused" and the `error`. When all have been
        tried, PartlyRefused is raised with all tickets; `on_refused="return"` returns them instead, which is the
        default with a `connection`: the transaction is the caller's to commit or to roll back. Duplicates are not
        refusals. `options` hold for all; `message.options(id=...)` gives one message its own. An error of the store
        or of `messages` ends the call; its notes say how many messages were answered before, and how many refused.
        """
        raising = raises_refusals(on_refused, connection)
        if isinstance(messages, Message):
            raise InvalidOption("enqueue_many", "this is one message: use enqueue, or give a list of messages")
        if options.get("id") is not None or options.get("idempotency_key") is not None:
            raise InvalidOption("enqueue_many", "an id or key is one item's: use message.options(id=...)")
        common = resolve(options)
        tickets: list[Ticket[Any]] = []
        jobs: _Jobs = []
        sent: _Jobs = []
        sending: asyncio.Task[Sequence[EnqueueAnswer]] | None = None
        try:
            async for part in _parts(messages):
                # While one batch is on its way the next is made; it leaves when that is answered, so order holds.
                jobs += self._jobs_of(part, options, common)
                if jobs and (len(jobs) == BATCH_LIMIT or len(part) < PART):
                    answers = None if sending is None else await sending
                    answered, sent, jobs = sent, jobs, []
                    sending = asyncio.create_task(self._answers_to(sent, connection))
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)  # By now it has left; what else there is to do keeps nobody waiting.
                    if answers is not None:
                        tickets += await self._tickets(answered, answers, common)
                else:
                    await asyncio.sleep(0)
            if sending is not None:
                answers, sending = await sending, None
                tickets += await self._tickets(sent, answers, common)
        except BaseException as error:
            if (last := await _end(sending, error)) is not None:
                tickets += await self._tickets(sent, last, common)
            note_answered(error, tickets)
            raise
        if raising and any(ticket.error is not None for ticket in tickets):
            raise PartlyRefused(tickets)
        return tickets

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
        """Enqueue, and wait for the result: of the job that was there already, if one was. [RESULT-2, RESULT-3]

        Subscribes before it enqueues. Raises what `enqueue` and `result` raise; InvalidOption with a `connection` that
        could be joined: nobody runs a job that is not committed.
        """
        if connection is not None and self.capabilities.transactional_enqueue:
            reason = "a job runs when your transaction has committed: enqueue in it, and ticket.wait() after the commit"
            raise InvalidOption("connection", reason)
        limit = timeout_s(timeout)
        clock = asyncio.get_running_loop().time
        end = None if limit is None else clock() + limit
        item = _message(message)
        new = self._new_job(item, _options(item, options), tracing.inject())
        with self._waits.watch(new.key, new.envelope.request_id) as watch:
            ticket = self._ticket(new.key, item, await self._send(new, connection))
            if ticket.status == "queued":
                watch.enqueued()
                return await self._outcome(watch, None if end is None else max(0.0, end - clock()), ticket.result_type)
        return await ticket.wait(None if end is None else max(0.0, end - clock()))

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
        """Have a message enqueued at every tick: of a `cron` expression in a `timezone`, or `every` so often.

        The same again changes nothing, so call it at every start; another takes the place of the one of that name.
        For each tick there is one job at most, `name@tick`. Of ticks that nobody was there for, the last one is run.
        Raises InvalidName, InvalidOption, InvalidPayload, PayloadTooLarge or QuotaExceeded.
        """
        check_name(name)
        when = timing(cron, every, timezone, here=not isinstance(self._live, ScheduleKeeper))
        item = _message(message)
        new = self._new_job(item, check_plain(_options(item, cast("EnqueueOptions", options))), None)
        put = scheduling(self._live).put_schedule(self.tenant, name, when, target_of(new))
        return Schedule(await self._counted("schedule", put))

    async def start(self, flow: Flow, *, connection: Any = None) -> Ticket[dict[str, Any]]:
        """Start a flow: its steps are enqueued in their turn, by whoever does the upkeep of the store.

        The ticket is that of the flow: `wait()` gives a dict of the steps by name, each with its `state` and, where
        they are not too large together, its `result`; it raises JobFailed, naming the steps that did not complete.
        `cancel()` cancels the flow and its open steps. A flow id that is known answers as in `enqueue`. [ENQ-2]
        Raises InvalidOption, PayloadTooLarge or QuotaExceeded, and then nothing was started.
        """
        headers = tracing.inject()
        jobs = [self._new_job(step.message, step.options, headers) for step in flow.steps]
        new = flow.job(self.tenant, jobs, headers)
        check_envelope(new.envelope, self._ceiling_ms)
        ticket = self._ticket(new.key, untyped(None), await self._send(new, connection))
        if ticket.error is not None:
            raise ticket.error
        return ticket

    async def flow(self, id: str) -> FlowRecord | None:
        """A flow and its steps as they are now, or None."""
        self._check_open()
        key, store = self._key(id, FLOWS), self._live
        if isinstance(store, FlowReader):
            shown = await self._counted("flow", store.flow(self.tenant, key.id))
            return None if shown is None else convert(shown, FlowRecord, from_attributes=True)
        job = await self._gets(key)
        return None if job is None else await flow_record(self._live, job)

    # The small steps --------------------------------------------------------------------------------------

    def _new_job(self, message: Message[Any], options: Resolved, headers: dict[str, str] | None) -> NewJob:
        spec = message.spec
        data, codec = message.encode(self.codec)
        request_id = new_id()
        ttl_ms = spec.result_ttl_ms if options.result_ttl_ms is None else options.result_ttl_ms
        envelope = Envelope(
            spec.type,
            data,
            codec,
            spec.version,
            spec.priority if options.priority is None else options.priority,
            options.max_attempts or spec.max_attempts,
            spec.backoff,
            spec.timeout_ms,
            ttl_ms,
            request_id,
            options.idempotency,
            headers,
        )
        key = JobKey(self.tenant, options.queue or spec.queue or self.name, options.id or request_id)
        if self._ceiling_ms:
            check_envelope(envelope, self._ceiling_ms)
        return NewJob(key, envelope, options.delay_ms, options.run_at, options.replace_failed)

    def _send(self, new: NewJob, connection: Any) -> Awaitable[EnqueueAnswer]:
        self._check_open()
        return self._enqueues.one(new) if connection is None else self._join(new, connection)

    async def _join(self, new: NewJob, connection: Any) -> EnqueueAnswer:
        return (await self._enqueue_batch([new], connection))[0]

    def _jobs_of(self, part: list[Any], options: EnqueueOptions, common: Resolved) -> _Jobs:
        headers = tracing.inject()
        return [self._job_or_refusal(item, options, common, headers) for item in part]

    async def _answers_to(self, jobs: _Jobs, connection: Any) -> Sequence[EnqueueAnswer]:
        good = [job for _, job in jobs if isinstance(job, NewJob)]
        return await self._enqueue_batch(good, connection) if good else ()

    async def _tickets(self, jobs: _Jobs, answers: Sequence[EnqueueAnswer], common: Resolved) -> list[Ticket[Any]]:
        coming = iter(answers)
        tickets: list[Ticket[Any]] = []
        for message, job in jobs:
            if isinstance(job, NewJob):
                ticket = self._ticket(job.key, message, next(coming))
            else:
                own = message.resolved
                queue = own.queue or common.queue or message.spec.queue or self.name
                ticket = self._ticket(JobKey(self.tenant, queue, own.id or ""), message, job)
            if ticket.status == "completed":
                await self._add_blob(ticket)
            tickets.append(ticket)
        return tickets

    def _job_or_refusal(
        self, item: Any, options: EnqueueOptions, common: Resolved, headers: dict[str, str] | None
    ) -> tuple[Message[Any], NewJob | HoldfastError]:
        message = _NOTHING
        try:
            message = _message(item)
            return message, self._new_job(message, _options(message, options) if message.said else common, headers)
        except HoldfastError as refusal:
            return message, refusal

    def _ticket(self, key: JobKey, message: Message[Any], answer: EnqueueAnswer | HoldfastError) -> Ticket[Any]:
        ticket: Ticket[Any]
        if isinstance(answer, Queued):
            ticket = Ticket(self, key, "queued", answer.state, message.definition)
        elif isinstance(answer, HoldfastError):
            ticket = Ticket(self, key, "refused", None, error=answer)
        elif isinstance(answer, Duplicate):
            found = key._replace(id=answer.id)
            ticket = Ticket(self, found, "duplicate", answer.state, message.definition)
        else:
            found = key._replace(id=answer.id)
            ticket = Ticket(self, found, "completed", JobState.COMPLETED, message.definition, answer.result)
        if metrics.current is not None:
            metrics.current.enqueued(key.queue, ticket.status)
        return ticket

    async def _add_blob(self, ticket: Ticket[Any]) -> None:
        # One that is gone shows when somebody asks for the result, and spoils nothing else.
        with contextlib.suppress(ResultExpired):
            ticket.blob = await self._fetch(ticket.kept, ticket.key)


def raises_refusals(on_refused: OnRefused | None, connection: Any) -> bool:
    """Whether `enqueue_many` raises PartlyRefused. Raises InvalidOption."""
    if on_refused not in (None, "raise", "return"):
        raise InvalidOption("on_refused", f"{on_refused!r} is not 'raise' or 'return'")
    # An exception would make most callers roll their transaction back, which a refusal must not decide (ADR 10).
    return on_refused == "raise" or (on_refused is None and connection is None)


def note_answered(error: BaseException, tickets: Sequence[Any]) -> None:
    """Say on an error that ended `enqueue_many` what had been answered before it."""
    if tickets:
        refused = sum(ticket.error is not None for ticket in tickets)
        error.add_note(f"enqueue_many: the first {len(tickets)} messages were answered before this, {refused} refused.")


async def _end(
    sending: asyncio.Task[Sequence[EnqueueAnswer]] | None, error: BaseException
) -> Sequence[EnqueueAnswer] | None:
    """Leave no batch on its way: one whose caller was canceled is canceled too, else it is seen through.

    The answers, if there are any.
    """
    if sending is None:
        return None
    if isinstance(error, asyncio.CancelledError):
        sending.cancel()
    await asyncio.wait([sending])
    return None if sending.cancelled() or sending.exception() is not None else sending.result()


def _message(message: Any) -> Message[Any]:
    return cast("Message[Any]", message) if isinstance(message, Message) else untyped(message)


def _options(message: Message[Any], options: EnqueueOptions) -> Resolved:
    """The options of one item: the message's own win over those of the call."""
    if message.said is None:
        return resolve(options)
    return resolve({**options, **message.said}) if options else message.resolved


async def _parts(messages: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[list[Any]]:
    """Messages as they come, `PART` at a time; the last part is smaller, or empty."""
    part: list[Any] = []
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            part.append(message)
            if len(part) == PART:
                yield part
                part = []
        yield part
        return
    source = iter(messages)
    while len(part := list(islice(source, PART))) == PART:
        yield part
    yield part
