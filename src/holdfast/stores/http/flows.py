"""Calls about flows, which have routes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from holdfast.core.errors import AccessRefused, HoldfastError, JobNotFound, StoreError
from holdfast.core.flow import Plan, Step, plan_of
from holdfast.core.job import Cancel, CancelStatus, Job, JobKey, NewJob, Replayed
from holdfast.protocol import answers, requests
from holdfast.store import EnqueueAnswer, Hint, ReplayAnswer, Signal
from holdfast.stores.http import incoming, outgoing
from holdfast.stores.http.client import HttpClient, segment
from holdfast.stores.http.session import encode

WAIT_S = 20.0
AT_ONCE = 4
"""The most flows with a waiting request at the service, each on one connection. The others are polled."""
PAUSE_S = 2.0
"""The pause between two polls."""


async def start(client: HttpClient, new: NewJob) -> EnqueueAnswer:
    """Start one flow."""
    plan, key, envelope = plan_of(new.envelope), new.key, new.envelope
    body = requests.NewFlow(
        name=plan.name,
        id=key.id,
        request_id=envelope.request_id,
        result_ttl_s=envelope.result_ttl_ms / 1000,
        steps=[_step(key, plan, step) for step in plan.steps],
    )
    try:
        ticket = await client.call("POST", "/v1/flows", answers.Ticket, body=encode(body), headers=outgoing.trace(new))
        return incoming.ticket(ticket)
    except HoldfastError as refused:
        # A refusal is the answer to this flow alone, as with an item of a batch.
        if isinstance(refused, StoreError) and not isinstance(refused, AccessRefused):
            raise
        return cast("EnqueueAnswer", refused)


async def cancel(client: HttpClient, item: Cancel) -> CancelStatus:
    """Cancel one flow, with its steps."""
    query = {"only_waiting": "true"} if item.only_waiting else None
    try:
        return (await client.call("DELETE", _path(item.key), answers.Canceled, query=query)).status
    except JobNotFound:
        return "not_found"


async def replay(client: HttpClient, key: JobKey) -> ReplayAnswer:
    """Start one failed flow again."""
    try:
        await client.call("POST", f"{_path(key)}/replay", answers.Replays, repeat=False)
    except StoreError:
        raise
    except HoldfastError as refused:
        return cast("ReplayAnswer", refused)
    return Replayed()


async def get(client: HttpClient, key: JobKey) -> answers.Flow | None:
    """One flow with its steps."""
    try:
        return await client.call("GET", _path(key), answers.Flow)
    except JobNotFound:
        return None


async def ended(client: HttpClient, key: JobKey, wait_s: float = 0.0) -> Job | None:
    """A flow's job with its state and outcome. All other fields have their defaults."""
    query = {"wait_s": str(wait_s)} if wait_s else None
    try:
        found = await client.call("GET", f"{_path(key)}/result", answers.Outcomes, query=query, wait_s=wait_s)
    except JobNotFound:
        return None
    return incoming.outcome(key, found)


class FlowWaits:
    """Notifies about the ends of flows if no hints arrive: a token for some queues gets no events of flows."""

    def __init__(self, notify: Callable[[Signal], None]) -> None:
        self._notify = notify
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}

    def add(self, client: HttpClient, key: JobKey) -> None:
        """Send a hint when the flow has ended, or after a pause."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._wait(client, key, waits=len(self._tasks) < AT_ONCE))

    async def _wait(self, client: HttpClient, key: JobKey, *, waits: bool) -> None:
        try:
            await (ended(client, key, WAIT_S) if waits else asyncio.sleep(PAUSE_S))
        except HoldfastError:
            return  # A waiting caller also polls by itself.
        finally:
            del self._tasks[key]
        self._notify(Signal(Hint.DONE, key.tenant, key.queue, key.id))

    async def close(self) -> None:
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _path(key: JobKey) -> str:
    return f"/v1/flows/{segment(key.id)}"


def _step(key: JobKey, plan: Plan, step: Step) -> requests.NewStep:
    made = NewJob(key._replace(queue=step.queue), step.envelope, step.delay_ms, step.run_at)
    after = [plan.steps[before].name for before in step.after]
    return requests.NewStep(name=step.name, after=after, **outgoing.fields_of(made, requests.NewStep))
