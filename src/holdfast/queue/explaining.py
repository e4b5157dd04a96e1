"""Why a job is where it is: gathers the facts, each in a bounded read. The rules are in `core.explain`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.budgets import enforcer_of
from holdfast.core.budgets import merged
from holdfast.core.errors import QuotaExceeded
from holdfast.core.explain import Explanation, Facts, FlowFacts, explain
from holdfast.core.flow import is_own, plan_of, shown_state, step_key
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState
from holdfast.core.names import FLOWS, RESERVED, check_id
from holdfast.core.policy import KnownTypes
from holdfast.extensions import Explainer
from holdfast.flows.flow import BATCH
from holdfast.queue.connection import Connection
from holdfast.store import QueueStats, Store, WorkerInfo

WORKER_PAGES = 10
"""The most pages of workers to read."""
QUEUE_PAGES = 10
"""The most pages of queues to count for a quota of the tenant."""


async def explain_job(connection: Connection, key: JobKey) -> Explanation:
    """Why a job is where it is, or that there is none. [TENANT-2]"""
    store = connection.live
    if isinstance(store, Explainer):
        return await connection.counted("explain", store.explain(key))
    return explain(await connection.counted("explain", _facts(store, key)))


async def _facts(store: Store, key: JobKey) -> Facts:
    standing = await store.standing(key)
    if standing is None:
        return Facts(key, None, flow=await _step_to_come(store, key))
    job = standing.job
    # One after another, these reads would take as long as several claims.
    (workers, more), quotas, flow = await asyncio.gather(_workers(store, job), _quotas(store, job), _flow(store, job))
    return Facts(key, standing, workers, more, quotas, flow)


async def _workers(store: Store, job: Job) -> tuple[KnownTypes | None, int]:
    """What the first workers serve, if the job waits for one; and how many those are, if there are more."""
    if job.state not in WAITING or job.queue.startswith(RESERVED):
        return None, 0
    found: list[WorkerInfo] = []
    cursor: str | None = None
    for _ in range(WORKER_PAGES):
        page = await store.worker_page(job.tenant, cursor)
        found += page.workers
        cursor = page.cursor
        if cursor is None:
            return KnownTypes.of(found), 0
    return KnownTypes.of(found), len(found)


async def _quotas(store: Store, job: Job) -> list[QuotaExceeded]:
    """The quotas and budgets of stored jobs that the tenant has reached. [TENANT-5]"""
    if job.state not in WAITING and job.state is not JobState.FAILED:
        return []
    settings, usage = await asyncio.gather(store.tenant_settings(job.tenant), store.usage(job.tenant))
    reached: list[QuotaExceeded] = []
    for one in settings:
        if one.max_waiting is None or one.queue not in (job.queue, None):
            continue
        if one.queue is None:
            waiting = await _waiting(store, job.tenant, one.max_waiting)
        else:
            waiting = _waiting_in(await store.stats(job.tenant, [job.queue]))
        if waiting >= one.max_waiting:
            reached.append(QuotaExceeded(one.queue, waiting, one.max_waiting))
    enforcer = enforcer_of(store)
    if enforcer is None:
        return reached
    own = next((one.budgets for one in settings if one.queue is None), None)
    limits = merged(enforcer.defaults, own) or enforcer.defaults
    kept = (("max_jobs", usage.jobs + usage.keys, limits.max_jobs), ("max_bytes", usage.bytes, limits.max_bytes))
    full = [QuotaExceeded(None, used, limit, budget) for budget, used, limit in kept if limit and used >= limit]
    return reached + full


async def _waiting(store: Store, tenant: str, enough: int) -> int:
    """How many jobs of a tenant wait in its first queues, or a number from `enough` on."""
    waiting, cursor = 0, None
    for _ in range(QUEUE_PAGES):
        page = await store.queue_page(tenant, cursor)
        waiting, cursor = waiting + _waiting_in(page.queues), page.cursor
        if cursor is None or waiting >= enough:
            break
    return waiting


def _waiting_in(queues: Sequence[QueueStats]) -> int:
    return sum(stats.counts.get(state, 0) for stats in queues for state in WAITING)


async def _flow(store: Store, flow: Job) -> FlowFacts | None:
    """The steps that a flow waits for: those that are running, else those that can start."""
    if flow.queue != FLOWS or flow.state in TERMINAL:
        return None
    plan = plan_of(flow.envelope)
    states = await _states(store, flow, range(len(plan.steps)))
    shown = [(step.name, shown_state(plan, place, states, flow.state)) for place, step in enumerate(plan.steps)]
    return FlowFacts(flow, [(name, state) for name, state in shown if state not in {*TERMINAL, JobState.BLOCKED}])


async def _step_to_come(store: Store, key: JobKey) -> FlowFacts | None:
    """If the id is that of a step that is not a job yet: its flow, and the steps that it waits for."""
    flow_id, _, name = key.id.rpartition("/")
    if not flow_id:
        return None
    (flow,) = await store.get([JobKey(key.tenant, FLOWS, check_id(flow_id))])
    if flow is None:
        return None
    plan = plan_of(flow.envelope)
    for place, step in enumerate(plan.steps):
        if step.name == name and step.queue == key.queue:
            states = await _states(store, flow, step.after)
            shown = shown_state(plan, place, states, flow.state)
            if shown in TERMINAL:
                return None  # Its record has been forgotten.
            before = [(plan.steps[one].name, shown_state(plan, one, states, flow.state)) for one in step.after]
            return FlowFacts(flow, [pair for pair in before if pair[1] is not JobState.COMPLETED], shown)
    return None


async def _states(store: Store, flow: Job, places: range | tuple[int, ...]) -> dict[int, JobState]:
    """The states of those steps that are jobs of this life of the flow."""
    steps, states = plan_of(flow.envelope).steps, dict[int, JobState]()
    for start in range(0, len(places), BATCH):
        part = places[start : start + BATCH]
        jobs = await store.get([step_key(flow, steps[place]) for place in part])
        pairs = zip(part, jobs, strict=True)
        states |= {place: job.state for place, job in pairs if job is not None and is_own(flow, job)}
    return states
