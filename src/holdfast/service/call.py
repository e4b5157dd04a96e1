"""One request: its caller, its body and query, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from holdfast.core.names import SCHEDULES, as_operator, check_id, check_tenant
from holdfast.jobs.options import check_own_queue, check_queue
from holdfast.protocol import requests
from holdfast.schedules.ticks import check_name
from holdfast.service import bodies
from holdfast.service.errors import invalid, problem
from holdfast.service.shares import Hold
from holdfast.service.tokens import ADMIN, Caller

if TYPE_CHECKING:
    from holdfast.queue.connection import Connection
    from holdfast.service.context import ServiceContext

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

B = TypeVar("B")
Q = TypeVar("Q")

JSON, PROBLEM, STREAM = b"application/json", b"application/problem+json", b"text/event-stream"
ANONYMOUS = Caller("", frozenset(), None, "", 0.0, b"")
"""The caller of a route that needs no token."""
MAX_PARAMETERS = 20
SENT_AT_ONCE = 256 * 1024
"""Bytes of an answer that are sent in one turn of the event loop."""

_encode = msgspec.json.Encoder().encode


class Reply(Struct):
    """An answer: a status, and a value to encode as JSON, or bytes."""

    value: Any
    status: int = 200
    kind: bytes = JSON


class Stream(Struct):
    """An answer in parts: server-sent events."""

    parts: AsyncGenerator[bytes]


class ServiceCall(Generic[B, Q]):
    """One request to one route, with a body `B` and a query `Q`."""

    def __init__(
        self, context: ServiceContext, scope: Scope, caller: Caller, body: B, query: Q, holds: list[Hold]
    ) -> None:
        self.context = context
        self.caller = caller
        self.body = body
        self.query = query
        self.hold = holds[-1]
        """The memory that its answer uses."""
        self._scope = scope
        self._holds = holds

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    @property
    def by(self) -> str:
        """Who acts, for the events of the jobs."""
        return as_operator(self.caller.name)

    @property
    def connection(self) -> Connection:
        """What a Queue of this tenant works with. The tenant's requests share it."""
        return self.context.connection(self.caller.tenant)

    @property
    def queue(self) -> str:
        """The queue that the path names, if the caller may use it. Raises InvalidName or a refusal.

        Holdfast's own queues can be read. Only the routes of schedules and flows change them.
        """
        return self.usable(self._segment("queue"))

    def usable(self, name: str) -> str:
        """A queue that the request names, if the caller may use it. Raises InvalidName or a refusal."""
        check = check_queue if self._scope["method"] == "GET" else check_own_queue
        queue = check(name)
        self.caller.need_queue(queue)
        if queue == SCHEDULES:
            self.caller.need(ADMIN)  # As on the routes of schedules.
        return queue

    @property
    def id(self) -> str:
        """The id that the path names. Raises InvalidName."""
        return check_id(self._segment("id"))

    @property
    def named_tenant(self) -> str:
        """The tenant that the path names: only in routes for operators. Raises InvalidName. [TENANT-1]"""
        return check_tenant(self._segment("tenant"))

    @property
    def name(self) -> str:
        """The schedule that the path names. Raises InvalidName."""
        return check_name(self._segment("name"))

    def header(self, name: bytes) -> str | None:
        """A header that occurs exactly once; else None."""
        found = [value for key, value in self._scope["headers"] if key == name]
        return found[0].decode("latin-1") if len(found) == 1 else None

    @property
    def trace(self) -> dict[str, str] | None:
        """The caller's trace context. Jobs carry it to their workers."""
        return self._scope.get("holdfast.trace")

    def wait(self, *, stream: bool = False) -> None:
        """Count this request as waiting, or as a stream, in place of its connection. Raises a refusal."""
        hold = (self.context.streams if stream else self.context.waits).hold(self.tenant)
        hold.take(1)
        self._holds.append(hold)
        self._scope["holdfast.belong"]("")

    @contextmanager
    def leaving(self) -> Generator[asyncio.Future[None]]:
        """A future that is done when the client disconnects or the service stops."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def leave(_: object = None) -> None:
            if not gone.done():
                gone.set_result(None)

        lost: set[Callable[[], None]] = self._scope["holdfast.lost"]
        lost.add(leave)
        self.context.stopping.add_done_callback(leave)
        try:
            yield gone
        finally:
            lost.discard(leave)
            self.context.stopping.remove_done_callback(leave)

    @property
    def client_left(self) -> bool:
        """Whether the client has disconnected."""
        return self._scope["holdfast.left"]()

    def _segment(self, name: str) -> str:
        # The raw path is routed, so a %2F belongs to its segment.
        text: str = self._scope["path_params"][name]
        try:
            return unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise invalid(f"the {name} in the path is not UTF-8") from None


Handler = Callable[[ServiceCall[Any, Any]], Awaitable[Reply | Stream]]


class Route(Struct, frozen=True, kw_only=True):
    """One entry in the table of routes."""

    method: str
    path: str
    handler: Handler
    summary: str
    scope: str | None
    """The scope that the token needs; "": any token; None: no token."""
    for_operators: bool = False
    """Whether an operator's token will do too, whatever its other scopes."""
    body: type[Any] | None = None
    batch: str = ""
    """The name of the list in the body of a batch. Its items are answered one by one."""
    item: type[Any] | None = None
    query: type[Any] = requests.NoQuery
    answers: dict[int, Any] = {}
    """The types of successful answers, by status; None: not JSON."""
    action: str = ""
    """Its name in the audit trail; "" if it is not an operator's action."""
    is_never_refused: bool = False
    """Whether the rates of its tenant and token only count it: a request that ends or keeps a lease. [TENANT-5]"""
    refuses: tuple[str, ...] = ()
    """The codes of its problems, in addition to those of every route."""


def parse_query(text: bytes, type: type[Q]) -> Q:
    """Parse the query of a request. Raises a refusal."""
    if not text:
        return bodies.convert_query([], type)
    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )  # fmt: skip
    except ValueError:
        raise invalid("the query is not name=value&... in UTF-8") from None
    return bodies.convert_query(pairs, type)


def encoded(reply: Reply) -> Reply:
    """The answer with its value as bytes."""
    return reply if isinstance(reply.value, bytes) else Reply(_encode(reply.value), reply.status, reply.kind)


async def send_reply(send: Send, reply: Reply) -> None:
    """Send an answer."""
    reply = encoded(reply)
    await _send_start(send, reply.status, reply.kind, reply.value)
    body = reply.value
    last = max(0, len(body) - 1) // SENT_AT_ONCE * SENT_AT_ONCE
    for start in range(0, last, SENT_AT_ONCE):
        await send({"type": "http.response.body", "body": body[start : start + SENT_AT_ONCE], "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": body[last:]})


async def send_problem(
    send: Send, error: BaseException, *, close: bool = False, then: Callable[[], Awaitable[Any]] | None = None
) -> None:
    """Send an error as a problem. `then` runs before the answer ends."""
    status, body, headers = problem(error)
    if close:
        headers["connection"] = "close"
    await _send_start(send, status, PROBLEM, body, headers)
    await send({"type": "http.response.body", "body": body, "more_body": then is not None})
    if then is not None:
        await then()
        await send({"type": "http.response.body", "body": b""})


async def _send_start(send: Send, status: int, kind: bytes, body: bytes, headers: dict[str, str] | None = None) -> None:
    lines = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if headers:
        lines += [(name.encode(), _safe(value)) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})


def _safe(value: str) -> bytes:
    """A header's value without line breaks: it may contain text from a client."""
    return "".join(c if " " <= c <= "~" else "?" for c in value).encode()
