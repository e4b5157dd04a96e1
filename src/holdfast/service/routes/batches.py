"""Batches: answered item by item, in order. A refused item affects no other. [ENQ-4]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import CoroutineType
from typing import Any, TypeVar, cast

from msgspec import UNSET, UnsetType

from holdfast.core.errors import HoldfastError
from holdfast.core.job import JobKey
from holdfast.core.names import check_id
from holdfast.protocol import answers, problems
from holdfast.service.call import Reply, ServiceCall
from holdfast.service.errors import info

I = TypeVar("I")  # noqa: E741 - an item
X = TypeVar("X")
A = TypeVar("A")

STEP, ITEM_WORK = 100, 150
"""The items converted in one turn of the event loop, and the work of one (see `turns`)."""


async def each(
    items: Sequence[I | HoldfastError],
    make: Callable[[I], X | Awaitable[X]],
    send: Callable[[Sequence[X]], Awaitable[Sequence[A]]],
    show: Callable[[X, A], Any | Awaitable[Any]],
    call: ServiceCall[Any, Any],
) -> answers.Items[Any]:
    """Convert each item by `make`, send the valid ones as one batch, and convert the answers by `show`, in order.

    `make` and `show` return a coroutine only if they must wait: one for each item takes 5% of the request's time.
    """
    made: list[X | HoldfastError] = []
    turns = call.context.turns
    for some in pieces(items):
        await turns.take(ITEM_WORK * len(some), call.tenant)
        for item in some:
            one: Any = item
            if not isinstance(item, HoldfastError):
                try:
                    one = make(item)
                    if isinstance(one, CoroutineType):
                        one = cast("Any", await one)
                except HoldfastError as error:
                    one = error
            made.append(one)
    good = [one for one in made if not isinstance(one, HoldfastError)]
    replies = iter(await send(good) if good else ())
    shown: list[Any] = []
    for some in pieces(made):
        await turns.take(ITEM_WORK * len(some), call.tenant)
        for one in some:
            answer = one if isinstance(one, HoldfastError) else next(replies)
            if isinstance(answer, HoldfastError):
                shown.append(refused(answer))
                continue
            view: Any = show(one, answer)  # pyright: ignore[reportArgumentType]
            shown.append(await view if isinstance(view, CoroutineType) else view)
    return answers.Items(items=shown)


def pieces(items: Sequence[I]) -> Iterator[Sequence[I]]:
    """Items for one turn of the event loop each."""
    return (items[start : start + STEP] for start in range(0, len(items), STEP))


async def each_of_queue(
    call: ServiceCall[list[Any], Any],
    make: Callable[[JobKey, Any], X],
    send: Callable[[Sequence[X]], Awaitable[Sequence[A]]],
    answer: Callable[..., Any],
    tenant: str | UnsetType = UNSET,
) -> Reply:
    """The same for items that name jobs of the queue in the path. Each is answered with a status."""
    queue = call.queue

    def show(_: X, status: A) -> Any:
        return answer(status=status)

    def made(item: Any) -> X:
        return make(JobKey(call.tenant, queue, check_id(item.id)), item)

    items = await each(call.body, made, send, show, call)
    items.tenant = tenant
    return Reply(items)


def refused(error: HoldfastError) -> problems.Refused:
    """The answer for a refused item."""
    return problems.Refused(error=info(error))
