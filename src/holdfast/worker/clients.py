"""The Queue of `current_job().client`: the one of the job's tenant, on the worker's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from holdfast.blocking import for_caller, open_in_background
from holdfast.core.errors import InvalidOption
from holdfast.queue.queue import Queue

if TYPE_CHECKING:
    import asyncio

    from holdfast.blobs import Blobs
    from holdfast.queue.connection import Address
    from holdfast.store import Store


class HandlerQueue(Queue):
    """A Queue that handlers share. Closing it has no effect."""

    async def close(self) -> None:
        """Do nothing: the worker closes it."""


class WorkerClients:
    """The Queues of a worker's tenants. Each is kept while it is used."""

    def __init__(
        self, store: Store, name: str, codec: str, blobs: Blobs | None, home: asyncio.AbstractEventLoop
    ) -> None:
        self._store, self._name, self._codec, self._blobs = store, name, codec, blobs
        self._home = home
        self._queues: WeakValueDictionary[str, Queue] = WeakValueDictionary()

    def of(self, tenant: str) -> Any:
        """The tenant's Queue: async in an event loop, blocking in a thread."""
        queue = self._queues.get(tenant)
        if queue is None:
            # Two threads that make one at the same time use one each: they share no round trips, but both work.
            queue = self._queues[tenant] = self._make(tenant)
        return for_caller(queue, self._home)

    def _make(self, tenant: str) -> Queue:
        return HandlerQueue(store=self._store, tenant=tenant, name=self._name, codec=self._codec, blobs=self._blobs)


class ChildClients:
    """The Queues in a child process. It opens the store by its address at a handler's first use."""

    def __init__(self) -> None:
        self._address: Address | None = None
        self._clients: WorkerClients | None = None

    def at(self, address: Address | None) -> ChildClients:
        """Set the address of the store for the next job."""
        if address != self._address:
            self._address, self._clients = address, None
        return self

    def of(self, tenant: str) -> Any:
        address = self._address
        if address is None:
            reason = "executor='process' cannot reach the worker's store: open its Queue by a URL, not in memory, and"
            raise InvalidOption("client", f"{reason} with a token that is a string; or run the job without a process")
        if self._clients is None:
            queue = Queue(address.url, tenant=tenant, token=address.token, name=address.name, codec=address.codec)
            home = open_in_background(queue)
            self._clients = WorkerClients(queue.store, address.name, address.codec, None, home)
        return self._clients.of(tenant)
