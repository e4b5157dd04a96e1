"""A store bound to one tenant: opening, closing, shared round trips, and waiting. What a Queue stands on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from msgspec import Struct

from holdfast.blobs import BlobRef, Blobs, check_owner
from holdfast.budgets import ceiling_ms
from holdfast.core import names
from holdfast.core.errors import (
    InvalidOption,
    JobCanceled,
    JobFailed,
    JobNotFound,
    ResultExpired,
    StoreError,
    StoreUnavailable,
)
from holdfast.core.job import Cancel, CancelStatus, Job, JobKey, JobState, NewJob, Result
from holdfast.extensions import SingleTenant
from holdfast.flows.flow import end_steps
from holdfast.jobs import codec as codecs
from holdfast.jobs.options import Seconds, check_own_queue, check_queue, timeout_s
from holdfast.opening import make_store
from holdfast.queue.coalesce import Coalescer
from holdfast.queue.records import Cancellation, JobRecord, decode_result
from holdfast.queue.waiting import Waits, Watch
from holdfast.store import Capabilities, EnqueueAnswer, Hint, Listener, ReplayAnswer, Store
from holdfast.telemetry import metrics
from holdfast.telemetry.logging import get_logger

T = TypeVar("T")

_log = get_logger("holdfast.queue.queue")


class Address(Struct, frozen=True):
    """How another process opens the same store with the same settings."""

    url: str
    token: str | None
    name: str
    codec: str


class Binding:
    """One tenant's view of a store. All it does names that tenant. [TENANT-1]"""

    tenant: str
    name: str
    codec: str
    blobs: Blobs | None

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str | None = None,
        token: str | Callable[[], str] | None = None,
        name: str = "default",
        store: Store | None = None,
        codec: str = "json",
        blobs: str | Blobs | None = None,
        events: Literal["transitions", "all"] | None = None,
    ) -> None:
        if (url is None) == (store is None):
            raise InvalidOption("store", "give a store's URL, or an open store as store=, and not both")
        if events is not None:
            if url is None:
                raise InvalidOption("events", "is an option of the store; give it where the store is opened")
            url = f"{url}{'&' if '?' in url else '?'}events={events}"
        if token is not None and url is None:
            raise InvalidOption("token", "is for a service; give its URL")
        self._url, self._token = url, token
        self._store = store if store is not None else self._make()
        self._ceiling_ms = ceiling_ms(self._store)
        self.tenant = _tenant(self._store, tenant)
        self.name = check_own_queue(name)
        self.codec = codecs.get(codec).name
        if blobs is not None and isinstance(self._store, SingleTenant):
            raise InvalidOption("blobs", "the service keeps large results itself: `holdfast serve --blobs`")
        self.blobs = Blobs.open(blobs) if isinstance(blobs, str) else blobs
        # A store that was passed in is taken to be open (`open` makes sure), and stays its owner's to close.
        self._is_open = url is None
        self._was_closed = False
        self._enqueues = Coalescer(self._enqueue_batch)
        self._cancels = Coalescer(self._cancel_batch)
        self._gets = Coalescer(self._get_batch)
        self._replays = Coalescer(self._replay_batch)
        self._waits = Waits(self.tenant, self._subscribe, self._gets)

    @property
    def store(self) -> Store:
        """The store itself, for whoever needs all of it."""
        return self._store

    @property
    def capabilities(self) -> Capabilities:
        """Where stores differ, and what holds for this one."""
        return self._store.capabilities

    def address(self) -> Address | None:
        """How another process opens the same; None for one in memory, given as an object, or with a token's maker."""
        url, token = self._url, self._token
        if url is None or not self.capabilities.many_processes or callable(token):
            return None
        return Address(url, token, self.name, self.codec)

    async def open(self) -> Self:
        """Connect to the store. Twice is harmless; a closed Queue can be opened again."""
        if self._url is None:
            await self._store.open()
        if not self._is_open:
            if self._url is not None:
                if self._was_closed:
                    self._store = self._make()
                    _tenant(self._store, self.tenant)
                await self._store.open()
            self._is_open, self._was_closed = True, False
        return self

    async def close(self) -> None:
        """Finish what is under way, end every wait, and let go of the store. Twice is harmless.

        A store that was given as `store=` is left open.
        """
        if not self._is_open:
            return
        self._waits.close()
        for calls in (self._enqueues, self._cancels, self._gets, self._replays):
            await calls.settle()
        self._is_open, self._was_closed = False, True
        if self._url is not None:
            await self._store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def get(self, id: str, *, queue: str | None = None) -> JobRecord | None:
        """The job as it is now, or None. Another tenant's answers exactly like none. [TENANT-2]"""
        self._check_open()
        job = await self._gets(self._key(id, queue))
        return None if job is None else JobRecord(job, await self._fetch(job.result, job.key))

    async def result(self, id: str, *, queue: str | None = None, timeout: Seconds | None = None) -> Any:
        """Wait for a job and return its result. [RESULT-2]

        Raises JobNotFound, JobFailed, JobCanceled, WaitTimeout (the job goes on), or ResultExpired where the
        result was forgotten during the wait.
        """
        return await self.wait_for(self._key(id, queue), timeout, known=False)

    async def results_of(self, keys: Mapping[str, JobKey]) -> dict[str, Any]:
        """The results of completed jobs, by the names that they are given here, in one read. Raises ResultExpired."""
        self._check_open()
        found: dict[str, Any] = {}
        for (name, key), job in zip(
            keys.items(), await self._live.get(list(keys.values())) if keys else (), strict=True
        ):
            if job is None or job.state is not JobState.COMPLETED:
                raise ResultExpired(key.queue, key.id)
            data = await self._fetch(job.result, key)
            found[name] = None if job.result is None else decode_result(job.result, data, Any)
        return found

    async def cancel(self, id: str, *, queue: str | None = None, only_waiting: bool = False) -> Cancellation:
        """Cancel a job; a running one too, unless `only_waiting`. A flow takes its steps along. [CANCEL-1]"""
        self._check_open()
        key = self._key(id, queue)
        is_flow = key.queue == names.FLOWS and not isinstance(self._store, SingleTenant)
        # Before: where canceled jobs are not kept, nobody knows its steps afterwards.
        flow = await self._gets(key) if is_flow else None
        status = await self._cancels(Cancel(key, only_waiting))
        if is_flow and status == "canceled":
            flow = await self._gets(key) or flow
            if flow is not None:
                await end_steps(self._live, flow, JobState.CANCELED)
        return Cancellation(status)

    async def put_blob(self, data: bytes) -> BlobRef:
        """Keep a large payload in the blob store; the answer goes into a message in its place.

        A handler reads it by `await current_job().read_blob(ref)`. It stays until somebody deletes it: set a
        lifecycle rule on `<tenant>/payloads/` where the blob store has such rules.
        """
        if self.blobs is None:
            raise InvalidOption("blobs", "this queue has no blob store; open it with blobs=URL")
        return await self.blobs.add(self.tenant, data)

    async def read_blob(self, ref: BlobRef) -> bytes:
        """What a reference of this tenant stands for. Raises InvalidPayload if it is gone, or another's."""
        if self.blobs is None:
            raise InvalidOption("blobs", "this queue has no blob store; open it with blobs=URL")
        return await self.blobs.read(check_owner(ref, self.tenant))

    async def wait_for(self, key: JobKey, timeout: Seconds | None, *, known: bool, result_type: Any = Any) -> Any:
        """The result of a job, once it is there. `known` says that the caller knows the job existed.

        Subscribes first and then looks. [RESULT-2] Raises JobFailed, JobCanceled, WaitTimeout, ResultExpired,
        or JobNotFound where nothing says that it ever was.
        """
        self._check_open()
        with self._waits.watch(key) as watch:
            watch.seen = watch.seen or known
            watch.look()
            return await self._outcome(watch, timeout_s(timeout), result_type)

    async def _outcome(self, watch: Watch, timeout: float | None, result_type: Any) -> Any:
        key = watch.key
        job = await watch.wait(timeout)
        if job is None:
            raise ResultExpired(key.queue, key.id) if watch.seen else JobNotFound(key.queue, key.id)
        if job.state is JobState.CANCELED:
            raise JobCanceled(key.queue, key.id)
        if job.state is JobState.FAILED:
            last = job.errors[-1] if job.errors else None
            kind, text = (last.type, last.message) if last else ("", "")
            raise JobFailed(key.queue, key.id, job.reason, kind, text)
        if job.result is None:
            return None
        return decode_result(job.result, await self._fetch(job.result, key), result_type)

    async def _fetch(self, result: Result | None, key: JobKey) -> bytes | None:
        """The bytes of a result that is kept in the blob store, if it is, and if we have one."""
        if result is None or not result.blob or self.blobs is None:
            return None
        data = await self.blobs.get(result.blob)
        if data is None:
            raise ResultExpired(key.queue, key.id)
        return data

    def _key(self, id: str, queue: str | None) -> JobKey:
        return JobKey(self.tenant, self._queue(queue), names.check_id(id))

    def _queue(self, queue: str | None) -> str:
        return self.name if queue is None else check_queue(queue)

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidOption("queue", "is not open; use `async with Queue(...)` or `await queue.open()`")

    def __repr__(self) -> str:
        # Without the URL: it may hold a password.
        return f"<{type(self).__name__} {self.name!r} of tenant {self.tenant!r} on {self.capabilities.name}>"

    def _make(self) -> Store:
        store = make_store(self._url or "")
        if self._token is not None:
            if not isinstance(store, SingleTenant):
                raise InvalidOption("token", "is for a service, by https://; a store takes tenant=")
            store.use_token(self._token)
        return store

    # Round trips ------------------------------------------------------------------------------------------

    @property
    def _live(self) -> Store:
        self._check_open()
        return self._store

    async def _counted(self, op: str, call: Awaitable[T]) -> T:
        """The answer of one call of the store; one that raises is counted."""
        try:
            return await call
        except StoreError:
            if metrics.current is not None:
                metrics.current.store_error(op)
            raise

    async def _enqueue_batch(self, items: Sequence[NewJob], connection: Any = None) -> list[EnqueueAnswer]:
        if connection is not None:
            return await self._counted("enqueue", self._live.enqueue(items, connection=connection))
        try:
            return await self._counted("enqueue", self._live.enqueue(items))
        except StoreUnavailable as error:
            # Once more, at once: if only the reply was lost, the request ids make it answer the same. [ENQ-8]
            _log.warning("enqueue repeated", items=len(items), error=error)
            return await self._counted("enqueue", self._live.enqueue(items))

    async def _get_batch(self, keys: Sequence[JobKey]) -> list[Job | None]:
        return await self._counted("get", self._live.get(keys))

    async def _cancel_batch(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        return await self._counted("cancel", self._live.cancel(items))

    async def _replay_batch(self, keys: Sequence[JobKey]) -> list[ReplayAnswer]:
        return await self._counted("replay", self._live.replay(keys))

    def _subscribe(self, listener: Listener, hints: frozenset[Hint]) -> Callable[[], None]:
        return self._live.listen(listener, hints)


def _tenant(store: Store, tenant: str | None) -> str:
    if isinstance(store, SingleTenant):
        return names.check_tenant(store.bind(tenant))
    if tenant is None:
        raise InvalidOption("tenant", "whose jobs? Give tenant=")
    return names.check_tenant(tenant)
