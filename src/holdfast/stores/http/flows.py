"""Flows over HTTP: they have routes of their own."""

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
from holdfast.stores.http.client import Link, segment
from holdfast.stores.http.session import encode

WAIT_S = 20.0
AT_ONCE = 4
"""So many flows are waited for at the service, each by a connection; the others are looked at now and then."""
PAUSE_S = 2.0


async def start(link: Link, new: NewJob) -> EnqueueAnswer:
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


async def ended(link: Link, key: JobKey, wait_s: float = 0.0) -> Job | None:
    """How a flow ended, or the state that it is in; all else about its job stands at its default."""
    query = {"wait_s": str(wait_s)} if wait_s else None
    try:
        said = await link.call("GET", f"{_path(key)}/result", answers.Outcomes, query=query, wait_s=wait_s)
    except JobNotFound:
        return None
    return incoming.outcome(key, said)


class Waits:
    """Tells of the ends of flows where no hints come: a token for some queues gets none of the flows' own."""

    def __init__(self, tell: Callable[[Signal], None]) -> None:
        self._tell = tell
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}

    def add(self, link: Link, key: JobKey) -> None:
        """Tell to look again when it has ended, or after a while."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._wait(link, key, few=len(self._tasks) < AT_ONCE))

    async def _wait(self, link: Link, key: JobKey, *, few: bool) -> None:
        try:
            await (ended(link, key, WAIT_S) if few else asyncio.sleep(PAUSE_S))
        except HoldfastError:
            return  # Who waits looks for himself now and then.
        finally:
            del self._tasks[key]
        self._tell(Signal(Hint.DONE, key.tenant, key.queue, key.id))

    async def close(self) -> None:
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _path(key: JobKey) -> str:
    return f"/v1/flows/{segment(key.id)}"


def _step(key: JobKey, plan: Plan, step: Step) -> requests.NewStep:
    made = NewJob(key._replace(queue=step.queue), step.envelope, step.delay_ms, step.run_at)
    said = outgoing.enqueue(made)
    fields = {name: getattr(said, name) for name in requests.NewStep.__struct_fields__ if name not in ("name", "after")}
    return requests.NewStep(name=step.name, after=[plan.steps[before].name for before in step.after], **fields)
