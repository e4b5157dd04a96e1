"""Flows over HTTP: they have routes of their own."""

from __future__ import annotations

from typing import cast

from holdfast.core import answers, wire
from holdfast.core.errors import AccessRefused, HoldfastError, JobNotFound, StoreError
from holdfast.core.job import Cancel, CancelStatus, JobKey, NewJob, Replayed
from holdfast.core.workflow import Plan, Step, plan_of
from holdfast.store import EnqueueAnswer, ReplayAnswer
from holdfast.stores.http import incoming, outgoing
from holdfast.stores.http.link import Link, segment
from holdfast.stores.http.session import encode


async def start(link: Link, new: NewJob) -> EnqueueAnswer:
    """Start one flow."""
    plan, key, envelope = plan_of(new.envelope), new.key, new.envelope
    body = wire.NewFlow(
        name=plan.name,
        id=key.id,
        request_id=envelope.request_id,
        result_ttl_s=envelope.result_ttl_ms / 1000,
        steps=[_step(key, plan, step) for step in plan.steps],
    )
    try:
        headers = outgoing.trace(new)
        return incoming.ticket(await link.call("POST", "/v1/flows", answers.Ticket, body=encode(body), headers=headers))
    except HoldfastError as refused:
        # As with an item of a batch: what is wrong with one flow is no other's trouble.
        if isinstance(refused, StoreError) and not isinstance(refused, AccessRefused):
            raise
        return cast("EnqueueAnswer", refused)


async def cancel(link: Link, item: Cancel) -> CancelStatus:
    """Cancel one flow, with its steps."""
    query = {"only_waiting": "true"} if item.only_waiting else None
    try:
        return (await link.call("DELETE", _path(item.key), answers.Canceled, query=query)).status
    except JobNotFound:
        return "not_found"


async def replay(link: Link, key: JobKey) -> ReplayAnswer:
    """Start one failed flow again."""
    try:
        await link.call("POST", f"{_path(key)}/replay", answers.Replays, repeat=False)
    except StoreError:
        raise
    except HoldfastError as refused:
        return cast("ReplayAnswer", refused)
    return Replayed()


async def get(link: Link, key: JobKey) -> answers.Flow | None:
    """One flow with its steps."""
    try:
        return await link.call("GET", _path(key), answers.Flow)
    except JobNotFound:
        return None


def _path(key: JobKey) -> str:
    return f"/v1/flows/{segment(key.id)}"


def _step(key: JobKey, plan: Plan, step: Step) -> wire.NewStep:
    made = NewJob(key._replace(queue=step.queue), step.envelope, step.delay_ms, step.run_at)
    said = outgoing.enqueue(made)
    fields = {name: getattr(said, name) for name in wire.NewStep.__struct_fields__ if name not in ("name", "after")}
    return wire.NewStep(name=step.name, after=[plan.steps[before].name for before in step.after], **fields)
