"""For operators without a browser: lists by time, cancel by filter, workers, tenants and their settings."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.core.job import JobState
from holdfast.core.names import check_type
from holdfast.core.times import moment
from holdfast.jobs.options import instant_ms
from holdfast.protocol import answers, requests
from holdfast.protocol import operating as bodies
from holdfast.queue import bulk, settings
from holdfast.service.call import Reply, Route, ServiceCall
from holdfast.service.parsing import chosen
from holdfast.service.routes.queues import change_step, shown
from holdfast.service.tokens import ADMIN, OPERATOR_SCOPE, READ
from holdfast.store import ListQuery, WorkerInfo


async def all_jobs(call: ServiceCall[None, bodies.JobsQuery]) -> Reply:
    """The latest first: by when they are due, when their lease ends, or when they ended. Only queues of the token."""
    query = call.query
    states = frozenset(chosen("state", query.state, JobState)) if query.state else frozenset(JobState)
    wanted = _query(call, query, states, query.cursor, query.limit)
    page = await call.context.page(wanted, call.hold)
    return Reply(answers.Jobs(jobs=await shown(call, page.jobs), cursor=page.cursor))


async def cancel_where(call: ServiceCall[bodies.CancelWhere, requests.NoQuery]) -> Reply:
    """One bounded step. A step may change nothing and have a cursor. [CANCEL-1]"""
    body = call.body
    query = _query(call, body.where, frozenset(JobState), body.cursor, body.limit)
    query = bulk.restricted(query, "cancel", running=body.running)
    done = await change_step(call, "cancel", query, dry_run=body.dry_run)
    sample = [bodies.NamedJob(queue=key.queue, id=key.id) for key in done.sample]
    step = bodies.Step(
        tenant=call.tenant, count=done.count, sample=sample, refused=done.refused, cursor=done.cursor,
        dry_run=done.dry_run,
    )  # fmt: skip
    return Reply(step)


def _query(
    call: ServiceCall[Any, Any],
    where: bodies.JobsQuery | bodies.JobsWhere,
    states: frozenset[JobState],
    cursor: str | None,
    limit: int,
) -> ListQuery:
    queue = "" if where.queue is None else call.usable(where.queue)
    type_ = check_type(where.type) if where.type else where.type
    return ListQuery(
        call.tenant, queue, states, type_, where.error, cursor or None, limit, newest=True, id=where.id,
        since=_ms("since", where.since), until=_ms("until", where.until), queues=call.caller.queues,
    )  # fmt: skip


def _ms(option: str, at: datetime | None) -> int | None:
    return None if at is None else max(0, instant_ms(option, at))


async def workers(call: ServiceCall[None, requests.PageQuery]) -> Reply:
    """Those that serve the tenant; for an operator all. A page may be empty and still have a cursor."""
    tenant = call.tenant or None
    page = await call.context.store.worker_page(tenant, call.query.cursor or None, call.query.limit)
    only = call.caller.queues
    found = [one for one in page.workers if only is None or only & set(one.queues)]
    return Reply(bodies.Workers(workers=[_worker(one, tenant, only) for one in found], cursor=page.cursor))


def _worker(worker: WorkerInfo, tenant: str | None, only: frozenset[str] | None) -> bodies.LivingWorker:
    view = bodies.LivingWorker(
        id=worker.worker_id, queues=[name for name in worker.queues if only is None or name in only],
        concurrency=worker.concurrency, started_at=moment(worker.started_at), seen_at=moment(worker.seen_at),
        tenant=worker.tenant,
    )  # fmt: skip
    if tenant is None or worker.tenant == tenant:
        view.host, view.pid, view.held = worker.host, worker.pid, worker.held
    return view


async def tenants(call: ServiceCall[None, requests.PageQuery]) -> Reply:
    """Those with jobs or settings, by name."""
    page = await call.context.store.tenant_page(call.query.cursor or None, call.query.limit)
    return Reply(bodies.Tenants(tenants=page.tenants, cursor=page.cursor))


async def tenant_settings(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """A tenant without settings has an empty list."""
    return Reply(await _settings(call, call.named_tenant))


async def put_tenant_settings(call: ServiceCall[bodies.PutSettings, requests.NoQuery]) -> Reply:
    """Answers all settings of the tenant. [TENANT-4, TENANT-5]"""
    body, tenant = call.body, call.named_tenant
    await settings.set_tenant(call.context.connection(tenant), body.weight, body.max_waiting, body.queue, body.budgets)
    return Reply(await _settings(call, tenant))


async def _settings(call: ServiceCall[Any, Any], tenant: str) -> bodies.AllSettings:
    found = await call.context.store.tenant_settings(tenant)
    views = [
        bodies.Setting(queue=one.queue, weight=one.weight, max_waiting=one.max_waiting, budgets=one.budgets)
        for one in found
    ]
    return bodies.AllSettings(tenant=tenant, settings=views)


_SETTINGS = "/v1/tenants/{tenant}/settings"

ROUTES = (
    Route(
        method="GET", path="/v1/jobs", handler=all_jobs, scope=READ, query=bodies.JobsQuery,
        summary="A page of jobs across queues, the latest first", answers={200: answers.Jobs},
        refuses=("invalid_name", "invalid_option"),
    ),
    Route(
        method="POST", path="/v1/jobs:cancel", handler=cancel_where, action="jobs.cancel", scope=ADMIN,
        body=bodies.CancelWhere, summary="Cancel jobs that match, or count them",
        answers={200: bodies.Step}, refuses=("invalid_name", "invalid_option", "queue_forbidden"),
    ),
    Route(
        method="GET", path="/v1/workers", handler=workers, scope=READ, for_operators=True, query=requests.PageQuery,
        summary="A page of living workers", answers={200: bodies.Workers}, refuses=("invalid_option",),
    ),
    Route(
        method="GET", path="/v1/tenants", handler=tenants, scope=OPERATOR_SCOPE, query=requests.PageQuery,
        summary="A page of tenants", answers={200: bodies.Tenants}, refuses=("invalid_option",),
    ),
    Route(
        method="GET", path=_SETTINGS, handler=tenant_settings, scope=OPERATOR_SCOPE,
        summary="The settings of a tenant", answers={200: bodies.AllSettings}, refuses=("invalid_name",),
    ),
    Route(
        method="PUT", path=_SETTINGS, handler=put_tenant_settings, action="tenant.set", scope=OPERATOR_SCOPE,
        body=bodies.PutSettings, summary="Change the settings of a tenant", answers={200: bodies.AllSettings},
        refuses=("invalid_name", "invalid_option"),
    ),
)  # fmt: skip
