"""Why a job is where it is: gathers the facts, each in a bounded read. The rules are in `core.explain`."""

from __future__ import annotations

from holdfast.budgets import usage_of
from holdfast.core.errors import QuotaExceeded, Unsupported
from holdfast.core.explain import Explanation, Facts, FlowFacts, Standing, explain
from holdfast.core.flow import is_own, plan_of, shown_state, step_key
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState
from holdfast.core.names import FLOWS, RESERVED, check_id
from holdfast.core.policy import KnownTypes
from holdfast.extensions import Explainer
from holdfast.flows.flow import BATCH
from holdfast.queue.connection import Connection
from holdfast.store import Store, WorkerInfo

WORKER_PAGES = 10
"""The most pages of workers that are looked at."""
_BUDGETS = ("max_jobs", "max_bytes")


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
    state = standing.job.state
    workers, more = (None, 0)
    if state in WAITING and not key.queue.startswith(RESERVED):
        workers, more = await _workers(store, key.tenant)
    quotas = await _quotas(store, key) if state in WAITING or state is JobState.FAILED else []
    return Facts(key, standing, workers, more, quotas, await _flow(store, standing))


async def _workers(store: Store, tenant: str) -> tuple[KnownTypes, int]:
    """What the first workers serve; and how many those are, if there are more."""
    found: list[WorkerInfo] = []
    cursor: str | None = None
    for _ in range(WORKER_PAGES):
        page = await store.worker_page(tenant, cursor)
        found += page.workers
        cursor = page.cursor
        if cursor is None:
            return KnownTypes.of(found), 0
    return KnownTypes.of(found), len(found)


async def _quotas(store: Store, key: JobKey) -> list[QuotaExceeded]:
    """The quotas and budgets of stored jobs that the tenant has reached. [TENANT-5]"""
    reached: list[QuotaExceeded] = []
    for settings in await store.tenant_settings(key.tenant):
        if settings.max_waiting is None or settings.queue not in (key.queue, None):
            continue
        if settings.queue is None:
            queues = (await store.queue_page(key.tenant)).queues
        else:
            queues = await store.stats(key.tenant, [key.queue])
        waiting = sum(stats.counts.get(state, 0) for stats in queues for state in WAITING)
        if waiting >= settings.max_waiting:
            reached.append(QuotaExceeded(settings.queue, waiting, settings.max_waiting))
    try:
        usage = await usage_of(store, key.tenant)
    except Unsupported:
        return reached
    full = (one for one in map(usage.of, _BUDGETS) if one.limit and (one.used or 0) >= one.limit)
    return reached + [QuotaExceeded(None, one.used or 0, one.limit or 0, one.budget) for one in full]


async def _flow(store: Store, standing: Standing) -> FlowFacts | None:
    """The steps that a flow waits for: those that are running, else those that can start."""
    flow = standing.job
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
