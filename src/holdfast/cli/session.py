"""How a command uses a store: open it, do one thing, close it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.options import blobs_url, store_url, tenant_name
from holdfast.cli.output import note
from holdfast.core.errors import InvalidOption, JobNotFound
from holdfast.opening import existing, shown_url

if TYPE_CHECKING:
    from holdfast.core.explain import Explanation
    from holdfast.queue.queue import Queue
    from holdfast.queue.records import JobPage, JobRecord
    from holdfast.store import Store

__all__ = [
    "all_queues",
    "existing",
    "find_explanation",
    "find_job",
    "is_new",
    "job_not_found",
    "pages",
    "queues_of",
    "shown_url",
    "with_queue",
    "with_store",
]

T = TypeVar("T")
F = TypeVar("F", "JobRecord", "Explanation")
N = TypeVar("N")

PAGE = 1000


def with_queue(
    store: str | None,
    tenant: str | None,
    act: Callable[[Queue], Awaitable[T]],
    blobs: str | None = None,
    *,
    create: bool = False,
) -> T:
    """Call `act` with the Queue of one tenant. Raises StoreUnavailable if there is no store, unless `create`."""
    import asyncio

    from holdfast.queue.queue import Queue

    async def ask() -> T:
        url = store_url(store) if create else existing(store_url(store))
        async with Queue(url, tenant=tenant_name(tenant), blobs=blobs_url(blobs)) as queue:
            if is_new(queue.store):
                note(f"Created a new store: {shown_url(url)}")
            return await act(queue)

    return asyncio.run(ask())


def is_new(store: Store) -> bool:
    """Whether opening this store created it."""
    from holdfast.extensions import SelfCreating

    return isinstance(store, SelfCreating) and store.created


async def all_queues(bound: Queue) -> list[str]:
    """The tenant's queues by name, without the reserved ones."""
    from holdfast.core.names import RESERVED

    return [stats.queue for stats in await bound.queues() if not stats.queue.startswith(RESERVED)]


async def queues_of(bound: Queue, queue: str | None) -> list[str]:
    """Only the given queue, or all queues of the tenant."""
    if queue is not None:
        return [queue]
    # Use the default queue for a tenant without queues: reading it checks the other options.
    return await all_queues(bound) or [bound.name]


async def find_job(bound: Queue, id: str, queue: str | None) -> JobRecord:
    """A job of the given queue, or of the only queue of the tenant that has a job of that id.

    Raises JobNotFound, and InvalidOption if several queues have such a job.
    """

    async def look(name: str) -> JobRecord | None:
        return await bound.get(id, queue=name)

    return await _find(bound, id, queue, look)


async def find_explanation(bound: Queue, id: str, queue: str | None) -> Explanation:
    """Why a job is where it is. The job is found as by `find_job`; flows and their steps are found too."""
    from holdfast.core.names import FLOWS

    async def look(name: str) -> Explanation | None:
        found = await bound.explain(id, queue=name)
        return None if found.state is None else found

    return await _find(bound, id, queue, look, FLOWS)


async def _find(bound: Queue, id: str, queue: str | None, look: Callable[[str], Awaitable[F | None]], *more: str) -> F:
    import asyncio

    if queue is not None:
        record = await look(queue)
        if record is None:
            raise await job_not_found(bound, id, queue)
        return record
    records = await asyncio.gather(*map(look, [*await queues_of(bound, None), *more]))
    found = [record for record in records if record is not None]
    if len(found) > 1:
        names = ", ".join(record.queue for record in found)
        raise InvalidOption("queue", f"several queues have a job {id!r}: {names}; name one with --queue")
    if not found:
        error = JobNotFound(bound.name, id)
        error.add_note(f"Nor in any other queue of {bound.tenant}.")
        raise error
    return found[0]


async def job_not_found(bound: Queue, id: str, queue: str) -> JobNotFound:
    """The error for a job that the given queue does not have. It lists the tenant's other queues."""
    error = JobNotFound(queue, id)
    others = [name for name in await all_queues(bound) if name != queue]
    if others:
        error.add_note(f"Other queues of {bound.tenant}: {', '.join(others)}. Name one with --queue.")
    return error


async def pages(
    bound: Queue,
    queue: str | None,
    cursor: str | None,
    limit: int | None,
    page: Callable[[str, str | None, int], Awaitable[JobPage]],
) -> tuple[list[JobRecord], str | None]:
    """Up to `limit` jobs of one queue, or of all queues one after another; and the cursor to continue.

    A cursor over all queues begins with the name of the queue where it continues.
    """
    first, comma, rest = (cursor or "").partition(",") if queue is None else (queue, ",", cursor or "")
    if cursor and not comma:
        raise InvalidOption("cursor", f"{cursor!r} belongs to a list of one queue; name it with --queue")
    found: list[JobRecord] = []
    for name in await queues_of(bound, queue):
        if name < first:
            continue
        at = rest if name == first else ""
        more, following = await pages_of(name, at or None, None if limit is None else limit - len(found), page)
        found += more
        if following is not None:
            return found, following if queue is not None else f"{name},{following}"
    return found, None


async def pages_of(
    name: N, cursor: str | None, limit: int | None, page: Callable[[N, str | None, int], Awaitable[JobPage]]
) -> tuple[list[JobRecord], str | None]:
    """Up to `limit` jobs of one list, and the cursor to continue."""
    found: list[JobRecord] = []
    at = cursor or ""
    while limit is None or len(found) < limit:
        got = await page(name, at or None, PAGE if limit is None else min(PAGE, limit - len(found)))
        found += got
        # A short page is not always the last one: filters are applied while paging.
        if not got.cursor:
            return found, None
        at = got.cursor
    return found, at


def with_store(store: str | None, act: Callable[[Store], Awaitable[T]]) -> T:
    """Call `act` with the store itself, without a tenant. For operators."""
    import asyncio

    from holdfast.opening import open_store

    async def ask() -> T:
        opened = await open_store(existing(store_url(store)))
        try:
            return await act(opened)
        finally:
            await opened.close()

    return asyncio.run(ask())
