"""What all calls share: a client, a token, and the tenant of the token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.core.errors import InvalidOption, Unsupported
from holdfast.core.job import JobKey
from holdfast.protocol import answers
from holdfast.stores.http.address import HttpAddress
from holdfast.stores.http.bearer import Bearer
from holdfast.stores.http.client import HttpClient, segment

A = TypeVar("A")
B = TypeVar("B")

AT_ONCE = 32
"""The most requests for single jobs in flight."""

encode = msgspec.json.Encoder().encode


class HttpSession:
    """One tenant at one service."""

    def __init__(self, address: HttpAddress, bearer: Bearer, tenant: str = "") -> None:
        self._address = address
        self._bearer = bearer
        self._tenant = tenant
        self._client = HttpClient(address, bearer)
        self._for_some = False
        """Whether the token is limited to some queues."""

    def use_token(self, token: str | Callable[[], str]) -> None:
        self._bearer = self._client.bearer = Bearer(token)

    def bind(self, tenant: str | None) -> str:
        named = self._bearer.tenant()
        if tenant and named and tenant != named:
            raise InvalidOption("tenant", f"the token is for {named!r}; leave out tenant=")
        self._tenant = tenant or named
        if not self._tenant:
            raise InvalidOption("tenant", "the token names it in a claim that is not known here; pass tenant=")
        return self._tenant

    async def _token(self) -> answers.Session:
        return await self._client.call("GET", "/v1/session", answers.Session)

    def _own(self, items: Sequence[A], key: Callable[[A], JobKey]) -> Sequence[A]:
        for item in items:
            self._check(key(item).tenant)
        return items

    def _check(self, tenant: str | None) -> None:
        if tenant != self._tenant:
            what = "access to all tenants" if tenant is None else "access to another tenant than the token's"
            raise Unsupported(f"{what}; use a token for each tenant, or the store itself", "http")


async def at_once(items: Sequence[A], act: Callable[[A], Awaitable[B]]) -> list[B]:
    """Send one request per item, up to `AT_ONCE` concurrently. Returns the answers in order."""
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
