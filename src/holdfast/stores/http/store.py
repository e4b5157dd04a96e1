"""The operations of a store, as far as one tenant's token allows them over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn, cast
from urllib.parse import quote

import msgspec

from holdfast.core import answers, wire
from holdfast.core.errors import HoldfastError, InvalidOption, JobNotFound, Unsupported
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
    TenantSettings,
    WorkerInfo,
)
from holdfast.stores.http import shapes
from holdfast.stores.http.ears import Ears
from holdfast.stores.http.link import Link, error_of

NAME = "http"
_FAILED = frozenset({JobState.FAILED})
_UNKNOWN = Capabilities(
    name=NAME, durable=False, survives_power_loss=False, many_processes=True, many_hosts=True,
    transactional_enqueue=False, exact_turns=False, exact_quota=False,
    notes={"durable": "what the store behind the service promises; known once it is open"},
)  # fmt: skip


class _Item(msgspec.Struct, kw_only=True):
    status: str = ""
    deadline: Any = None
    now: Any = None
    error: answers.ErrorInfo | None = None


class _Items(msgspec.Struct):
    items: list[_Item]


class _Enqueued(msgspec.Struct):
    items: list[shapes.EnqueueItem]


class HttpStore:
    """One tenant's jobs behind the service. Never repeats a request."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ears = Ears(link)
        self._session: answers.Session | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store behind the service, but for what HTTP cannot carry."""
        if self._session is None:
            return _UNKNOWN
        found = msgspec.convert(self._session.store, Capabilities)
        return msgspec.structs.replace(
            found, name=f"{NAME} ({found.name})", transactional_enqueue=False, many_processes=True, many_hosts=True
        )

    def use_token(self, token: str) -> None:
        """Call with this token. Before `open`."""
        self._link.token = token

    async def open(self) -> None:
        if self._session is None:
            self._link.open()
            try:
                self._session = await self._link.ask(answers.Session, "GET", "/v1/session")
            except BaseException:
                await self._link.close()
                raise

    async def close(self) -> None:
        await self._ears.close()
        await self._link.close()
        self._session = None

    async def sibling(self) -> HttpStore:
        other = HttpStore(Link(self._link.address, self._link.timeout_s, self._link.token))
        await other.open()
        return other

    async def now(self) -> int:
        return shapes.ms((await self._link.ask(answers.Session, "GET", "/v1/session")).now)

    async def shift_clock(self, ms: int) -> None:
        del ms
        _not_over_http("moving the clock")

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        return self._ears.listen(listener, hints)

    # Jobs -------------------------------------------------------------------------------------------------

    async def enqueue(self, items: Sequence[NewJob], *, connection: Any = None) -> list[EnqueueAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, NAME)
        self._check(*(item.key.tenant for item in items))
        body = wire.EnqueueBatch(jobs=[shapes.enqueue(item) for item in items])
        found = await self._link.ask(_Enqueued, "POST", "/v1/jobs:batch", body)
        return [cast("EnqueueAnswer", shapes.enqueued(item)) for item in found.items]

    async def claim(self, request: ClaimRequest) -> Claimed:
        self._check(request.tenant)
        body = wire.Claim(
            queues=list(request.queues),
            limit=request.limit,
            lease_s=request.lease_ms / 1000,
            worker_id=request.worker_id or None,
        )
        found = await self._link.ask(answers.Claimed, "POST", "/v1/claims", body)
        tenant = request.tenant or ""
        jobs = [shapes.claimed(job, tenant, request.worker_id) for job in found.jobs]
        return Claimed(jobs, shapes.ms(found.now), None if found.next_at is None else shapes.ms(found.next_at))

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, NAME)
        self._check(*(item.key.tenant for item in items))
        body = wire.FinishBatch(leases=[shapes.finish(item) for item in items])
        return await self._each("finish", body, lambda item: Finished(JobState(item.status)))

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        self._check(*(item.key.tenant for item in items))
        leases = [
            wire.Extend(queue=one.key.queue, id=one.key.id, token=one.token, lease_s=one.lease_ms / 1000)
            for one in items
        ]
        return await self._each(
            "extend",
            wire.ExtendBatch(leases=leases),
            lambda item: Extended(_instant_ms(item.deadline), _instant_ms(item.now)),
        )

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        self._check(*(item.key.tenant for item in items))
        leases = [
            wire.Report(
                queue=one.key.queue,
                id=one.key.id,
                token=one.token,
                progress=wire.Progress(fraction=one.progress.fraction, message=one.progress.message),
            )
            for one in items
        ]
        return await self._each("report", wire.ReportBatch(leases=leases), lambda _: Reported())

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return await asyncio.gather(*(self._cancel(item) for item in items))

    async def replay(self, keys: Sequence[JobKey]) -> list[ReplayAnswer]:
        return await asyncio.gather(*(self._replay(key) for key in keys))

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        del items
        _not_over_http("purging jobs one by one")

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        del items
        _not_over_http("changing how long a result is kept")

    # Reading ----------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        return await asyncio.gather(*(self._get(key) for key in keys))

    async def list(self, query: ListQuery) -> Page:
        self._check(query.tenant)
        asked = {"type": query.type, "cursor": query.cursor, "limit": query.limit}
        if query.states == _FAILED:
            path, asked["error"] = f"{_queue(query.queue)}/dead-letters", query.error
            found: Any = await self._link.ask(answers.DeadLetters, "GET", path, query=asked)
        else:
            if len(query.states) == 1:
                asked["state"] = next(iter(query.states)).value
            elif query.states != frozenset(JobState):
                _not_over_http("listing several states, but not all")
            found = await self._link.ask(answers.Jobs, "GET", f"{_queue(query.queue)}/jobs", query=asked)
        return Page([shapes.job(job) for job in found.jobs], found.cursor, await self.now())

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        self._check(tenant)
        if queues is None:
            found = (await self._link.ask(answers.Queues, "GET", "/v1/queues")).queues
        else:
            asked = (self._link.ask(answers.QueueStats, "GET", f"{_queue(queue)}/stats") for queue in queues)
            found = await asyncio.gather(*asked)
        now = await self.now()
        return [_stats(one, now) for one in found]

    async def tenants(self) -> list[str]:
        _not_over_http("listing tenants")

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        self._check(tenant)
        found: list[Any] = []
        query = {"follow": "false"} | ({} if after is None else {"after": after})
        async with self._link.stream("/v1/events", query) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    found.append(shapes.event(msgspec.json.decode(line[6:], type=answers.Event)))
                    if len(found) == limit:
                        return EventPage(found, found[-1].offset, more=True)
        end = found[-1].offset if found else after
        return EventPage(found, await self.last_offset() if end is None else end, more=False)

    async def last_offset(self) -> str:
        return (await self._link.ask(answers.Session, "GET", "/v1/session")).offset

    async def set_reader(self, reader: Reader) -> None:
        del reader
        _not_over_http("registering readers")

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        del tenant, name
        _not_over_http("registering readers")

    async def readers(self, tenant: str | None) -> list[Reader]:
        del tenant
        _not_over_http("registering readers")

    # Settings, workers, upkeep ------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        self._check(tenant)
        await self._link.ask(answers.Paused, "POST", f"{_queue(queue)}/{'pause' if paused else 'resume'}")

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        del tenant, settings
        _not_over_http("settings of tenants")

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        del tenant
        _not_over_http("settings of tenants")

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        """Nobody keeps a list of workers behind HTTP."""

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        del tenant
        return []

    async def reap(self, limit: int, random: float) -> Reaped:
        """The service sees to it."""
        del limit, random
        return Reaped([], await self.now(), None)

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        """The service sees to it."""
        del limit, blobs
        return Pruned(0, 0, [], more=False)

    async def doctor(self) -> Sequence[Finding]:
        return [Finding("ok", "service", f"{self._link.address} answers; ask doctor where its store is")]

    # The small steps ----------------------------------------------------------------------------------------

    def _check(self, *tenants: str | None) -> None:
        """Raise InvalidOption for another tenant than the token's: the service knows no other. [TENANT-1]"""
        own = None if self._session is None else self._session.tenant
        for tenant in tenants:
            if own is not None and tenant != own:
                raise InvalidOption("tenant", f"the token is for {own!r}, not for {tenant or 'all tenants'!r}")

    async def _each(self, verb: str, body: Any, make: Callable[[_Item], Any]) -> Any:
        found = await self._link.ask(_Items, "POST", f"/v1/leases:{verb}", body)
        return [make(item) if item.error is None else _error(item.error) for item in found.items]

    async def _cancel(self, item: Cancel) -> CancelStatus:
        self._check(item.key.tenant)
        query = {"only_waiting": "true"} if item.only_waiting else None
        try:
            return (await self._link.ask(answers.Canceled, "DELETE", _job(item.key), query=query)).status
        except JobNotFound:
            return "not_found"

    async def _replay(self, key: JobKey) -> ReplayAnswer:
        self._check(key.tenant)
        path = f"{_queue(key.queue)}/dead-letters:replay"
        (item,) = (await self._link.ask(answers.Replays, "POST", path, wire.Replay(ids=[key.id]))).items
        return Replayed() if item.error is None else cast("ReplayAnswer", _error(item.error))

    async def _get(self, key: JobKey) -> Job | None:
        self._check(key.tenant)
        try:
            return shapes.job(await self._link.ask(answers.Job, "GET", _job(key)))
        except JobNotFound:
            return None


def _queue(queue: str) -> str:
    return f"/v1/queues/{quote(queue, safe='')}"


def _job(key: JobKey) -> str:
    # Dots too: a part of a path that is nothing but dots would be taken for directions.
    return f"{_queue(key.queue)}/jobs/{quote(key.id, safe='').replace('.', '%2E')}"


def _error(error: answers.ErrorInfo) -> HoldfastError:
    return error_of(error.code, error.message, error.args)


def _instant_ms(text: Any) -> int:
    return shapes.ms(msgspec.convert(text, wire.Instant))


def _stats(found: answers.QueueStats, now: int) -> QueueStats:
    counts = {JobState(state): count for state, count in found.counts.items()}
    age_s = found.oldest_ready_age_s
    oldest = None if age_s is None else now - round(1000 * age_s)
    return QueueStats(found.queue, counts, oldest, found.paused, now)


def _not_over_http(what: str) -> NoReturn:
    raise Unsupported(f"{what} over HTTP", NAME)
