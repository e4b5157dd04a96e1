"""Enqueue: from messages to jobs to tickets. One message, many, or a flow. [ENQ-1 to ENQ-8]"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Literal, cast

from holdfast.core.budgets import check_envelope
from holdfast.core.errors import HoldfastError, InvalidOption, PartlyRefused, ResultExpired
from holdfast.core.job import Duplicate, Envelope, JobKey, JobState, NewJob, Queued
from holdfast.flows.flow import Flow
from holdfast.ids import new_id
from holdfast.jobs.definition import Message, untyped
from holdfast.jobs.options import EnqueueOptions, Resolved, Seconds, resolve, timeout_s
from holdfast.queue.coalesce import BATCH_LIMIT
from holdfast.queue.connection import Connection
from holdfast.queue.results import end_of, fetch_blob, outcome
from holdfast.queue.ticket import Owner, Ticket
from holdfast.store import EnqueueAnswer
from holdfast.telemetry import metrics, tracing

OnRefused = Literal["raise", "return"]

ENCODED_PER_TURN = 250
"""Jobs of a long enqueue encoded per turn of the event loop: in between, the loop serves calls in flight."""

_EncodedJobs = list[tuple[Message[Any], NewJob | HoldfastError]]
"""Each message with its job, or with the error that refuses it."""

_NO_MESSAGE = Message.raw(None)
"""The message in the ticket of a flow, and of an item that is not a message."""


class Producer:
    """The enqueueing half of a Queue. `owner` is that Queue, which tickets refer to."""

    def __init__(self, connection: Connection, owner: Owner) -> None:
        self._connection = connection
        self._owner = owner
        self.on_message: Callable[[Message[Any]], None] | None = None
        """Called with every message before encoding."""

    async def send(self, new: NewJob, message: Message[Any], connection: Any) -> Ticket[Any]:
        """Enqueue one job: in the caller's transaction, or in a round trip that concurrent calls share."""
        self._connection.check_open()
        if connection is None:
            answer = await self._connection.enqueues.one(new)
        else:
            (answer,) = await self._connection.enqueue_batch([new], connection)
        ticket = self._ticket(new.key, message, answer)
        if ticket.error is not None:
            raise ticket.error
        if ticket.status == "completed":
            await self._add_blob(ticket)
        return ticket

    async def enqueue_many(
        self,
        messages: Iterable[Any] | AsyncIterable[Any],
        connection: Any,
        on_refused: OnRefused | None,
        options: EnqueueOptions,
    ) -> list[Ticket[Any]]:
        """Enqueue in batches. While one batch is in flight, encode the next."""
        raising = raises_refusals(on_refused, connection)
        if isinstance(messages, Message):
            raise InvalidOption("enqueue_many", "this is one message: use enqueue, or give a list of messages")
        if options.get("id") is not None or options.get("idempotency_key") is not None:
            raise InvalidOption("enqueue_many", "an id or key is for one message: use message.options(id=...)")
        common = resolve(options)
        tickets: list[Ticket[Any]] = []
        jobs: _EncodedJobs = []
        sent: _EncodedJobs = []
        sending: asyncio.Task[Sequence[EnqueueAnswer]] | None = None
        try:
            async for part in _parts(messages):
                jobs += self._encode(part, options, common)
                if jobs and (len(jobs) == BATCH_LIMIT or len(part) < ENCODED_PER_TURN):
                    # A batch is sent when the one before it is answered: this keeps the order.
                    answers = None if sending is None else await sending
                    answered, sent, jobs = sent, jobs, []
                    sending = asyncio.create_task(self._send_batch(sent, connection))
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)  # The batch is sent now, so making tickets delays nothing.
                    if answers is not None:
                        tickets += await self._tickets(answered, answers, common)
                else:
                    await asyncio.sleep(0)
            if sending is not None:
                answers, sending = await sending, None
                tickets += await self._tickets(sent, answers, common)
        except BaseException as error:
            if (last := await _finish_batch(sending, error)) is not None:
                tickets += await self._tickets(sent, last, common)
            note_answered(error, tickets)
            raise
        if raising and any(ticket.error is not None for ticket in tickets):
            raise PartlyRefused(tickets)
        return tickets

    async def enqueue_and_wait(
        self, message: Any, timeout: Seconds | None, connection: Any, options: EnqueueOptions
    ) -> Any:
        """Subscribe, enqueue, and wait for the result. [RESULT-2]"""
        if connection is not None and self._connection.store.capabilities.transactional_enqueue:
            reason = "a job runs after your transaction committed: enqueue in it, and ticket.wait() after the commit"
            raise InvalidOption("connection", reason)
        limit = timeout_s(timeout)
        clock = asyncio.get_running_loop().time
        end = None if limit is None else clock() + limit
        item = as_message(message)
        new = self.new_job(item, options_of(item, options), tracing.inject())
        with self._connection.waits.watch(new.key, new.envelope.request_id) as watch:
            ticket = await self.send(new, item, connection)
            if ticket.status == "queued":
                watch.enqueued()
                left = None if end is None else max(0.0, end - clock())
                return await outcome(self._connection, await end_of(watch, left), ticket.result_type)
        return await ticket.wait(None if end is None else max(0.0, end - clock()))

    async def start(self, flow: Flow, connection: Any) -> Ticket[dict[str, Any]]:
        """Enqueue the job of a flow, which carries all its steps."""
        headers = tracing.inject()
        jobs = [self.new_job(step.message, step.options, headers) for step in flow.steps]
        new = flow.job(self._connection.tenant, jobs, headers)
        check_envelope(new.envelope, self._connection.ceiling_ms)
        return await self.send(new, _NO_MESSAGE, connection)

    def new_job(self, message: Message[Any], options: Resolved, headers: dict[str, str] | None) -> NewJob:
        """Encode a message. Raises InvalidOption, InvalidPayload or PayloadTooLarge."""
        if self.on_message is not None:
            self.on_message(message)
        connection, spec = self._connection, message.spec
        data, codec = message.encode(connection.codec)
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
        key = JobKey(connection.tenant, options.queue or spec.queue or connection.name, options.id or request_id)
        if connection.ceiling_ms:
            check_envelope(envelope, connection.ceiling_ms)
        return NewJob(key, envelope, options.delay_ms, options.run_at, options.replace_failed)

    def _encode(self, part: list[Any], options: EnqueueOptions, common: Resolved) -> _EncodedJobs:
        headers = tracing.inject()
        return [self._job_or_refusal(item, options, common, headers) for item in part]

    def _job_or_refusal(
        self, item: Any, options: EnqueueOptions, common: Resolved, headers: dict[str, str] | None
    ) -> tuple[Message[Any], NewJob | HoldfastError]:
        message = _NO_MESSAGE
        try:
            message = as_message(item)
            return message, self.new_job(message, options_of(message, options) if message.given else common, headers)
        except HoldfastError as refusal:
            return message, refusal

    async def _send_batch(self, jobs: _EncodedJobs, connection: Any) -> Sequence[EnqueueAnswer]:
        valid = [job for _, job in jobs if isinstance(job, NewJob)]
        return await self._connection.enqueue_batch(valid, connection) if valid else ()

    async def _tickets(
        self, jobs: _EncodedJobs, answers: Sequence[EnqueueAnswer], common: Resolved
    ) -> list[Ticket[Any]]:
        remaining = iter(answers)
        tickets: list[Ticket[Any]] = []
        for message, job in jobs:
            if isinstance(job, NewJob):
                ticket = self._ticket(job.key, message, next(remaining))
            else:
                own = message.resolved
                queue = own.queue or common.queue or message.spec.queue or self._connection.name
                ticket = self._ticket(JobKey(self._connection.tenant, queue, own.id or ""), message, job)
            if ticket.status == "completed":
                await self._add_blob(ticket)
            tickets.append(ticket)
        return tickets

    def _ticket(self, key: JobKey, message: Message[Any], answer: EnqueueAnswer | HoldfastError) -> Ticket[Any]:
        ticket: Ticket[Any]
        if isinstance(answer, Queued):
            ticket = Ticket(self._owner, key, "queued", answer.state, message.definition)
        elif isinstance(answer, HoldfastError):
            ticket = Ticket(self._owner, key, "refused", None, error=answer)
        elif isinstance(answer, Duplicate):
            found = key._replace(id=answer.id)
            ticket = Ticket(self._owner, found, "duplicate", answer.state, message.definition)
        else:
            found = key._replace(id=answer.id)
            ticket = Ticket(self._owner, found, "completed", JobState.COMPLETED, message.definition, answer.result)
        if metrics.current is not None:
            metrics.current.enqueued(key.queue, ticket.status)
        return ticket

    async def _add_blob(self, ticket: Ticket[Any]) -> None:
        # If the blob is gone, the ticket says so when its result is read. The enqueue itself has succeeded.
        with contextlib.suppress(ResultExpired):
            ticket.blob = await fetch_blob(self._connection, ticket.kept, ticket.key)


def raises_refusals(on_refused: OnRefused | None, connection: Any) -> bool:
    """Whether `enqueue_many` raises PartlyRefused. Raises InvalidOption."""
    if on_refused not in (None, "raise", "return"):
        raise InvalidOption("on_refused", f"{on_refused!r} is not 'raise' or 'return'")
    # An exception would make most callers roll their transaction back. A refusal must not decide that (ADR 10).
    return on_refused == "raise" or (on_refused is None and connection is None)


def note_answered(error: BaseException, tickets: Sequence[Any]) -> None:
    """Add to an error that ended `enqueue_many` how many messages were answered before it."""
    if tickets:
        refused = sum(ticket.error is not None for ticket in tickets)
        error.add_note(f"enqueue_many: the first {len(tickets)} messages were answered before this, {refused} refused.")


def as_message(message: Any) -> Message[Any]:
    """A message, or a payload without a job type as one."""
    return cast("Message[Any]", message) if isinstance(message, Message) else untyped(message)


def options_of(message: Message[Any], options: EnqueueOptions) -> Resolved:
    """The options of one message. Its own override those of the call."""
    if message.given is None:
        return resolve(options)
    return resolve({**options, **message.given}) if options else message.resolved


async def _finish_batch(
    sending: asyncio.Task[Sequence[EnqueueAnswer]] | None, error: BaseException
) -> Sequence[EnqueueAnswer] | None:
    """Leave no batch in flight: cancel it if the caller was canceled, else wait for it. Returns its answers, if any."""
    if sending is None:
        return None
    if isinstance(error, asyncio.CancelledError):
        sending.cancel()
    await asyncio.wait([sending])
    return None if sending.cancelled() or sending.exception() is not None else sending.result()


async def _parts(messages: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[list[Any]]:
    """Parts of ENCODED_PER_TURN messages. The last part is smaller, or empty."""
    part: list[Any] = []
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            part.append(message)
            if len(part) == ENCODED_PER_TURN:
                yield part
                part = []
        yield part
        return
    source = iter(messages)
    while len(part := list(islice(source, ENCODED_PER_TURN))) == ENCODED_PER_TURN:
        yield part
    yield part
