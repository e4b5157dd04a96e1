"""The `Store` face of a service. What HTTP has no words for raises Unsupported, with what to do instead.

The service does the upkeep of its store: `reap` and `prune` have nothing to do here. It keeps no list of workers
either, so `beat` says nothing to it; who holds a job stands in the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.budgets import TenantUsage, Usage
from holdfast.core.errors import InvalidOption, Unsupported
from holdfast.core.job import TERMINAL, Job, JobKey
from holdfast.core.policy import KnownTypes
from holdfast.extensions import Deliver
from holdfast.protocol import answers
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
from holdfast.stores.http.address import Address
from holdfast.stores.http.bearer import Bearer
from holdfast.stores.http.client import Link
from holdfast.stores.http.doctor import findings
from holdfast.stores.http.handoff import WaitingPost
from holdfast.stores.http.jobs import Jobs
from holdfast.stores.http.notifications import Ears
from holdfast.stores.http.reads import Reads
from holdfast.stores.http.schedules import Schedules
from holdfast.stores.http.session import encode, queue_path

_UNKNOWN = Capabilities(
    name="http", durable=False, survives_power_loss=False, many_processes=True, many_hosts=True,
    transactional_enqueue=False, exact_turns=False, exact_quota=False,
    notes={"durable": "what the store behind the service promises; known once it is open"},
)  # fmt: skip


class HttpStore(Jobs, Reads, Schedules):
    """One tenant's part of the store behind a service. Belongs to one event loop."""

    def __init__(self, address: Address, bearer: Bearer, tenant: str = "") -> None:
        super().__init__(address, bearer, tenant)
        self._ears = Ears(self._link)
        self._flow_waits = flows.Waits(self._ears.tell)
        self._posts = 0
        self._info: answers.Session | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store behind the service, as far as HTTP carries them; known once it is open."""
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
        self._link.open()
        try:
            info = await self._token()
            tenant = self._tenant or info.tenant
            _check_tenant(tenant, info.tenant)
        except BaseException:
            await self._link.close()
            raise
        self._tenant, self._info, self._for_some = tenant, info, info.queues is not None

    async def close(self) -> None:
        self._info = None
        await self._flow_waits.close()
        await self._ears.close()
        await self._link.close()

    async def sibling(self) -> HttpStore:
        # Without a request: connections belong to the event loop that makes them.
        other = HttpStore(self._address, self._bearer, self._tenant)
        other._link.open()
        other._info, other._for_some = self._info, self._for_some
        return other

    async def now(self) -> int:
        return incoming.ms((await self._token()).now)

    async def shift_clock(self, ms: int) -> None:
        raise Unsupported(f"moving the clock by {ms} ms; move that of the store behind the service", "http")

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        # Whoever has a place here claims by waiting, and would only wake up for nothing.
        wanted = [hint for hint in hints if hint is not Hint.READY or not self._posts]
        return self._ears.listen(listener, wanted)

    async def _flow_job(self, key: JobKey) -> Job | None:
        found = await super()._flow_job(key)
        if found is not None and found.state not in TERMINAL and self._ears.any:
            self._flow_waits.add(self._link, key)
        return found

    def open_inbox(self, deliver: Deliver) -> WaitingPost:
        """A place for one worker, in the current event loop."""
        self._posts += 1

        def closed() -> None:
            self._posts -= 1

        # With a connection of its own: the end of the wait is told by it.
        return WaitingPost(self._claim, Link(self._address, self._bearer), deliver, closed)

    # Settings, workers, upkeep ----------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        self._check(tenant)
        await self._link.call("POST", f"{queue_path(queue)}/{'pause' if paused else 'resume'}", answers.Paused)
        if not paused:
            self._ears.tell(Signal(Hint.READY, tenant, queue))

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        self._check(tenant)
        raise _settings(settings.queue)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        self._check(tenant)
        raise _settings(None)

    async def tenant_usage(self, tenant: str) -> TenantUsage:
        """What the tenant keeps, and what it may: the service knows."""
        self._check(tenant)
        return await self._link.call("GET", "/v1/usage", TenantUsage)

    async def usage(self, tenant: str) -> Usage:
        found = await self.tenant_usage(tenant)
        used = {one.budget: one.used or 0 for one in found.budgets}
        jobs = used["max_jobs"] - found.keys
        return Usage(jobs, found.keys, used["max_bytes"], used["max_queues"], found.events)

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        self._check(worker.tenant)
        body = encode(outgoing.beat(worker, ttl_ms))
        await self._link.call("POST", "/v1/workers:beat", answers.Beaten, body=body)

    async def known_types(self, tenant: str) -> KnownTypes:
        self._check(tenant)
        types: list[answers.KnownType] = []
        queues: list[answers.ServedQueue] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await self._link.call("GET", "/v1/types", answers.Types, query={"cursor": cursor})
            types += page.types
            queues += page.queues
            cursor = page.cursor
        return incoming.known_types(types, queues)

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        self._check(tenant)
        raise Unsupported("listing workers; ask the store: `holdfast workers`", "http")

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        del cursor, limit
        self._check(tenant)
        raise Unsupported("listing workers; ask the store: `holdfast workers`", "http")

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


def _check_tenant(tenant: str, said: str) -> None:
    if tenant != said:
        raise InvalidOption("tenant", f"the token is of {said!r}, not of {tenant!r}")


def _settings(queue: str | None) -> Unsupported:
    whose = "the tenant's settings" if queue is None else f"the settings of queue {queue!r}"
    return Unsupported(f"{whose}: they are an operator's, at the store: `holdfast tenant set`", "http")
