"""Routes for producers: enqueue, read, wait, cancel."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import Any

from msgspec import UNSET

from holdfast.core.budgets import check_envelope, check_kept
from holdfast.core.errors import HoldfastError, JobNotFound, WaitTimeout
from holdfast.core.explain import Explanation, without_others
from holdfast.core.flow import plan_of
from holdfast.core.job import (
    PAYLOAD_LIMIT,
    TERMINAL,
    AlreadyCompleted,
    Cancel,
    Job,
    JobKey,
    JobState,
    NewJob,
    Queued,
    SetResultTtl,
)
from holdfast.core.names import FLOWS
from holdfast.core.policy import KnownTypes
from holdfast.jobs.options import duration_ms
from holdfast.protocol import answers, requests
from holdfast.queue import results
from holdfast.queue.explaining import explain_job
from holdfast.service import parsing, views
from holdfast.service.answer_size import ANSWER_BYTES
from holdfast.service.call import Reply, Route, ServiceCall
from holdfast.service.errors import Refusal
from holdfast.service.routes.batches import each, each_of_queue
from holdfast.service.tokens import PRODUCE, READ
from holdfast.store import EnqueueAnswer

SCAN_LIMIT = 10_000
"""The most events that one request scans for those of one job."""


async def enqueue(call: ServiceCall[requests.Enqueue, requests.NoQuery]) -> Reply:
    """201 for a new job, 200 for an existing one. [ENQ-2]"""
    known = await call.context.types.of(call.tenant)
    new = _new_job(call, call.body, known, await parsing.payload_of(call.body, call.context.turns, call.tenant))
    answer = await call.context.enqueue(new)
    if isinstance(answer, HoldfastError):
        raise answer
    if isinstance(answer, Queued):
        return Reply(_queued(new, answer, known), 201)
    return Reply(await ticket(call, new, answer), 200)


async def enqueue_batch(call: ServiceCall[list[requests.Enqueue | HoldfastError], requests.NoQuery]) -> Reply:
    """A refused item affects no other. [ENQ-4]"""
    known = await call.context.types.of(call.tenant)

    size = 0

    def show(new: NewJob, answer: EnqueueAnswer) -> Any:
        return _queued(new, answer, known) if isinstance(answer, Queued) else show_other(new, answer)

    async def show_other(new: NewJob, answer: EnqueueAnswer) -> Any:
        nonlocal size
        shown = await ticket(call, new, answer)
        size += 0 if shown.result is UNSET else len(bytes(shown.result))
        if size > ANSWER_BYTES:
            reason = f"the results of completed jobs make the answer longer than {ANSWER_BYTES} bytes; send fewer items"
            raise Refusal("body_too_large", reason)
        call.hold.resize(size)
        return shown

    def make(item: requests.Enqueue) -> NewJob | Awaitable[NewJob]:
        payload = parsing.small_value(item.payload, item.codec, PAYLOAD_LIMIT)
        return make_large(item) if payload is None else _new_job(call, item, known, payload)

    async def make_large(item: requests.Enqueue) -> NewJob:
        payload = await parsing.large_value(item.payload, item.codec, call.context.turns, call.tenant)
        return _new_job(call, item, known, payload)

    return Reply(await each(call.body, make, call.context.enqueue_many, show, call))


async def types(call: ServiceCall[None, requests.PageQuery]) -> Reply:
    """Only types of queues that the token is for. The list may be a few seconds old."""
    known = await call.context.types.of(call.tenant)
    if call.caller.queues is not None:
        known = known.only(call.caller.queues)
    return Reply(views.types(known, call.query.cursor or "", call.query.limit))


async def get(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """With its payload, errors and result."""
    job = await _found(call)
    return Reply(views.job(job, await results.fetch_blob(call.connection, job.result, job.key)))


async def explain(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """Why the job is where it is, and what would move it. The work is bounded, whatever the backlog."""
    key = _key(call)
    call.hold.check()
    found = await explain_job(call.connection, key)
    if found.state is None or not await _may_see_steps(call, found):
        raise JobNotFound(key.queue, key.id)
    return Reply(without_others(found))


async def _may_see_steps(call: ServiceCall[Any, Any], found: Explanation) -> bool:
    """Whether the token is for the queues of all steps of the flow that the causes describe."""
    cause, only = found.has("steps"), call.caller.queues
    if cause is None or only is None:
        return True
    flow = await call.connection.gets(JobKey(call.tenant, FLOWS, cause.flow or ""))
    return flow is not None and all(step.queue in only for step in plan_of(flow.envelope).steps)


async def result(call: ServiceCall[None, requests.WaitQuery]) -> Reply:
    """Waits for up to `wait_s`, without polling. [RESULT-2, RESULT-3]"""
    return await outcome(call, await ended(call, _key(call)) or await _found(call))


async def job_events(call: ServiceCall[None, requests.EventQuery]) -> Reply:
    """Each request scans a part of the log, so a page may be empty and still have a cursor."""
    key, query = _key(call), call.query
    await _found(call)
    found: list[answers.Event] = []
    after, scanned, more = query.after or None, 0, True
    while more and scanned < SCAN_LIMIT and len(found) < query.limit:
        page = await call.context.event_caches.history.read(call.tenant, after, requests.PAGE_LIMIT)
        scanned += requests.PAGE_LIMIT
        more = page.more
        ours = [event for event in page.events if event.job_id == key.id and event.queue == key.queue]
        room = query.limit - len(found)
        found += [views.event(event) for event in ours[:room]]
        if len(ours) > room:
            return Reply(answers.Events(events=found, cursor=found[-1].offset))
        after = page.next
    return Reply(answers.Events(events=found, cursor=after if more else None))


async def cancel(call: ServiceCall[None, requests.CancelQuery]) -> Reply:
    """A running job is canceled too, unless `only_waiting`. [CANCEL-1 to CANCEL-3]"""
    key = _key(call)
    status = await call.connection.cancels(Cancel(key, call.query.only_waiting, by=call.by))
    if status == "not_found":
        raise JobNotFound(key.queue, key.id)
    return Reply(answers.Canceled(status=status))


async def cancel_batch(call: ServiceCall[list[requests.Cancel | HoldfastError], requests.NoQuery]) -> Reply:
    """In the order of the batch. A missing job is answered `not_found`. [CANCEL-1 to CANCEL-3]"""

    def make(key: JobKey, item: requests.Cancel) -> Cancel:
        return Cancel(key, item.only_waiting, item.sequence, call.by)

    return await each_of_queue(call, make, call.context.store.cancel, answers.Canceled)


async def set_result_ttl(call: ServiceCall[list[requests.SetResultTtl | HoldfastError], requests.NoQuery]) -> Reply:
    """The time counts from now. [RESULT-1]"""

    def make(key: JobKey, item: requests.SetResultTtl) -> SetResultTtl:
        kept_ms = check_kept("result_ttl_s", duration_ms("result_ttl_s", item.result_ttl_s), call.context.ceiling_ms)
        return SetResultTtl(key, kept_ms, item.sequence)

    return await each_of_queue(call, make, call.context.store.set_result_ttl, answers.ResultTtlSet)


# Helpers ------------------------------------------------------------------------------------------


def _new_job(call: ServiceCall[Any, Any], item: requests.Enqueue, known: KnownTypes, payload: bytes) -> NewJob:
    policy = known.types.get(item.type, parsing.PLAIN_TYPE)
    new = parsing.new_job(call.tenant, item, call.trace, payload, policy)
    check_envelope(new.envelope, call.context.ceiling_ms)
    call.caller.need_queue(new.key.queue)
    return new


def _queued(new: NewJob, answer: Queued, known: KnownTypes | None) -> answers.Ticket:
    """The answer to an enqueue that created a job, with a warning if no known worker runs its type."""
    queue = new.key.queue
    warnings = [] if known is None else known.warnings(new.envelope.type, queue)
    return answers.Ticket(status="queued", id=answer.id, queue=queue, state=answer.state, warnings=warnings)


async def ticket(call: ServiceCall[Any, Any], new: NewJob, answer: EnqueueAnswer) -> answers.Ticket:
    """The answer to one enqueue. Raises the error of a refused one."""
    queue = new.key.queue
    if isinstance(answer, Queued):
        return _queued(new, answer, None)
    if isinstance(answer, AlreadyCompleted):
        key = new.key._replace(id=answer.id)
        value = views.value(answer.result, await results.fetch_blob(call.connection, answer.result, key))
        codec = views.codec_name(answer.result.codec)
        state = JobState.COMPLETED
        return answers.Ticket(status="completed", id=answer.id, queue=queue, state=state, result=value, codec=codec)
    if isinstance(answer, HoldfastError):
        raise answer
    return answers.Ticket(status="duplicate", id=answer.id, queue=queue, state=answer.state)


async def ended(call: ServiceCall[Any, requests.WaitQuery], key: JobKey) -> Job | None:
    """The job, if the caller waits and it ends in time."""
    if call.query.wait_s:
        call.wait()
        with call.leaving() as gone, contextlib.suppress(WaitTimeout):
            return await results.ended(call.connection, key, call.query.wait_s, gone=gone)
    return None


async def outcome(call: ServiceCall[Any, Any], job: Job) -> Reply:
    """The answer with a job's outcome; 202 before its end."""
    blob = await results.fetch_blob(call.connection, job.result, job.key)
    return Reply(views.outcome(job, blob), 200 if job.state in TERMINAL else 202)


def _key(call: ServiceCall[Any, Any]) -> JobKey:
    return JobKey(call.tenant, call.queue, call.id)


async def _found(call: ServiceCall[Any, Any]) -> Job:
    """The job that the path names. Another tenant's job answers exactly like a missing one. [TENANT-2]"""
    key = _key(call)
    call.hold.check()
    job = await call.connection.gets(key)
    if job is None:
        raise JobNotFound(key.queue, key.id)
    return job


_JOB = "/v1/queues/{queue}/jobs/{id}"
_REFUSALS = ("invalid_name", "invalid_option", "invalid_payload", "unknown_codec")

ROUTES = (
    Route(
        method="POST", path="/v1/jobs", handler=enqueue, scope=PRODUCE, body=requests.Enqueue,
        summary="Enqueue one job", answers={201: answers.Ticket, 200: answers.Ticket},
        refuses=(*_REFUSALS, "payload_too_large", "quota_exceeded"),
    ),
    Route(
        method="POST", path="/v1/jobs:batch", handler=enqueue_batch, scope=PRODUCE,
        body=requests.EnqueueBatch, batch="jobs", item=requests.Enqueue,
        summary="Enqueue up to 1000 jobs. Items are answered one by one", answers={200: answers.Ticket},
    ),
    Route(
        method="GET", path="/v1/types", handler=types, scope=PRODUCE, query=requests.PageQuery,
        summary="A page of the job types that live workers run, with their default options",
        answers={200: answers.Types}, refuses=("invalid_option",),
    ),
    Route(
        method="GET", path=_JOB, handler=get, scope=READ, summary="A job",
        answers={200: answers.Job}, refuses=("invalid_name", "job_not_found", "result_expired"),
    ),
    Route(
        method="DELETE", path=_JOB, handler=cancel, action="job.cancel", scope=PRODUCE, query=requests.CancelQuery,
        summary="Cancel a job", answers={200: answers.Canceled}, refuses=("invalid_name", "job_not_found"),
    ),
    Route(
        method="GET", path=f"{_JOB}/explain", handler=explain, scope=READ, answers={200: Explanation},
        summary="Why a job is where it is, and what would move it",
        refuses=("invalid_name", "job_not_found", "unknown_codec"),
    ),
    Route(
        method="GET", path=f"{_JOB}/result", handler=result, scope=READ, query=requests.WaitQuery,
        summary="The result of a job; 202 before its end", answers={200: answers.Outcomes, 202: answers.Outcomes},
        refuses=("invalid_name", "job_not_found", "result_expired"),
    ),
    Route(
        method="GET", path=f"{_JOB}/events", handler=job_events, scope=READ, query=requests.EventQuery,
        summary="A page of a job's events, oldest first", answers={200: answers.Events},
        refuses=("invalid_name", "invalid_option", "job_not_found", "events_trimmed"),
    ),
    Route(
        method="POST", path="/v1/queues/{queue}/jobs:cancel", handler=cancel_batch, action="jobs.cancel", scope=PRODUCE,
        body=requests.CancelBatch, batch="jobs", item=requests.Cancel,
        summary="Cancel jobs of a queue", answers={200: answers.Canceled}, refuses=("invalid_name",),
    ),
    Route(
        method="POST", path="/v1/queues/{queue}/jobs:set-result-ttl", handler=set_result_ttl, scope=PRODUCE,
        body=requests.SetResultTtlBatch, batch="jobs", item=requests.SetResultTtl,
        summary="Change how long finished jobs are kept",
        answers={200: answers.ResultTtlSet}, refuses=("invalid_name",),
    ),
)  # fmt: skip
