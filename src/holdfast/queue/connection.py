"""A store bound to one tenant: opening, closing, and round trips that concurrent calls share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct

from holdfast.blobs import Blobs
from holdfast.budgets import ceiling_ms
from holdfast.core import names
from holdfast.core.errors import InvalidOption, StoreError, StoreUnavailable
from holdfast.core.job import Cancel, CancelStatus, Job, JobKey, NewJob
from holdfast.extensions import SingleTenant
from holdfast.jobs import codec as codecs
from holdfast.jobs.options import check_own_queue, check_queue
from holdfast.opening import make_store
from holdfast.queue.coalesce import Coalescer
from holdfast.queue.waiting import Waits
from holdfast.store import EnqueueAnswer, Hint, Listener, ReplayAnswer, Store
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


class Connection:
    """What every part of a Queue works with, and the requests of one tenant at a service.

    All its calls name one tenant. [TENANT-1]
    """

    def __init__(
        self,
        url: str | None,
        store: Store | None,
        *,
        tenant: str | None,
        token: str | Callable[[], str] | None = None,
        name: str = "default",
        codec: str = "json",
        blobs: str | Blobs | None,
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
        self.store = store if store is not None else self._make_store()
        self.ceiling_ms = ceiling_ms(self.store)
        self.tenant = _tenant(self.store, tenant)
        self.name = check_own_queue(name)
        self.codec = codecs.get(codec).name
        if blobs is not None and isinstance(self.store, SingleTenant):
            raise InvalidOption("blobs", "the service keeps large results itself: `holdfast serve --blobs`")
        self.blobs = Blobs.open(blobs) if isinstance(blobs, str) else blobs
        # A store that is passed in counts as open (`open` makes sure of it), and its owner closes it.
        self._is_open = url is None
        self._was_closed = False
        self.enqueues = Coalescer(self.enqueue_batch)
        self.cancels: Coalescer[Cancel, CancelStatus] = Coalescer(
            lambda items: self.counted("cancel", self.live.cancel(items))
        )
        self.gets: Coalescer[JobKey, Job | None] = Coalescer(lambda keys: self.counted("get", self.live.get(keys)))
        self.replays: Coalescer[JobKey, ReplayAnswer] = Coalescer(
            lambda keys: self.counted("replay", self.live.replay(keys))
        )
        self.waits = Waits(self.tenant, self._subscribe, self.gets)

    def address(self) -> Address | None:
        """How another process opens the same store. None if it cannot.

        It cannot open a store in memory, or one passed in as an object, or call this process's function for tokens.
        """
        url, token = self._url, self._token
        if url is None or not self.store.capabilities.many_processes or callable(token):
            return None
        return Address(url, token, self.name, self.codec)

    async def open(self) -> None:
        """Connect to the store. It can be called more than once. A closed connection can be opened again."""
        if self._url is None:
            await self.store.open()
        if not self._is_open:
            if self._url is not None:
                if self._was_closed:
                    self.store = self._make_store()
                    _tenant(self.store, self.tenant)
                await self.store.open()
            self._is_open, self._was_closed = True, False

    async def close(self) -> None:
        """Finish calls in flight, end every wait, and close the store unless it was passed in.

        It can be called more than once.
        """
        if not self._is_open:
            return
        self.waits.close()
        for calls in (self.enqueues, self.cancels, self.gets, self.replays):
            await calls.settle()
        self._is_open, self._was_closed = False, True
        if self._url is not None:
            await self.store.close()

    def check_open(self) -> None:
        """Raise InvalidOption unless the connection is open."""
        if not self._is_open:
            raise InvalidOption("queue", "is not open; use `async with Queue(...)` or `await queue.open()`")

    @property
    def live(self) -> Store:
        """The open store. Raises InvalidOption if it is not open."""
        self.check_open()
        return self.store

    def key(self, id: str, queue: str | None) -> JobKey:
        """The key of a job of this tenant."""
        return JobKey(self.tenant, self.queue(queue), names.check_id(id))

    def queue(self, queue: str | None) -> str:
        """The queue of a call. None: the default one."""
        return self.name if queue is None else check_queue(queue)

    async def counted(self, op: str, call: Awaitable[T]) -> T:
        """Await one call of the store. If it fails, the metrics count it."""
        try:
            return await call
        except StoreError:
            if metrics.current is not None:
                metrics.current.store_error(op)
            raise

    async def enqueue_batch(self, items: Sequence[NewJob], connection: Any = None) -> list[EnqueueAnswer]:
        """Enqueue in one round trip, in the caller's own transaction if `connection` is given. [ENQ-7]"""
        if connection is not None:
            return await self.counted("enqueue", self.live.enqueue(items, connection=connection))
        try:
            return await self.counted("enqueue", self.live.enqueue(items))
        except StoreUnavailable as error:
            # Repeat it once, immediately. If only the reply was lost, the request ids make the answer the same. [ENQ-8]
            _log.warning("enqueue repeated", items=len(items), error=error)
            return await self.counted("enqueue", self.live.enqueue(items))

    def _subscribe(self, listener: Listener, hints: frozenset[Hint]) -> Callable[[], None]:
        return self.live.listen(listener, hints)

    def _make_store(self) -> Store:
        store = make_store(self._url or "")
        if self._token is not None:
            if not isinstance(store, SingleTenant):
                raise InvalidOption("token", "is for a service, by https://; a store takes tenant=")
            store.use_token(self._token)
        return store


def _tenant(store: Store, tenant: str | None) -> str:
    if isinstance(store, SingleTenant):
        return names.check_tenant(store.bind(tenant))
    if tenant is None:
        raise InvalidOption("tenant", "whose jobs? Give tenant=")
    return names.check_tenant(tenant)
