"""Batches: answered item by item, in order; one bad item spoils nothing else. [ENQ-4]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from holdfast.core import answers
from holdfast.core.errors import HoldfastError
from holdfast.core.job import JobKey
from holdfast.core.names import check_id
from holdfast.service.call import Call, Reply
from holdfast.service.errors import info

I = TypeVar("I")  # noqa: E741 - an item
X = TypeVar("X")
A = TypeVar("A")

STEP, ITEM_WORK = 100, 150
"""Items that are made in one turn of the event loop, and how much work one is (see `turns`)."""


async def each(
    items: Sequence[I | HoldfastError],
    make: Callable[[I], Awaitable[X]],
    send: Callable[[Sequence[X]], Awaitable[Sequence[A]]],
    show: Callable[[X, A], Awaitable[Any]],
    call: Call[Any, Any],
) -> answers.Items[Any]:
    """Make what a store takes of each item, send what is good in one batch, and show each answer in its place."""
    made: list[X | HoldfastError] = []
    for number, item in enumerate(items):
        if number % STEP == 0:
            await call.hub.turns.take(ITEM_WORK * min(STEP, len(items) - number), call.tenant)
        made.append(await _made(item, make))
    good = [one for one in made if not isinstance(one, HoldfastError)]
    replies = iter(await send(good) if good else ())
    shown: list[Any] = []
    for one in made:
        if isinstance(one, HoldfastError):
            shown.append(refused(one))
            continue
        answer = next(replies)
        shown.append(refused(answer) if isinstance(answer, HoldfastError) else await show(one, answer))
    return answers.Items(items=shown)


async def each_of_queue(
    call: Call[list[Any], Any],
    make: Callable[[JobKey, Any], X],
    send: Callable[[Sequence[X]], Awaitable[Sequence[A]]],
    answer: Callable[..., Any],
    tenant: str | UnsetType = UNSET,
) -> Reply:
    """The same for items that name jobs of the queue in the path, each answered by a status alone."""
    queue = call.queue

    async def show(_: X, status: A) -> Any:
        return answer(status=status)

    async def made(item: Any) -> X:
        return make(JobKey(call.tenant, queue, check_id(item.id)), item)

    items = await each(call.body, made, send, show, call)
    items.tenant = tenant
    return Reply(items)


def refused(error: HoldfastError) -> answers.Refused:
    """The answer for an item that was not taken."""
    return answers.Refused(error=info(error))


async def _made(item: I | HoldfastError, make: Callable[[I], Awaitable[X]]) -> X | HoldfastError:
    if isinstance(item, HoldfastError):
        return item
    try:
        return await make(item)
    except HoldfastError as error:
        return error
