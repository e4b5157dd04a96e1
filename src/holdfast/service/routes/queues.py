"""Queues: lists and counts, pausing, dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.core.budgets import TenantUsage
from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.core.job import Job, JobKey, JobState, Purge
from holdfast.core.names import check_id, check_type
from holdfast.jobs.options import instant_ms
from holdfast.paging import name_cursor
from holdfast.protocol import answers, requests
from holdfast.queue import bulk
from holdfast.queue import dead_letters as letters
from holdfast.queue.ticket import Ticket
from holdfast.service import views
from holdfast.service.call import Reply, Route, ServiceCall
from holdfast.service.errors import Refusal, info
from holdfast.service.parsing import chosen
from holdfast.service.routes.batches import ITEM_WORK, each_of_queue, pieces
from holdfast.service.tokens import ADMIN, READ
from holdfast.store import ListQuery, Page, QueuePage


async def queues(call: ServiceCall[None, requests.PageQuery]) -> Reply:
    """Only queues that the token is for."""
    query, only = call.query, call.caller.queues
    if only is None:
        page = await call.context.queue_page(call.tenant, query.cursor or None, query.limit)
    else:
        page = await _some(call, sorted(only))
    return Reply(answers.Queues(queues=[views.stats(one) for one in page.queues], cursor=page.cursor))


async def _some(call: ServiceCall[None, requests.PageQuery], only: Sequence[str]) -> QueuePage:
    """Those of the named queues that have jobs or are paused. Other queues of the tenant are not read."""
    after = name_cursor(call.query.cursor or None)
    names = [name for name in only if name > after]
    found = await call.context.queue_stats(call.tenant, names[: call.query.limit])
    used = [one for one in found if one.paused or any(one.counts.values())]
    return QueuePage(used, names[call.query.limit - 1] if len(names) > call.query.limit else None)


async def stats(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """An unused queue has counts of 0."""
    return Reply(views.stats((await call.context.store.stats(call.tenant, [call.queue]))[0]))


async def jobs(call: ServiceCall[None, requests.ListQuery]) -> Reply:
    """Waiting jobs in claim order, then leased ones, then finished ones."""
    query = call.query
    states = frozenset(JobState) if not query.state else frozenset(chosen("state", query.state, JobState))
    wanted = ListQuery(
        call.tenant, call.queue, states, _type(query.type), cursor=query.cursor or None, limit=query.limit
    )
    page = await call.context.page(wanted, call.hold)
    return Reply(answers.Jobs(jobs=await shown(call, page.jobs), cursor=page.cursor))


async def usage(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """Counts up to 10 s old, with the limits of this process. [TENANT-5]"""
    if call.caller.queues is not None:
        raise Refusal("queue_forbidden", "the token is for some queues, and the usage counts all of them")
    return Reply(await call.context.usage(call.tenant))


async def pause(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """A paused queue still accepts jobs. [CLAIM-5]"""
    return await _pause(call, paused=True)


async def resume(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """Waiting jobs can be claimed again."""
    return await _pause(call, paused=False)


async def dead_letters(call: ServiceCall[None, requests.DeadQuery]) -> Reply:
    """With their reasons and errors. [DEAD-1]"""
    query = call.query
    wanted = ListQuery(
        call.tenant, call.queue, letters.FAILED, _type(query.type), query.error, query.cursor or None, query.limit
    )
    page = await call.context.page(wanted, call.hold)
    return Reply(answers.DeadLetters(tenant=call.tenant, jobs=await shown(call, page.jobs), cursor=page.cursor))


async def replay(call: ServiceCall[requests.Replay, requests.NoQuery]) -> Reply:
    """Of concurrent replays of a job, one succeeds. [DEAD-1, STATE-3]"""
    body, queue, cursor = call.body, call.queue, None
    if (body.ids is UNSET) == (body.where is UNSET):
        raise InvalidOption("ids", "give either ids or where")
    if body.where is UNSET:
        if body.dry_run or body.cursor:
            raise InvalidOption("ids", "dry_run and cursor go with where")
        ids = [check_id(id) for id in (() if body.ids is UNSET else body.ids)]
    else:
        wanted = _dead(call, body.where.type, body.where.error, body.cursor)
        if body.dry_run:
            counted = await change_step(call, "replay", wanted)
            return Reply(_counted(answers.Replays(tenant=call.tenant, items=[], more=False, cursor=None), counted))
        page = await call.context.page(wanted, call.hold)
        ids, cursor = [job.id for job in page.jobs], page.cursor
    tickets = await letters.replay_many(call.connection, None, ids, queue, by=call.by)
    items = [_replayed(ticket) for ticket in tickets]
    return Reply(answers.Replays(tenant=call.tenant, items=items, more=cursor is not None, cursor=cursor))


async def purge_dead_letters(call: ServiceCall[requests.Purge, requests.NoQuery]) -> Reply:
    """Those that failed before an instant, by default now. [DEAD-1]"""
    body = call.body
    wanted = _dead(call, body.type, body.error, body.cursor)
    if body.before is not None:
        wanted = replace(wanted, until=max(0, instant_ms("before", body.before) + 1))
    done = await change_step(call, "purge", wanted, dry_run=body.dry_run)
    if body.dry_run:
        return Reply(_counted(answers.Purged(tenant=call.tenant, purged=0, more=False, cursor=None), done))
    return Reply(answers.Purged(tenant=call.tenant, purged=done.count, more=done.more, cursor=done.cursor))


async def purge_jobs(call: ServiceCall[list[requests.PurgeJob | HoldfastError], requests.NoQuery]) -> Reply:
    """Each purged job gets an event. [KEEP-1]"""

    def make(key: JobKey, item: requests.PurgeJob) -> Purge:
        ended = None if item.finished_at is None else instant_ms("finished_at", item.finished_at)
        return Purge(key, ended, item.sequence, call.by)

    send = partial(letters.purge_jobs, call.connection)
    return await each_of_queue(call, make, send, answers.JobPurged, call.tenant)


# Helpers ------------------------------------------------------------------------------------------


async def change_step(
    call: ServiceCall[Any, Any], action: bulk.Action, query: ListQuery, *, dry_run: bool = True
) -> bulk.BulkStep:
    """One step of a change by filter."""

    def read(part: ListQuery) -> Awaitable[Page]:
        return call.context.page(part, call.hold)

    return await bulk.step(call.connection, action, query, read, dry_run=dry_run, by=call.by)


def _dead(call: ServiceCall[Any, Any], type: str | None, error: str | None, cursor: str | None) -> ListQuery:
    """The dead letters of the queue that match, the latest first: one that fails again is not met a second time."""
    type, limit = _type(type), requests.BATCH_LIMIT
    return ListQuery(call.tenant, call.queue, letters.FAILED, type, error, cursor or None, limit, newest=True)


def _counted(answer: answers.DeadStep, done: bulk.BulkStep) -> answers.DeadStep:
    answer.more, answer.cursor = done.more, done.cursor
    answer.matching, answer.sample = done.count, [key.id for key in done.sample]
    return answer


async def _pause(call: ServiceCall[None, requests.NoQuery], *, paused: bool) -> Reply:
    await call.context.store.pause(call.tenant, call.queue, paused=paused)
    return Reply(answers.Paused(tenant=call.tenant, queue=call.queue, paused=paused))


def _type(name: str | None) -> str | None:
    """A job type to filter by; "" means jobs without a type. Raises InvalidName."""
    return check_type(name) if name else name


async def shown(call: ServiceCall[None, Any], found: Sequence[Job]) -> list[answers.Job]:
    """The answer's view of these jobs."""
    views_: list[answers.Job] = []
    for some in pieces(found):
        await call.context.turns.take(ITEM_WORK * len(some), call.tenant)
        views_ += [views.job(job) for job in some]
    return views_


def _replayed(ticket: Ticket[object]) -> answers.ReplayItem:
    if ticket.error is not None:
        return answers.ReplayItem(id=ticket.id, error=info(ticket.error))
    return answers.ReplayItem(id=ticket.id, status="replayed")


_QUEUE = "/v1/queues/{queue}"
_LISTS = ("invalid_name", "invalid_option")

ROUTES = (
    Route(
        method="GET", path="/v1/usage", handler=usage, scope=READ, summary="What the tenant uses, and its budgets",
        answers={200: TenantUsage}, refuses=("queue_forbidden",),
    ),
    Route(
        method="GET", path="/v1/queues", handler=queues, scope=READ, query=requests.PageQuery,
        summary="A page of queues with their counts", answers={200: answers.Queues}, refuses=("invalid_option",),
    ),
    Route(
        method="GET", path=f"{_QUEUE}/stats", handler=stats, scope=READ, summary="Counts of one queue",
        answers={200: answers.QueueStats}, refuses=("invalid_name",),
    ),
    Route(
        method="GET", path=f"{_QUEUE}/jobs", handler=jobs, scope=READ, query=requests.ListQuery,
        summary="A page of a queue's jobs", answers={200: answers.Jobs}, refuses=_LISTS,
    ),
    Route(
        method="POST", path=f"{_QUEUE}/jobs:purge", handler=purge_jobs, action="jobs.purge", scope=ADMIN,
        body=requests.PurgeJobBatch, batch="jobs", item=requests.PurgeJob,
        summary="Purge finished jobs", answers={200: answers.JobPurged}, refuses=("invalid_name",),
    ),
    Route(
        method="POST", path=f"{_QUEUE}/pause", handler=pause, scope=ADMIN,
        action="queue.pause", summary="Stop claims from a queue",
        answers={200: answers.Paused}, refuses=("invalid_name",),
    ),
    Route(
        method="POST", path=f"{_QUEUE}/resume", handler=resume, scope=ADMIN,
        action="queue.resume", summary="Allow claims from a queue again",
        answers={200: answers.Paused}, refuses=("invalid_name",),
    ),
    Route(
        method="GET", path=f"{_QUEUE}/dead-letters", handler=dead_letters, scope=READ, query=requests.DeadQuery,
        summary="A page of failed jobs, oldest first", answers={200: answers.DeadLetters}, refuses=_LISTS,
    ),
    Route(
        method="POST", path=f"{_QUEUE}/dead-letters:replay", handler=replay, scope=ADMIN,
        action="dead_letters.replay", body=requests.Replay,
        summary="Replay failed jobs", answers={200: answers.Replays}, refuses=_LISTS,
    ),
    Route(
        method="POST", path=f"{_QUEUE}/dead-letters:purge", handler=purge_dead_letters, scope=ADMIN,
        action="dead_letters.purge", body=requests.Purge,
        summary="Purge failed jobs", answers={200: answers.Purged}, refuses=_LISTS,
    ),
)  # fmt: skip
