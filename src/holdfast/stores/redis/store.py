"""The `Store` face of the Redis store: each method is one script, on the shard of its tenant or on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, cast
from uuid import uuid4

import msgspec
from msgspec.structs import asdict, replace

from holdfast.budgets import BudgetEnforcer
from holdfast.core import fairness, lifecycle
from holdfast.core.budgets import Budgets, Usage
from holdfast.core.errors import (
    InvalidOption,
    JobCanceled,
    JobNotFound,
    LeaseExpired,
    LeaseLost,
    NotReplayable,
    QuotaExceeded,
    StoreError,
    StoreUnavailable,
    Unsupported,
)
from holdfast.core.events import LEASE_EXPIRED, fingerprint
from holdfast.core.job import (
    AlreadyCompleted,
    AttemptError,
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Duplicate,
    Extend,
    Extended,
    Finish,
    Finished,
    Job,
    JobKey,
    Lease,
    NewJob,
    Purge,
    PurgeStatus,
    Queued,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.core.lease import Refusal
from holdfast.core.names import check_id
from holdfast.extensions import Deliver, LogRange, WorkerInbox
from holdfast.opening import CommonOptions
from holdfast.paging import name_cursor, pages
from holdfast.store import (
    ALL_HINTS,
    JOINING,
    PAGE_LIMIT,
    Capabilities,
    EnqueueAnswer,
    EventPage,
    ExtendAnswer,
    Finding,
    FinishAnswer,
    Hint,
    Listener,
    ListQuery,
    LogPage,
    Page,
    Pruned,
    PurgePage,
    QueuePage,
    QueueStats,
    Reader,
    Reaped,
    ReplayAnswer,
    ReportAnswer,
    TenantPage,
    TenantSettings,
    WorkerInfo,
    WorkerPage,
)
from holdfast.stores.redis import doctor, reads, records, trimming
from holdfast.stores.redis.claims import Claims
from holdfast.stores.redis.client import Link
from holdfast.stores.redis.handoff import RedisInbox
from holdfast.stores.redis.keys import lane_of, names_of
from holdfast.stores.redis.messages import signals
from holdfast.stores.redis.notifications import Ears
from holdfast.stores.redis.records import ELSEWHERE, STATES, encode
from holdfast.stores.redis.scripts import SCRIPTS
from holdfast.stores.redis.shards import BATCH, Shards

_REFUSALS: dict[int, Callable[[str, str], Refusal]] = {
    -1: JobNotFound, -2: LeaseLost, -3: JobCanceled, -4: LeaseExpired,
}  # fmt: skip
_FINISHED = tuple(Finished(state) for state in STATES)
_CANCELED: dict[int, CancelStatus] = {
    -1: "not_found", 4: "processing", 5: "completed", 6: "failed", 7: "canceled",
}  # fmt: skip
_PURGED: dict[int, PurgeStatus] = {-1: "not_found", 0: "not_terminal", 1: "purged"}
_UPDATED: dict[int, TtlStatus] = {-1: "not_found", 0: "not_terminal", 1: "updated"}
_EXPIRED_PRINT = fingerprint(AttemptError(LEASE_EXPIRED, ""))
_OVERHEAD = 200
PAYLOADS_AT_ONCE = 20
"""How many large payloads, of up to 256 KiB each, are fetched in one command."""

_decode_worker = msgspec.json.Decoder(WorkerInfo).decode


class RedisStore:
    """Jobs on a Redis or Valkey server, or on a cluster of them. Belongs to one event loop."""

    def __init__(self, link: Link, options: CommonOptions, *, prefix: str = "hf", shards: int | None = None) -> None:
        self.options = options
        self.enforcer = BudgetEnforcer(self, options)
        self._link = link
        self._wanted = shards
        keep = options.retention
        settings = encode((keep.failed_ms, keep.canceled_ms, options.all_events, _EXPIRED_PRINT))
        self._shards = Shards(link, prefix, settings)
        self._claims = Claims(self._shards)
        self._ears: Ears | None = None
        self._capabilities = _capabilities(
            1, doctor.Durability(durable=False, survives_power_loss=False, note="Not open yet.")
        )
        self._opening = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def calls_at_once(self) -> int:
        return self._link.connections

    async def open(self) -> None:
        async with self._opening:
            if self._ears is not None:
                return
            try:
                await self._find_ready()
            except BaseException:
                await self._link.distrust()  # Nobody would close what was never open.
                raise
            self._ears = Ears(self._link, self._shards.prefix, signals)

    async def _find_ready(self) -> None:
        """Connect, and see that the server is fit for us and laid out as we think. Raises StoreError."""
        await self._link.open()
        await doctor.refuse_eviction(self._link)
        # A user who may not publish would leave everybody else deaf to what he does.
        await self._link.command(b"", "PUBLISH", f"{self._shards.prefix}:hello", "")
        await self._shards.lay_out(self._wanted, frozen=self.options.test_clock == "frozen")
        self._capabilities = _capabilities(self._shards.count, await doctor.durability(self._link))

    async def close(self) -> None:
        await self.enforcer.close()
        ears, self._ears = self._ears, None
        if ears is not None:
            await ears.close()
        await self._link.close()

    async def sibling(self) -> RedisStore:
        # It is open without having been connected: its connections belong to the event loop that will use it.
        link = self._link.sibling()
        other = RedisStore(link, self.options, prefix=self._shards.prefix, shards=self._opened.count)
        other._shards.settle(self._opened.count)
        other._capabilities = self._capabilities
        other._ears = Ears(link, self._shards.prefix, signals)
        return other

    async def now(self) -> int:
        return (await self._opened.run("clock", 0, _NOW))[0]

    async def shift_clock(self, ms: int) -> None:
        if self.options.test_clock == "0":
            raise Unsupported("shifting the clock (open it with test_clock=1)", "redis")
        await self._opened.run_everywhere("clock", encode(("shift", ms)), repeat=False)

    def listen(self, listener: Listener, hints: Collection[Hint] = ALL_HINTS) -> Callable[[], None]:
        _ = self._opened
        if self._ears is None:
            raise StoreUnavailable(_CLOSED)
        return self._ears.listen(listener, hints)

    # Jobs -------------------------------------------------------------------------------------------------

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "redis")
        if not self.enforcer.admits(items):
            return await self.enforcer.enqueue(items, lambda admitted: self._take_in(admitted, under))
        return await self._take_in(items, under)

    async def _take_in(self, items: Sequence[NewJob], under: Lease | None) -> list[EnqueueAnswer]:
        # Without a request id a repetition would be answered as a duplicate of itself. [ENQ-8]
        repeat = all(item.envelope.request_id for item in items)
        pack = records.enqueue_request if under is None else partial(records.enqueue_request, under=under)
        answers = await self._opened.run_batch("enqueue", items, _tenant_of, pack, _size_of_new, repeat=repeat)
        _check_under(under, answers)
        return [_enqueued(item.key, answer) for item, answer in zip(items, answers, strict=True)]

    async def claim(self, request: ClaimRequest) -> Claimed:
        _ = self._opened
        return await self.filled(await self._claims.claim(request))

    def open_inbox(self, deliver: Deliver) -> WorkerInbox | None:
        _ = self._opened
        if self._ears is None:
            raise StoreUnavailable(_CLOSED)
        if self._shards.count > 1 or self._link.is_cluster:
            return None
        return RedisInbox(self._shards, self._ears, self, deliver)

    async def filled(self, claimed: Claimed) -> Claimed:
        """Claimed jobs with their large payloads."""
        # Jobs whose payload cannot be had come back when their lease is over; the others must not be lost with them.
        jobs = [job for job in await self._with_payloads(claimed.jobs, strict=False) if job is not None]
        return Claimed(jobs, claimed.now, claimed.next_at)

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        if connection is not None:
            raise Unsupported(JOINING, "redis")
        answers = await self._opened.run_batch(
            "finish", items, _tenant_of, records.finish_request, _size_of_finish, repeat=True
        )
        return [
            _FINISHED[answer] if answer >= 0 else _REFUSALS[answer](item.key.queue, item.key.id)
            for item, answer in zip(items, answers, strict=True)
        ]

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        def pack(piece: Sequence[Extend]) -> tuple[bytes]:
            return (encode([(*_address(item.key), item.token, item.lease_ms) for item in piece]),)

        answers = await self._opened.run_batch("extend", items, _tenant_of, pack, repeat=True)
        return [
            _REFUSALS[answer](item.key.queue, item.key.id)
            if isinstance(answer, int)
            else Extended(answer[0], answer[1])
            for item, answer in zip(items, answers, strict=True)
        ]

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        def pack(piece: Sequence[Report]) -> tuple[bytes]:
            parts = [(*_address(item.key), item.token, item.progress.fraction, item.progress.message) for item in piece]
            return (encode(parts),)

        answers = await self._opened.run_batch("report", items, _tenant_of, pack, repeat=True)
        return [
            Reported() if answer == 0 else _REFUSALS[answer](item.key.queue, item.key.id)
            for item, answer in zip(items, answers, strict=True)
        ]

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        def pack(piece: Sequence[Cancel]) -> tuple[bytes]:
            parts = [(*_address(item.key), item.only_waiting, _life(item.seq)) for item in piece]
            return (encode((uuid4().hex, parts)),)

        return [_CANCELED[a] for a in await self._opened.run_batch("cancel", items, _tenant_of, pack, repeat=True)]

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None) -> list[ReplayAnswer]:
        return await self.enforcer.replay(keys, lambda admitted: self._replay(admitted, under))

    async def _replay(self, keys: Sequence[JobKey], under: Lease | None) -> list[ReplayAnswer]:
        def pack(piece: Sequence[JobKey]) -> tuple[bytes]:
            return (encode(([_address(key) for key in piece], records.under_request(under))),)

        answers = await self._opened.run_batch("replay", keys, lambda key: key.tenant, pack, repeat=False)
        _check_under(under, answers)
        return [_replayed(key, answer) for key, answer in zip(keys, answers, strict=True)]

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        def pack(piece: Sequence[Purge]) -> tuple[bytes]:
            ends = [-1 if item.finished_at is None else item.finished_at for item in piece]
            parts = [(*_address(item.key), end, _life(item.seq)) for item, end in zip(piece, ends, strict=True)]
            return (encode(parts),)

        return [_PURGED[a] for a in await self._opened.run_batch("purge", items, _tenant_of, pack, repeat=False)]

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        def pack(piece: Sequence[SetResultTtl]) -> tuple[bytes]:
            parts = [(*_address(item.key), item.ttl_ms, _life(item.seq)) for item in piece]
            return (encode((uuid4().hex, parts)),)

        answers = await self._opened.run_batch("set_result_ttl", items, _tenant_of, pack, repeat=True)
        return [_UPDATED[answer] for answer in answers]

    # Reading ----------------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[JobKey]) -> list[Job | None]:
        def pack(piece: Sequence[JobKey]) -> tuple[bytes]:
            return (encode([_address(key) for key in piece]),)

        answers = await self._opened.run_batch("get", keys, lambda key: key.tenant, pack, repeat=True)
        jobs: list[Job | None] = []
        for key, (now, raw) in zip(keys, answers, strict=True):
            job = None if raw is None else records.to_job(*key, raw)
            jobs.append(None if job is None or lifecycle.forgotten(job, now) else _shown(job, now))
        return list(await self._with_payloads(jobs))

    async def key_holders(self, items: Sequence[NewJob]) -> list[str | None]:
        def pack(piece: Sequence[NewJob]) -> tuple[bytes]:
            return (encode([(lane_of(*item.key[:2]), records.key_field(item.envelope)) for item in piece]),)

        holders = await self._opened.run_batch("key_holders", items, _tenant_of, pack, repeat=True)
        return [None if holder is None else holder.decode() for holder in holders]

    async def list(self, query: ListQuery) -> Page:
        page = await reads.list_jobs(self._opened, query)
        jobs = [job for job in await self._with_payloads(page.jobs) if job is not None]
        return Page(jobs, page.cursor, page.now or await self.now())

    async def stats(self, tenant: str, queues: Sequence[str] | None = None) -> list[QueueStats]:
        if queues is None:
            return [stats async for page in pages(partial(self.queue_page, tenant)) for stats in page.queues]
        found: list[QueueStats] = []
        while len(found) < len(queues):
            found += await reads.stats(self._opened, tenant, queues[len(found) : len(found) + PAGE_LIMIT])
        return found

    async def queue_page(self, tenant: str, cursor: str | None = None, limit: int = PAGE_LIMIT) -> QueuePage:
        return await reads.queue_page(self._opened, tenant, cursor, limit)

    async def tenants(self) -> list[str]:
        return [name async for page in pages(self.tenant_page) for name in page.tenants]

    async def tenant_page(self, cursor: str | None = None, limit: int = PAGE_LIMIT) -> TenantPage:
        return await reads.tenant_page(self._opened, cursor, limit)

    async def purge_counts(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> PurgePage:
        return await reads.purge_counts(self._opened, tenant, cursor, limit)

    # Events -----------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        return await reads.events(self._opened, tenant, after, limit)

    async def last_offset(self) -> str:
        return reads.join_offset([last for _, last in await self._opened.run_everywhere("clock", _NOW)])

    async def bounds(self, after: str | None, most: int | None = None, end: str | None = None) -> tuple[str, str]:
        return await reads.bounds(self._opened, after, most, end)

    async def written(self) -> str:
        return await self.last_offset()

    async def split(self, after: str, end: str, size: int) -> Sequence[LogRange]:
        return await reads.split(self._opened, after, end, size)

    async def read(self, stretch: LogRange, limit: int) -> LogPage:
        return await reads.read(self._opened, stretch, limit)

    async def set_reader(self, reader: Reader) -> None:
        shards = self._opened
        places = dict(enumerate(reads.parse_offset(shards, reader.offset)))
        if reader.tenant is not None:
            # The logs of other shards have nothing of this tenant, and must not wait for it.
            own = shards.of(reader.tenant)
            places = {own: places[own]}
        for verb in ("check", "set"):
            for shard, place in places.items():
                if not await shards.run("readers", shard, encode((verb, reader.tenant or False, reader.name, place))):
                    raise InvalidOption("offset", f"{reader.offset!r} is not an offset of this store")

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        request = encode(("drop", tenant or False, name))
        return any(await self._opened.run_everywhere("readers", request))

    async def readers(self, tenant: str | None) -> list[Reader]:
        places: dict[str, dict[int, int]] = {}
        for shard, found in enumerate(await self._opened.run_everywhere("readers", encode(("list", tenant or False)))):
            for at in range(0, len(found), 2):
                places.setdefault(found[at].decode(), {})[shard] = int(found[at + 1])
        shards = range(self._opened.count)
        return [
            Reader(tenant, name, reads.join_offset([at.get(shard, 0) for shard in shards]))
            for name, at in sorted(places.items())
        ]

    # Settings, workers, upkeep ------------------------------------------------------------------------------

    async def pause(self, tenant: str, queue: str, *, paused: bool) -> None:
        request = encode((lane_of(tenant, queue), paused))
        await self._opened.run("pause", self._opened.of(tenant), request)

    async def set_tenant(self, tenant: str, settings: TenantSettings) -> None:
        field = "t" if settings.queue is None else f"q{settings.queue}"
        weight = False if settings.weight is None else settings.weight
        cost = False if settings.weight is None else fairness.cost(settings.weight)
        most = False if settings.max_waiting is None else settings.max_waiting
        budgets = {name: value for name, value in asdict(settings.budgets or Budgets()).items() if value is not None}
        request = encode(("set", tenant, field, cost, weight, most, budgets))
        shard = self._opened.of(tenant)
        # Where a quota begins, the tenant's waiting jobs are counted, some queues at a time.
        while not await self._opened.run("settings", shard, request):
            request = encode(("count", tenant))
        if settings.budgets is not None:
            await self.enforcer.refresh(tenant)

    async def tenant_settings(self, tenant: str) -> Sequence[TenantSettings]:
        found = await self._opened.run("settings", self._opened.of(tenant), encode(("get", tenant)))
        settings: list[TenantSettings] = []
        for at in range(0, len(found), 2):
            _, weight, most, budgets = msgspec.msgpack.decode(found[at + 1])
            queue = None if found[at] == b"t" else found[at][1:].decode()
            settings.append(
                TenantSettings(
                    queue,
                    None if weight is False else float(weight),
                    None if most is False else most,
                    Budgets(**budgets) if budgets else None,
                )
            )
        return sorted(settings, key=lambda setting: setting.queue or "")

    async def usage(self, tenant: str) -> Usage:
        return await self.enforcer.take_usage(tenant, self._usage(tenant))

    async def _usage(self, tenant: str) -> Usage:
        return Usage(*await self._opened.run("usage", self._opened.of(tenant), encode((tenant,))))

    async def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        described = msgspec.json.encode(worker).decode()
        await self._opened.run("workers", 0, encode(("beat", worker.worker_id, described, ttl_ms)))

    async def workers(self, tenant: str | None) -> Sequence[WorkerInfo]:
        return [worker async for page in pages(partial(self.worker_page, tenant)) for worker in page.workers]

    async def worker_page(self, tenant: str | None, cursor: str | None = None, limit: int = PAGE_LIMIT) -> WorkerPage:
        request = encode(("list", name_cursor(cursor, check_id), min(limit, PAGE_LIMIT)))
        following, *found = await self._opened.run("workers", 0, request)
        living: list[WorkerInfo] = []
        for at in range(0, len(found), 3):
            started_at, seen_at, described = found[at : at + 3]
            living.append(replace(_decode_worker(described), started_at=started_at, seen_at=seen_at))
        mine = [worker for worker in living if tenant is None or worker.tenant in (None, tenant)]
        return WorkerPage(mine, following.decode() or None)

    async def reap(self, limit: int, random: float) -> Reaped:
        keys: list[JobKey] = []
        times: list[int] = []
        now = 0
        failures: list[StoreError] = []
        for shard in range(self._opened.count):
            try:
                now, next_at = await self._reap_at(shard, limit, random, keys)
            except StoreError as error:
                failures.append(error)  # It keeps nobody from the other shards.
            else:
                times += [next_at] if next_at >= 0 else []
        if len(failures) == self._opened.count:
            raise failures[0]
        return Reaped(keys, now, min(times, default=None))

    async def _reap_at(self, shard: int, limit: int, random: float, keys: list[JobKey]) -> tuple[int, int]:
        while True:
            most = min(limit - len(keys), BATCH)
            now, next_at, *found = await self._opened.run("reap", shard, encode((most, random)), repeat=False)
            pairs = zip(found[::2], found[1::2], strict=True)
            keys += [JobKey(*names_of(lane.decode()), id_.decode()) for lane, id_ in pairs]
            if len(found) < 2 * most or most == 0:
                return now, next_at

    async def prune(self, limit: int, *, blobs: bool = True) -> Pruned:
        jobs = events = 0
        names: list[str] = []
        more = False
        failures: list[StoreError] = []
        for shard in range(self._opened.count):
            most = min(limit - jobs, BATCH)
            request = encode((most, int(blobs)))
            try:
                forgotten, left, *results = await self._opened.run("prune", shard, request, repeat=False)
                # Names are handed out once, whatever becomes of the log.
                names += [records.to_result(result).blob for result in results]
                trimmed, longer = await trimming.trim(self._opened, shard, self.options.keep_events)
            except StoreError as error:
                failures.append(error)  # It keeps nobody from the other shards, nor loses the names of their blobs.
                continue
            jobs, events, more = jobs + forgotten, events + trimmed, more or bool(left) or longer
        if len(failures) == self._opened.count:
            raise failures[0]
        return Pruned(jobs, events, names, more)

    async def doctor(self) -> Sequence[Finding]:
        shards = self._opened
        keys = [shards.key(n) for n in range(shards.count)]
        layout = f"{shards.count} shard{'s' * (shards.count > 1)} under {shards.prefix!r}"
        return await doctor.findings(self._link, prefix=shards.prefix, shards=keys, scripts=SCRIPTS, layout=layout)

    async def erase(self) -> None:
        """Remove everything under this prefix. Only for places of tests: raises Unsupported without `test_clock`."""
        if self.options.test_clock == "0":
            raise Unsupported("erasing everything (open it with test_clock=1)", "redis")
        for shard in range(self._opened.count):
            cursor = "0"
            while True:
                cursor = (await self._opened.run("erase", shard, encode((cursor,)))).decode()
                if cursor == "0":
                    break

    # The small steps ----------------------------------------------------------------------------------------

    @property
    def _opened(self) -> Shards:
        if self._ears is None:
            raise StoreUnavailable(_CLOSED)
        return self._shards

    async def _with_payloads(self, jobs: Sequence[Job | None], *, strict: bool = True) -> Sequence[Job | None]:
        """Fetch the payloads that stand apart from their records. A job that was forgotten meanwhile is None.

        So is, unless `strict`, one whose payload cannot be fetched now.
        """
        apart = [n for n, job in enumerate(jobs) if job is not None and job.envelope.payload is ELSEWHERE]
        if not apart:
            return jobs
        full = list(jobs)
        lanes: dict[str, list[int]] = {}
        for n in apart:
            job = jobs[n]
            if job is not None:
                shard = self._shards.key(self._shards.of(job.tenant))[:-1]
                lanes.setdefault(f"{shard}p:{lane_of(job.tenant, job.queue)}", []).append(n)
        for key, places in lanes.items():
            for first in range(0, len(places), PAYLOADS_AT_ONCE):
                some = places[first : first + PAYLOADS_AT_ONCE]
                try:
                    await self._add_payloads(key, some, full)
                except StoreError:
                    if strict:
                        raise
                    for n in some:
                        full[n] = None
        return full

    async def _add_payloads(self, key: str, places: Sequence[int], jobs: list[Job | None]) -> None:
        wanted = [(n, job) for n in places if (job := jobs[n]) is not None]
        payloads = await self._link.command(key, "HMGET", key, *(job.id.encode() for _, job in wanted), repeat=True)
        for (n, job), payload in zip(wanted, payloads, strict=True):
            jobs[n] = None if payload is None else records.with_payload(job, payload)


_CLOSED = "the store is not open; use `async with Queue(...)` or await store.open()"
_NOW = encode(("now",))


def _capabilities(shards: int, found: doctor.Durability) -> Capabilities:
    return Capabilities(
        name="redis",
        durable=found.durable,
        survives_power_loss=found.survives_power_loss,
        many_processes=True,
        many_hosts=True,
        transactional_enqueue=False,
        exact_turns=shards == 1,
        exact_quota=True,
        notes={
            "durable": found.note,
            "failover": "Replication is asynchronous: a failover can lose acknowledged changes. WAIT makes that rarer, "
            "not impossible.",
            "exact_turns": "Turns are exact within a shard; between shards each gets its share.",
            "clock": "The server's: if it is set back, leases and delays last longer by that much.",
        },
    )


def _tenant_of(item: Any) -> str:
    return item.key.tenant


def _address(key: JobKey) -> tuple[str, str]:
    return lane_of(key.tenant, key.queue), key.id


def _size_of_new(item: NewJob) -> int:
    return _OVERHEAD + len(item.envelope.payload)


def _size_of_finish(item: Finish) -> int:
    return _OVERHEAD + (len(item.result.data) if item.result is not None else 0)


def _life(seq: int | None) -> int:
    return -1 if seq is None else seq


def _check_under(under: Lease | None, answers: Iterable[Any]) -> None:
    """Raise the refusal of the lease that a call was made under, if there is one."""
    if under is None:
        return
    for answer in answers:
        if isinstance(answer, list) and answer[0] == b"u":
            raise _REFUSALS[answer[1]](under.key.queue, under.key.id)


def _enqueued(key: JobKey, answer: int | list[Any]) -> EnqueueAnswer:
    if isinstance(answer, int):
        return Queued(key.id, STATES[answer])
    kind, *rest = answer
    if kind == b"q":
        own, waiting, limit = rest
        return QuotaExceeded(key.queue if own else None, waiting, limit)
    id_, found = rest
    if kind == b"c":
        return AlreadyCompleted(id_.decode(), records.to_result(found))
    return Duplicate(id_.decode(), None if found < 0 else STATES[cast("int", found)])


def _replayed(key: JobKey, answer: int | list[Any]) -> ReplayAnswer:
    if isinstance(answer, int):
        return Replayed() if answer > 0 else JobNotFound(key.queue, key.id)
    kind, *rest = answer
    if kind == b"q":
        own, waiting, limit = rest
        return QuotaExceeded(key.queue if own else None, waiting, limit)
    if kind == b"k":
        reason = f"job {rest[0].decode()!r} holds its idempotency key by now"
    else:
        reason = f"it is {STATES[rest[0]]}, not failed"
    return NotReplayable(key.queue, key.id, reason)


def _shown(job: Job, now: int) -> Job:
    job.state = lifecycle.shown(job, now)
    return job
