"""Calls that read jobs, counts and events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast.core.errors import AccessRefused, JobNotFound, Unsupported
from holdfast.core.explain import Explanation, Facts, Standing, explain
from holdfast.core.job import Job, JobKey, JobState
from holdfast.core.names import FLOWS
from holdfast.core.times import moment
from holdfast.paging import pages
from holdfast.protocol import answers
from holdfast.store import PAGE_LIMIT, EventPage, ListQuery, Page, PurgePage, QueuePage, QueueStats, Reader, TenantPage
from holdfast.stores.http import flows, incoming
from holdfast.stores.http.session import HttpSession, at_once, job_path, queue_path

_ALL = frozenset(JobState)
_FAILED = frozenset({JobState.FAILED})


class Reads(HttpSession):
    """The calls that change nothing."""

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        async def get(key: JobKey) -> Job | None:
            if key.queue == FLOWS and self._for_some:
                return await self._flow_job(key)
            try:
                return incoming.job(await self._client.call("GET", job_path(key), answers.Job))
            except JobNotFound:
                return None

        return await at_once(self._own(keys, lambda key: key), get)

    async def _flow_job(self, key: JobKey) -> Job | None:
        """A flow's job, from the route of flows: a token for some queues cannot read the queue of flows."""
        return await flows.ended(self._client, key)

    async def flow(self, tenant: str, id: str) -> answers.Flow | None:
        self._check(tenant)
        return await flows.get(self._client, JobKey(tenant, FLOWS, id))

    async def explain(self, key: JobKey) -> Explanation:
        self._check(key.tenant)
        try:
            return await self._client.call("GET", f"{job_path(key)}/explain", Explanation)
        except JobNotFound:
            return explain(Facts(key, None))

    async def standing(self, key: JobKey) -> Standing | None:
        self._check(key.tenant)
        raise Unsupported("what a job waits for, as single facts; use `queue.explain`", "http")

    async def list(self, query: ListQuery) -> Page:
        self._check(query.tenant)
        wanted: dict[str, str | None] = {"limit": str(query.limit), "type": query.type, "cursor": query.cursor}
        if query.newest:
            bounds = {"since": query.since, "until": query.until}
            wanted |= {name: None if at is None else moment(at).isoformat() for name, at in bounds.items()}
            wanted |= {"queue": query.queue or None, "error": query.error, "id": query.id}
            return await self._page("/v1/jobs", query.states, wanted)
        if query.error is None:
            return await self._page(f"{queue_path(query.queue)}/jobs", query.states, wanted)
        if query.states != _FAILED:
            raise Unsupported("a list in claim order of jobs with an error that have not failed; list by time", "http")
        return await self._page(f"{queue_path(query.queue)}/dead-letters", _ALL, {**wanted, "error": query.error})

    async def _page(self, path: str, states: frozenset[JobState], wanted: dict[str, str | None]) -> Page:
        if not states:
            return Page([], None, 0)
        if states != _ALL:
            wanted["state"] = ",".join(sorted(states))
        parameters = {name: value for name, value in wanted.items() if value is not None}
        page = await self._client.call("GET", path, answers.Jobs, query=parameters)
        return Page([incoming.job(job) for job in page.jobs], page.cursor, int(time.time() * 1000))

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        self._check(tenant)
        if queues is None:
            return [stats async for page in pages(partial(self.queue_page, tenant)) for stats in page.queues]

        async def stats(queue: str) -> QueueStats:
            return incoming.stats(await self._client.call("GET", f"{queue_path(queue)}/stats", answers.QueueStats))

        return await at_once(queues, stats)

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        self._check(tenant)
        query = {"limit": str(limit)} if cursor is None else {"limit": str(limit), "cursor": cursor}
        page = await self._client.call("GET", "/v1/queues", answers.Queues, query=query)
        return QueuePage([incoming.stats(one) for one in page.queues], page.cursor)

    async def tenants(self) -> list[str]:
        raise Unsupported("listing tenants; a token is for one tenant, so ask the store", "http")

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        del cursor, limit
        raise Unsupported("listing tenants; a token is for one tenant, so ask the store", "http")

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        del tenant, cursor, limit
        raise Unsupported("counts of purges; the audit reads them from the store", "http")

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        self._check(tenant)
        query = {"follow": "false"} if after is None else {"follow": "false", "after": after}
        page, more = EventPage([], after or "", False), False
        async with self._client.stream("/v1/events", query) as messages:
            async for offset, data in messages:
                if data:
                    page.events.append(incoming.event(msgspec.json.decode(data, type=answers.Event)))
                page = msgspec.structs.replace(page, next=offset or page.next)
                more = len(page.events) >= limit
                if more:
                    break
        return msgspec.structs.replace(page, more=more)

    async def last_offset(self) -> str:
        offset = (await self._token()).offset
        if offset is None:
            raise AccessRefused("reading the log needs a token with the scope jobs:read", "scope_missing")
        return offset

    async def set_reader(self, reader: Reader) -> None:
        raise _readers(reader.name)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        self._check(tenant)
        raise _readers(name)

    async def readers(self, tenant: str | None) -> list[Reader]:
        self._check(tenant)
        raise _readers("")


def _readers(name: str) -> Unsupported:
    which = f"the reader {name!r}" if name else "readers"
    return Unsupported(f"{which}; keep the offset yourself", "http")
