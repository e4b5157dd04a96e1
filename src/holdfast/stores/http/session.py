"""What every call has in common: a link, a token, and the one tenant that it is of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.core.errors import InvalidOption, Unsupported
from holdfast.core.job import (
    JobKey,
)
from holdfast.protocol import answers
from holdfast.stores.http.address import Address
from holdfast.stores.http.bearer import Bearer
from holdfast.stores.http.client import Link, segment

A = TypeVar("A")
B = TypeVar("B")

AT_ONCE = 32
"""So many requests for single jobs are under way at the same time."""

encode = msgspec.json.Encoder().encode


class Session:
    """One tenant's way to a service."""

    def __init__(self, address: Address, bearer: Bearer, tenant: str = "") -> None:
        self._address = address
        self._bearer = bearer
        self._tenant = tenant
        self._link = Link(address, bearer)
        self._for_some = False
        """Whether the token is for some queues only."""

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

    async def _token(self) -> answers.Session:
        return await self._link.call("GET", "/v1/session", answers.Session)

    def _own(self, items: Sequence[A], key: Callable[[A], JobKey]) -> Sequence[A]:
        for item in items:
            self._check(key(item).tenant)
        return items

    def _check(self, tenant: str | None) -> None:
        if tenant != self._tenant:
            whose = "all tenants at once" if tenant is None else "another tenant than the token's"
            raise Unsupported(f"{whose}; use a token for each, or the store itself", "http")


async def at_once(items: Sequence[A], act: Callable[[A], Awaitable[B]]) -> list[B]:
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


def queue_path(queue: str) -> str:
    """The path of a queue."""
    return f"/v1/queues/{segment(queue)}"


def job_path(key: JobKey) -> str:
    """The path of a job."""
    return f"{queue_path(key.queue)}/jobs/{segment(key.id)}"
