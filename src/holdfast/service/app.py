"""The ASGI application: one table of routes, and what happens to every request on its way to one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route as Path

from holdfast.core.errors import HoldfastError
from holdfast.service import bodies, openapi
from holdfast.service.audit import Trail, trail
from holdfast.service.call import (
    NOBODY,
    STREAM,
    Call,
    Receive,
    Reply,
    Route,
    Scope,
    Send,
    Stream,
    encoded,
    parse_query,
    send_problem,
    send_reply,
)
from holdfast.service.edge import Edge
from holdfast.service.errors import AT_ONCE, Refusal, problem
from holdfast.service.routes import events, flows, health, jobs, queues, schedules, work
from holdfast.service.shares import Hold
from holdfast.service.tokens import Caller
from holdfast.telemetry.logging import get_logger

if TYPE_CHECKING:
    from holdfast.service.hub import Hub

_log = get_logger("holdfast.service")

ROUTES: tuple[Route, ...] = (
    *jobs.ROUTES, *work.ROUTES, *queues.ROUTES, *schedules.ROUTES, *flows.ROUTES, *events.ROUTES, *health.ROUTES,
)  # fmt: skip


def make_app(hub: Hub) -> Edge:
    """The application for one process."""
    app = FastAPI(
        title="Holdfast", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False,
        exception_handlers={HTTPException: _not_routed, Exception: _went_wrong},
    )  # fmt: skip
    routes = [route for route in ROUTES if hub.settings.metrics or route.path != "/metrics"]
    document = openapi.document(routes)
    app.openapi = lambda: document
    for path in dict.fromkeys(route.path for route in routes):
        by_method = {route.method: route for route in routes if route.path == path}
        app.router.routes.append(_exactly(path, _Endpoint(hub, by_method), list(by_method)))
    app.router.routes.append(_exactly("/openapi.json", _document(document), ["GET"]))
    return Edge(app, hub)


def _exactly(path: str, endpoint: Any, methods: list[str]) -> Path:
    """Starlette adds HEAD wherever there is GET; the document does not have it."""
    entry = Path(path, endpoint=endpoint, methods=methods)
    entry.methods = set(methods)
    return entry


class _Endpoint:
    """What is at one path, by method."""

    def __init__(self, hub: Hub, routes: dict[str, Route]) -> None:
        self._hub = hub
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes[scope["method"]]
        scope["holdfast.route"] = route.path
        headers: dict[bytes, bytes] = {}
        body = bodies.Body(receive, headers)
        with ExitStack() as stack:
            try:
                _gather(scope["headers"], headers)
                body = bodies.Body(receive, headers)
                caller = await self._caller(route, scope, headers)
                with trail(route, scope, caller) as noted:
                    await self._admit(route, caller)
                    hold = stack.enter_context(self._hub.memory.hold(caller.tenant, _address(scope)))
                    reply = await self._reply(route, scope, caller, body, hold, stack, noted)
            except HoldfastError as error:
                await _refuse(send, error, body)
                return
            if isinstance(reply, Stream):
                await self._stream(scope, send, reply, hold)
                return
            # What was asked, and what the answer was made of, is gone.
            hold.resize(len(reply.value))
            await send_reply(send, reply)
            await scope["holdfast.drained"]()

    async def _caller(self, route: Route, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        """Who calls, by a good token. Raises a refusal."""
        if route.scope is None:
            return NOBODY
        caller = await self._hub.tokens.caller(headers.get(b"authorization"), _address(scope))
        scope["holdfast.tenant"] = caller.tenant
        scope["holdfast.belong"](caller.tenant)
        return caller

    async def _admit(self, route: Route, caller: Caller) -> None:
        """Raise a refusal unless the token is not revoked, has room for a request, and is for this route."""
        if route.scope is not None:
            await self._hub.revoked.check(caller)
            self._hub.rates.take(caller.digest)
            self._hub.requests.check(caller.tenant)
            self._hub.requests.take(caller.tenant)
            if route.scope:
                caller.need(route.scope)

    async def _reply(
        self, route: Route, scope: Scope, caller: Caller, body: bodies.Body, hold: Hold, stack: ExitStack, noted: Trail
    ) -> Reply | Stream:
        """Check everything that can be checked before the route's own work, the cheapest first; then do that."""
        hub, limits = self._hub, self._hub.settings.limits
        query = parse_query(scope["query_string"], route.query)
        content: Any = None
        if route.batch and route.item is not None:
            data = await body.read(limits.batch_body, limits.body_s, hold)
            content = await bodies.decode_batch(data, route.batch, route.item, hub.turns, caller.tenant)
        elif route.body is not None:
            data = await body.read(limits.body, limits.body_s, hold)
            content = await bodies.decode(data, route.body, hub.turns, caller.tenant)
        elif not body.ended:
            raise Refusal("invalid_request", "this route takes no body")
        if route.method != "GET":
            if not route.is_never_refused:
                hub.changes.check(caller.tenant)
            hub.changes.take(caller.tenant, len(content) if route.batch else 1)
        answer = stack.enter_context(hub.memory.hold(caller.tenant, _address(scope)))
        call = Call(hub, scope, caller, content, query, answer, stack)
        noted.asked(call)
        reply = await route.handler(call)
        noted.answered(reply)
        if isinstance(reply, Stream):
            return reply
        reply = encoded(reply)
        answer.resize(0)
        return reply

    async def _stream(self, scope: Scope, send: Send, stream: Stream, hold: Hold) -> None:
        headers = [(b"content-type", STREAM), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for part in stream.parts:
                hold.resize(len(part))
                async with asyncio.timeout(self._hub.settings.limits.send_s):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            scope["holdfast.abort"]()
        except HoldfastError as error:
            # Too late for a status: the client comes again with the last id it saw, and is told then.
            _log.warning("a stream ended early", code=error.code)
        finally:
            await stream.parts.aclose()
        await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, error: HoldfastError, body: bodies.Body) -> None:
    if error.code in AT_ONCE:
        await send_problem(send, error, close=True, then=body.drain)
        return
    # Who is slow has had his time.
    all_read = error.code != "request_timeout" and await body.drain()
    await send_problem(send, error, close=not all_read)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _gather(lines: Iterable[tuple[bytes, bytes]], headers: dict[bytes, bytes]) -> None:
    """Headers by name. Those that decide who calls and what is read must stand once."""
    for name, value in lines:
        if name in _ONCE and name in headers:
            raise Refusal("invalid_request", f"the header {name.decode('latin-1')} stands twice")
        headers[name] = value

    if b"host" not in headers:
        raise Refusal("invalid_request", "there is no header host")


_ONCE = frozenset({b"authorization", b"content-type", b"content-encoding", b"content-length", b"host"})


def _document(document: dict[str, Any]) -> Any:
    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        scope["holdfast.route"] = "/openapi.json"
        try:
            _gather(scope["headers"], {})
        except Refusal as refusal:
            await send_problem(send, refusal)
            return
        await send_reply(send, Reply(document))

    class _Document:
        __call__ = staticmethod(endpoint)

    return _Document()


async def _not_routed(request: Request, error: Exception) -> Response:
    try:
        _gather(request.scope["headers"], {})
    except Refusal as refusal:
        status, body, headers = problem(refusal)
        return Response(body, status, headers, media_type="application/problem+json")
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request")
    detail = {404: "there is nothing at this path", 405: "not with this method"}.get(status, "refused")
    headers = dict((error.headers or {}) if isinstance(error, HTTPException) else {})
    body = problem(Refusal(code, detail))[1]
    return Response(body, status, headers, media_type="application/problem+json")


async def _went_wrong(_: Request, error: Exception) -> Response:
    """What the client is told; the edge logs the rest."""
    status, body, headers = problem(error)
    return Response(body, status, {**headers, "connection": "close"}, media_type="application/problem+json")
