"""Calls about schedules. The service stores and runs them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.errors import JobNotFound
from holdfast.core.job import Backoff, Envelope
from holdfast.core.schedule import Definition, Schedule, Target, Timing
from holdfast.protocol import answers, requests
from holdfast.stores.http import incoming, outgoing
from holdfast.stores.http.client import segment
from holdfast.stores.http.session import HttpSession, encode


class HttpSchedules(HttpSession):
    """Calls about schedules."""

    async def put_schedule(self, tenant: str, name: str, timing: Timing, target: Target) -> Schedule:
        self._check(tenant)
        body = encode(outgoing.schedule(timing, target))
        return _schedule(await self._client.call("PUT", _path(name), answers.Schedule, body=body))

    async def get_schedule(self, tenant: str, name: str) -> Schedule | None:
        self._check(tenant)
        try:
            return _schedule(await self._client.call("GET", _path(name), answers.Schedule))
        except JobNotFound:
            return None

    async def list_schedules(self, tenant: str) -> Sequence[Schedule]:
        self._check(tenant)
        found: dict[str, Schedule] = {}
        query = {"limit": str(requests.PAGE_LIMIT)}
        while True:
            page = await self._client.call("GET", "/v1/schedules", answers.Schedules, query=query)
            found |= {one.name: _schedule(one) for one in page.schedules}
            if page.cursor is None:
                return [found[name] for name in sorted(found)]
            query["cursor"] = page.cursor

    async def remove_schedule(self, tenant: str, name: str) -> bool:
        self._check(tenant)
        try:
            await self._client.call("DELETE", _path(name), answers.Unscheduled)
        except JobNotFound:
            return False
        return True


def _path(name: str) -> str:
    return f"/v1/schedules/{segment(name)}"


def _schedule(found: answers.Schedule) -> Schedule:
    """A schedule. Fields that HTTP does not carry have their defaults."""
    retry = found.retry
    envelope = Envelope(
        found.type,
        incoming.data(found.payload, found.codec),
        found.codec,
        found.version,
        found.priority,
        found.max_attempts,
        Backoff() if retry is None else incoming.backoff(retry),
        timeout_ms=None if found.timeout_s is None else round(found.timeout_s * 1000),
        result_ttl_ms=round(found.result_ttl_s * 1000),
    )
    every_ms = None if found.every_s is None else round(found.every_s * 1000)
    timing = Timing(found.cron, every_ms, found.timezone)
    created_at = incoming.ms(found.created_at)
    definition = Definition(timing, created_at, Target(found.queue, envelope))
    return Schedule(found.name, definition, found.state, incoming.ms(found.next_at), created_at)
