"""The `Store` face of a service. What HTTP has no words for raises Unsupported, with what to do instead.

The service does the upkeep of its store: `reap` and `prune` have nothing to do here. It keeps no list of workers
either, so `beat` says nothing to it; who holds a job stands in the job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

import msgspec

from holdfast.core import wire
from holdfast.core.errors import InvalidOption, JobNotFound, Unsupported
from holdfast.core.job import (
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Extend,
    Extended,
    Finish,
    Finished,
    Job,
    JobKey,
    JobState,
    NewJob,
    Purge,
    PurgeStatus,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.store import (
    ALL_HINTS,
    JOINING,
    Capabilities,
    Deliver,
    EnqueueAnswer,
    EventPage,
    ExtendAnswer,
    Finding,
    FinishAnswer,
    Hint,
    Listener,
    ListQuery,
    Page,
    Pruned,
    QueueStats,
    Reader,
    Reaped,
    ReplayAnswer,
    ReportAnswer,
    Signal,
    TenantSettings,
    WorkerInfo,
)
from holdfast.stores.http import batches, incoming, outgoing
from holdfast.stores.http.address import Address
from holdfast.stores.http.bearer import Bearer
from holdfast.stores.http.doctor import findings
from holdfast.stores.http.ears import Ears
from holdfast.stores.http.link import Link, segment
from holdfast.stores.http.posts import WaitingPost
from holdfast.stores.http.trouble import of_item

A = TypeVar("A")
B = TypeVar("B")

AT_ONCE = 32
"""So many requests for single jobs are under way at the same time."""

_ALL = frozenset(JobState)
_FAILED = frozenset({JobState.FAILED})
_encode = msgspec.json.Encoder().encode


class HttpStore:
    """One tenant's part of the store behind a service. Belongs to one event loop."""

    def __init__(self, address: Address, bearer: Bearer, tenant: str = "") -> None:
        self._address = address
        self._bearer = bearer
        self._tenant = tenant
        self._link = Link(address, bearer)
        self._ears = Ears(self._link)
        self._posts = 0
        self._info: wire.TokenInfo | None = None

    # A token, and whose it is -----------------------------------------------------------------------------------

    def use_token(self, token: str | Callable[[], str]) -> None:
        self._bearer = self._link.bearer = Bearer(token)

    def bind(self, tenant: str | None) -> str:
        said = self._bearer.tenant()
        if tenant and said and tenant != said:
            raise InvalidOption("tenant", f"the token is of {said!r}; leave tenant= out")
        self._tenant = tenant or said
        if not self._tenant:
            raise InvalidOption("tenant", "the token does not say it under a name that is known here; give tenant=")
        return self._tenant

    @property
    def capabilities(self) -> Capabilities:
        info = self._info
        return Capabilities(
            name="http",
            durable=info is not None and info.durable,
            survives_power_loss=info is not None and info.survives_power_loss,
            many_processes=True,
            many_hosts=True,
            transactional_enqueue=False,
            exact_turns=False,
            exact_quota=info is not None and info.exact_quota,
            notes={
                "durable": "as durable as the store behind the service, which says so when the queue is opened",
                "exact_turns": "a token is one tenant's: turns between tenants are for workers at the store",
            },
        )

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
        self._tenant, self._info = tenant, info

    async def close(self) -> None:
        self._info = None
        await self._ears.close()
        await self._link.close()

    async def sibling(self) -> HttpStore:
        other = HttpStore(self._address, self._bearer, self._tenant)
        await other.open()
        return other

    async def now(self) -> int:
        return incoming.ms((await self._token()).now)

    async def shift_clock(self, ms: int) -> None:
        raise Unsupported(f"moving the clock by {ms} ms; move that of the store behind the service", "http")

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        # Whoever has a place here claims by waiting, and would only wake up for nothing.
        wanted = [hint for hint in hints if hint is not Hint.READY or not self._posts]
        return self._ears.listen(listener, wanted)

    def post(self, deliver: Deliver) -> WaitingPost:
        """A place for one worker, in the current event loop."""
        self._posts += 1

        def closed() -> None:
            self._posts -= 1

        return WaitingPost(self._claim, deliver, closed)

    # Jobs -------------------------------------------------------------------------------------------------------

    async def enqueue(self, items: Sequence[NewJob], *, connection: Any = None) -> list[EnqueueAnswer]:
        _joins_nothing(connection)
        answers: list[EnqueueAnswer] = []
        # The trace context goes as headers, one for each request.
        for headers, group in groupby(items, key=lambda item: item.envelope.headers):
            run = list(group)
            made = [_encode(outgoing.enqueue(item)) for item in self._own(run, lambda item: item.key)]
            told = await batches.send(
                self._link, "/v1/jobs:batch", "jobs", made, wire.Ticket,
                headers=headers, repeat=all(item.envelope.request_id for item in run),
            )  # fmt: skip
            for item, answer in zip(run, told, strict=True):
                refused = isinstance(answer, wire.ErrorInfo)
                answers.append(cast("EnqueueAnswer", of_item(answer, item.key)) if refused else incoming.ticket(answer))
        return answers

    async def claim(self, request: ClaimRequest) -> Claimed:
        return (await self._claim(request, 0.0))[0]

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        _joins_nothing(connection)
        return await self._leases(
            "finish", items, outgoing.finish, wire.Finished, lambda answer: Finished(answer.status)
        )

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        def extended(answer: wire.Extended) -> Extended:
            return Extended(incoming.ms(answer.deadline), incoming.ms(answer.now))

        return await self._leases("extend", items, outgoing.extend, wire.Extended, extended)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        return await self._leases("report", items, outgoing.report, wire.Reported, lambda _: Reported())

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        async def cancel(item: Cancel) -> CancelStatus:
            query = {"only_waiting": "true"} if item.only_waiting else None
            try:
                return (await self._link.call("DELETE", _path(item.key), wire.Canceled, query=query)).status
            except JobNotFound:
                return "not_found"

        return await _at_once(self._own(items, lambda item: item.key), cancel)

    async def replay(self, keys: Sequence[JobKey]) -> list[ReplayAnswer]:
        answers: list[ReplayAnswer] = []
        for queue, group in groupby(self._own(keys, lambda key: key), key=lambda key: key.queue):
            run = list(group)
            body = _encode(wire.Replay(ids=[key.id for key in run]))
            path = f"{_queue(queue)}/dead-letters:replay"
            told = await self._link.call("POST", path, wire.Replays, body=body, repeat=False)
            for key, item in zip(run, told.items, strict=True):
                refused = None if item.error is None else of_item(item.error, key)
                answers.append(Replayed() if refused is None else cast("ReplayAnswer", refused))
        return answers

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        def forget(item: Purge) -> wire.Forget:
            ended = item.finished_at
            return wire.Forget(id=item.key.id, finished_at=None if ended is None else outgoing.instant(ended))

        return [
            cast("PurgeStatus", status)
            for status in await self._by_queue("jobs:purge", items, forget, wire.Forgotten, repeat=False)
        ]

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        def retain(item: SetResultTtl) -> wire.Retain:
            return wire.Retain(id=item.key.id, result_ttl_s=item.ttl_ms / 1000)

        return [
            cast("TtlStatus", status)
            for status in await self._by_queue("jobs:set-result-ttl", items, retain, wire.Retained)
        ]

    # Reading ----------------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        async def get(key: JobKey) -> Job | None:
            try:
                return incoming.job(await self._link.call("GET", _path(key), wire.Job))
            except JobNotFound:
                return None

        return await _at_once(self._own(keys, lambda key: key), get)

    async def list(self, query: ListQuery) -> Page:
        self._check(query.tenant)
        said = {"limit": str(query.limit), "type": query.type, "cursor": query.cursor}
        if query.error is not None:
            if query.states != _FAILED:
                raise Unsupported("searching by error but in dead letters; ask for state failed", "http")
            path, said["error"] = "dead-letters", query.error
        else:
            path = "jobs"
            said["state"] = None if query.states == _ALL else ",".join(sorted(query.states))
            if not query.states:
                return Page([], None, 0)
        told = {name: value for name, value in said.items() if value is not None}
        page = await self._link.call("GET", f"{_queue(query.queue)}/{path}", wire.Jobs, query=told)
        return Page([incoming.job(job) for job in page.jobs], page.cursor, int(time.time() * 1000))

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        self._check(tenant)
        now = int(time.time() * 1000)
        if queues is None:
            found = (await self._link.call("GET", "/v1/queues", wire.Queues)).queues
            return [incoming.stats(one, now) for one in found]

        async def stats(queue: str) -> QueueStats:
            return incoming.stats(await self._link.call("GET", f"{_queue(queue)}/stats", wire.QueueStats), now)

        return await _at_once(queues, stats)

    async def tenants(self) -> list[str]:
        raise Unsupported("listing tenants: a token is one tenant's; ask the store", "http")

    # Events -----------------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        self._check(tenant)
        query = {"follow": "false"} if after is None else {"follow": "false", "after": after}
        page, more = EventPage([], after or "", False), False
        async with self._link.stream("/v1/events", query) as messages:
            async for offset, data in messages:
                if data:
                    page.events.append(incoming.event(msgspec.json.decode(data, type=wire.Event)))
                page = msgspec.structs.replace(page, next=offset or page.next)
                more = len(page.events) >= limit
                if more:
                    break
        return msgspec.structs.replace(page, more=more)

    async def last_offset(self) -> str:
        return (await self._link.call("GET", "/v1/events:last", wire.Offset)).offset

    async def set_reader(self, reader: Reader) -> None:
        raise _readers(reader.name)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        self._check(tenant)
        raise _readers(name)

    async def readers(self, tenant: str | None) -> list[Reader]:
        self._check(tenant)
        raise _readers("")

    # Settings, workers, upkeep ----------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        self._check(tenant)
        await self._link.call("POST", f"{_queue(queue)}/{'pause' if paused else 'resume'}", wire.Paused)
        if not paused:
            self._ears.tell(Signal(Hint.READY, tenant, queue))

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        self._check(tenant)
        raise _settings(settings.queue)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        self._check(tenant)
        raise _settings(None)

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        del worker, ttl_ms

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
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

    # The small steps --------------------------------------------------------------------------------------------

    async def _token(self) -> wire.TokenInfo:
        return await self._link.call("GET", "/v1/token", wire.TokenInfo)

    async def _claim(self, request: ClaimRequest, wait_s: float) -> tuple[Claimed, float]:
        self._check(request.tenant)
        body = _encode(outgoing.claim(request, wait_s))
        # Never repeated: a lost reply costs one lease, a second claim would cost another. [ENQ-8]
        answer = await self._link.call("POST", "/v1/claims", wire.Claimed, body=body, repeat=False, wait_s=wait_s)
        return incoming.claimed(self._tenant, request.worker_id, answer), answer.waited_s

    async def _leases(
        self,
        verb: str,
        items: Sequence[Any],
        make: Callable[[Any], Any],
        type: type[A],
        show: Callable[[A], B],
    ) -> list[Any]:
        """Acknowledge. A token makes a repeat answer like the first time. [LEASE-1]"""
        made = [_encode(make(item)) for item in self._own(items, lambda item: item.key)]
        told = await batches.send(self._link, f"/v1/leases:{verb}", "leases", made, type)
        return [
            of_item(answer, item.key) if isinstance(answer, wire.ErrorInfo) else show(answer)
            for item, answer in zip(items, told, strict=True)
        ]

    async def _by_queue(
        self, path: str, items: Sequence[Any], make: Callable[[Any], Any], type: type[Any], *, repeat: bool = True
    ) -> list[Any]:
        statuses: list[Any] = []
        for queue, group in groupby(self._own(items, lambda item: item.key), key=lambda item: item.key.queue):
            run = list(group)
            made = [_encode(make(item)) for item in run]
            told = await batches.send(self._link, f"{_queue(queue)}/{path}", "jobs", made, type, repeat=repeat)
            for item, answer in zip(run, told, strict=True):
                if isinstance(answer, wire.ErrorInfo):
                    raise of_item(answer, item.key)
                statuses.append(answer.status)
        return statuses

    def _own(self, items: Sequence[A], key: Callable[[A], JobKey]) -> Sequence[A]:
        for item in items:
            self._check(key(item).tenant)
        return items

    def _check(self, tenant: str | None) -> None:
        if tenant != self._tenant:
            whose = "all tenants at once" if tenant is None else "another tenant than the token's"
            raise Unsupported(f"{whose}; use a token for each, or the store itself", "http")


async def _at_once(items: Sequence[A], act: Callable[[A], Awaitable[B]]) -> list[B]:
    """One request for each item, some of them side by side; the answers in order."""
    if len(items) == 1:
        return [await act(items[0])]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: A) -> B:
        async with gate:
            return await act(item)

    tasks = [asyncio.create_task(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _check_tenant(tenant: str, said: str) -> None:
    if tenant != said:
        raise InvalidOption("tenant", f"the token is of {said!r}, not of {tenant!r}")


def _queue(queue: str) -> str:
    return f"/v1/queues/{segment(queue)}"


def _path(key: JobKey) -> str:
    return f"{_queue(key.queue)}/jobs/{segment(key.id)}"


def _joins_nothing(connection: Any) -> None:
    if connection is not None:
        raise Unsupported(JOINING, "http")


def _readers(name: str) -> Unsupported:
    which = f"the reader {name!r}" if name else "readers"
    return Unsupported(f"{which}: they hold back everybody's log; keep the offset yourself", "http")


def _settings(queue: str | None) -> Unsupported:
    whose = "the tenant's settings" if queue is None else f"the settings of queue {queue!r}"
    return Unsupported(f"{whose}: they are an operator's, at the store: `holdfast tenant set`", "http")
