"""A service as a `Store`. Calls that have no route raise Unsupported, which says what to use instead.

The service runs the maintenance of its store, so `reap` and `prune` do nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from holdfast.core.budgets import TenantUsage, Usage
from holdfast.core.errors import InvalidOption, Unsupported
from holdfast.core.job import TERMINAL, Job, JobKey
from holdfast.core.policy import KnownTypes
from holdfast.extensions import Deliver
from holdfast.paging import pages
from holdfast.protocol import answers, operating
from holdfast.store import (
    ALL_HINTS,
    PAGE_LIMIT,
    Capabilities,
    Finding,
    Hint,
    Listener,
    Pruned,
    Reaped,
    Signal,
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.http import flows, incoming, outgoing
from holdfast.stores.http.address import HttpAddress
from holdfast.stores.http.bearer import Bearer
from holdfast.stores.http.client import HttpClient
from holdfast.stores.http.doctor import findings
from holdfast.stores.http.handoff import HttpInbox
from holdfast.stores.http.jobs import HttpJobs
from holdfast.stores.http.notifications import HttpListener
from holdfast.stores.http.reads import Reads
from holdfast.stores.http.schedules import HttpSchedules
from holdfast.stores.http.session import encode, queue_path

_UNKNOWN = Capabilities(
    name="http", durable=False, survives_power_loss=False, many_processes=True, many_hosts=True,
    transactional_enqueue=False, exact_turns=False, exact_quota=False,
    notes={"durable": "as the store behind the service; known after `open`"},
)  # fmt: skip


class HttpStore(HttpJobs, Reads, HttpSchedules):
    """One tenant's part of the store behind a service. Belongs to one event loop."""

    def __init__(self, address: HttpAddress, bearer: Bearer, tenant: str = "") -> None:
        super().__init__(address, bearer, tenant)
        self._listener = HttpListener(self._client)
        self._flow_waits = flows.FlowWaits(self._listener.notify)
        self._inboxes = 0
        self._info: answers.Session | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store behind the service, as far as they hold over HTTP. Known after `open`."""
        if self._info is None:
            return _UNKNOWN
        found = msgspec.convert(self._info.store, Capabilities)
        return replace(
            found, name=f"http ({found.name})", transactional_enqueue=False, many_processes=True, many_hosts=True,
            exact_turns=False,
        )  # fmt: skip

    async def open(self) -> None:
        if self._info is not None:
            return
        self._client.open()
        try:
            info = await self._token()
            tenant = self._tenant or info.tenant
            _check_tenant(tenant, info.tenant)
        except BaseException:
            await self._client.close()
            raise
        self._tenant, self._info, self._for_some = tenant, info, info.queues is not None

    async def close(self) -> None:
        self._info = None
        await self._flow_waits.close()
        await self._listener.close()
        await self._client.close()

    async def sibling(self) -> HttpStore:
        # No request here: a connection belongs to the event loop that opens it.
        other = HttpStore(self._address, self._bearer, self._tenant)
        other._client.open()
        other._info, other._for_some = self._info, self._for_some
        return other

    async def now(self) -> int:
        return incoming.ms((await self._token()).now)

    async def shift_clock(self, ms: int) -> None:
        raise Unsupported(f"moving the clock by {ms} ms; move the clock of the store behind the service", "http")

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        # Workers with an inbox have a claim that waits, so these hints would wake them for nothing.
        wanted = [hint for hint in hints if hint is not Hint.READY or not self._inboxes]
        return self._listener.listen(listener, wanted)

    async def _flow_job(self, key: JobKey) -> Job | None:
        found = await super()._flow_job(key)
        if found is not None and found.state not in TERMINAL and self._listener.any:
            self._flow_waits.add(self._client, key)
        return found

    def open_inbox(self, deliver: Deliver) -> HttpInbox:
        """An inbox for one worker, in the current event loop."""
        self._inboxes += 1

        def closed() -> None:
            self._inboxes -= 1

        # It has its own connection: closing that ends the wait.
        return HttpInbox(self._claim, HttpClient(self._address, self._bearer), deliver, closed)

    # Settings, workers, maintenance ----------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        self._check(tenant)
        await self._client.call("POST", f"{queue_path(queue)}/{'pause' if paused else 'resume'}", answers.Paused)
        if not paused:
            self._listener.notify(Signal(Hint.READY, tenant, queue))

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        self._check(tenant)
        raise _settings(settings.queue)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        self._check(tenant)
        raise _settings(None)

    async def tenant_usage(self, tenant: str) -> TenantUsage:
        """What the tenant uses, and its budgets, as the service counts them."""
        self._check(tenant)
        return await self._client.call("GET", "/v1/usage", TenantUsage)

    async def usage(self, tenant: str) -> Usage:
        found = await self.tenant_usage(tenant)
        used = {one.budget: one.used or 0 for one in found.budgets}
        jobs = used["max_jobs"] - found.keys
        return Usage(jobs, found.keys, used["max_bytes"], used["max_queues"], found.events)

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        self._check(worker.tenant)
        body = encode(outgoing.beat(worker, ttl_ms))
        await self._client.call("POST", "/v1/workers:beat", answers.Beaten, body=body)

    async def known_types(self, tenant: str) -> KnownTypes:
        self._check(tenant)
        types: list[answers.KnownType] = []
        queues: list[answers.ServedQueue] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await self._client.call("GET", "/v1/types", answers.Types, query={"cursor": cursor})
            types += page.types
            queues += page.queues
            cursor = page.cursor
        return incoming.known_types(types, queues)

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        return [worker async for page in pages(partial(self.worker_page, tenant)) for worker in page.workers]

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        self._check(tenant)
        query = {"limit": str(limit)} if cursor is None else {"limit": str(limit), "cursor": cursor}
        page = await self._client.call("GET", "/v1/workers", operating.Workers, query=query)
        return WorkerPage([incoming.worker(one) for one in page.workers], page.cursor)

    async def reap(self, limit: int, random: float) -> Reaped:
        del limit, random
        return Reaped([], 0, None)

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        del limit, blobs
        return Pruned(0, 0, [], False)

    async def doctor(self) -> Sequence[Finding]:
        sent = time.time()
        info = await self._token()
        return findings(self._address, info, sent, time.time())

    def __repr__(self) -> str:
        return f"<HttpStore of tenant {self._tenant!r} at {self._address.base}>"


def _check_tenant(tenant: str, named: str) -> None:
    if tenant != named:
        raise InvalidOption("tenant", f"the token is for {named!r}, not for {tenant!r}")


def _settings(queue: str | None) -> Unsupported:
    what = "changing the tenant's settings" if queue is None else f"changing the settings of queue {queue!r}"
    return Unsupported(f"{what}; an operator does that at the store: `holdfast tenant set`", "http")
