"""Flows: start, read, wait, cancel, replay."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.budgets import check_envelope, check_kept
from holdfast.core.errors import HoldfastError, JobNotFound
from holdfast.core.flow import plan_of
from holdfast.core.job import AlreadyCompleted, Duplicate, Job, JobKey, Queued
from holdfast.core.names import FLOWS
from holdfast.flows.flow import flow_record
from holdfast.jobs.options import duration_ms
from holdfast.protocol import answers, requests
from holdfast.queue import dead_letters
from holdfast.queue.cancel import cancel_job
from holdfast.service import parsing
from holdfast.service.call import Reply, Route, ServiceCall
from holdfast.service.routes.jobs import ended, outcome, ticket
from holdfast.service.tokens import ADMIN, PRODUCE, READ


async def start_flow(call: ServiceCall[requests.NewFlow, requests.NoQuery]) -> Reply:
    """201 for a new flow, 200 for an existing one. A step is enqueued when the steps before it are complete. [ENQ-2]"""
    new = await parsing.flow(call.tenant, call.body, call.trace, call.context.turns)
    check_envelope(new.envelope, call.context.ceiling_ms)
    for step in call.body.steps:
        call.caller.need_queue(step.queue)
        if step.result_ttl_s is not None:
            check_kept("result_ttl_s", duration_ms("result_ttl_s", step.result_ttl_s), call.context.ceiling_ms)
    call.context.changes.take(call.tenant, len(call.body.steps))
    answer = await call.context.enqueue(new)
    if isinstance(answer, HoldfastError):
        raise answer
    if call.caller.queues is not None and not isinstance(answer, Queued):
        # The existing flow may have steps in queues that the token is not for: then only its existence is shown.
        found = await call.connection.gets(new.key._replace(id=answer.id))
        if found is None or not _is_for(call, found):
            return Reply(answers.Ticket(status="duplicate", id=answer.id, queue=FLOWS, state=None))
        if isinstance(answer, AlreadyCompleted):
            answer = Duplicate(found.id, found.state) if found.result is None else replace(answer, result=found.result)
    return Reply(await ticket(call, new, answer), 201 if isinstance(answer, Queued) else 200)


async def get_flow(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """A step that is not a job yet is `blocked`, or `ready` if the steps before it are complete."""
    record = await flow_record(call.context.store, await _found(call))
    return Reply(msgspec.convert(record, answers.Flow, from_attributes=True))


async def flow_result(call: ServiceCall[None, requests.WaitQuery]) -> Reply:
    """Waits as the result of a job does. [RESULT-2, RESULT-3]"""
    flow = await _found(call)
    flow = await ended(call, flow.key) or await _found(call)
    if not _is_for(call, flow):  # By now the id may belong to another flow.
        raise JobNotFound(FLOWS, flow.id)
    return await outcome(call, flow)


async def cancel_flow(call: ServiceCall[None, requests.CancelQuery]) -> Reply:
    """Cancels its open steps too. [CANCEL-1]"""
    flow = await _found(call)
    canceled = await cancel_job(call.connection, flow.key, only_waiting=call.query.only_waiting, by=call.by)
    if canceled.status == "not_found":
        raise JobNotFound(FLOWS, flow.id)
    return Reply(answers.Canceled(status=canceled.status))


async def replay_flow(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """Its failed and canceled steps start again, and the steps after them continue. [DEAD-1]"""
    flow = await _found(call)
    await dead_letters.replay(call.connection, None, flow.key, call.by)
    item = answers.ReplayItem(id=flow.id, status="replayed")
    return Reply(answers.Replays(tenant=call.tenant, items=[item], more=False, cursor=None))


async def _found(call: ServiceCall[Any, Any]) -> Job:
    """The flow that the path names. Another tenant's flow answers exactly like a missing one. [TENANT-2]

    So does a flow with a step in a queue that the token is not for.
    """
    key = JobKey(call.tenant, FLOWS, call.id)
    flow = await call.connection.gets(key)
    if flow is None or not _is_for(call, flow):
        raise JobNotFound(key.queue, key.id)
    return flow


def _is_for(call: ServiceCall[Any, Any], flow: Job) -> bool:
    """Whether the token is for the queues of all steps."""
    only = call.caller.queues
    return only is None or all(step.queue in only for step in plan_of(flow.envelope).steps)


_FLOW = "/v1/flows/{id}"
_NAMED = ("invalid_name", "job_not_found", "unknown_codec")

ROUTES = (
    Route(
        method="POST", path="/v1/flows", handler=start_flow, scope=PRODUCE, body=requests.NewFlow,
        summary="Start a flow: jobs that wait for each other", answers={201: answers.Ticket, 200: answers.Ticket},
        refuses=(
            "invalid_name", "invalid_option", "invalid_payload", "unknown_codec", "payload_too_large", "quota_exceeded",
        ),
    ),
    Route(
        method="GET", path=_FLOW, handler=get_flow, scope=READ, summary="A flow with its steps",
        answers={200: answers.Flow}, refuses=_NAMED,
    ),
    Route(
        method="GET", path=f"{_FLOW}/result", handler=flow_result, scope=READ, query=requests.WaitQuery,
        summary="The result of a flow; 202 while it runs", answers={200: answers.Outcomes, 202: answers.Outcomes},
        refuses=(*_NAMED, "result_expired"),
    ),
    Route(
        method="DELETE", path=_FLOW, handler=cancel_flow, action="flow.cancel", scope=PRODUCE,
        query=requests.CancelQuery, summary="Cancel a flow and its open steps", answers={200: answers.Canceled},
        refuses=_NAMED,
    ),
    Route(
        method="POST", path=f"{_FLOW}/replay", handler=replay_flow, action="flow.replay", scope=ADMIN,
        summary="Continue a failed flow where it failed", answers={200: answers.Replays},
        refuses=(*_NAMED, "not_replayable", "quota_exceeded"),
    ),
)  # fmt: skip
