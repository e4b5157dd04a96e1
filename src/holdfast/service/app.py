"""The ASGI application: the table of routes, and the checks of every request before its route."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route as Path

from holdfast.core.errors import HoldfastError
from holdfast.service import bodies, openapi
from holdfast.service.audit import Trail, is_audited, trail
from holdfast.service.call import (
    ANONYMOUS,
    STREAM,
    Receive,
    Reply,
    Route,
    Scope,
    Send,
    ServiceCall,
    Stream,
    encoded,
    parse_query,
    send_problem,
    send_reply,
)
from holdfast.service.errors import EARLY, Refusal, problem
from holdfast.service.limits import DEBT_S
from holdfast.service.middleware import Middleware
from holdfast.service.routes import events, flows, health, jobs, operating, queues, schedules, work
from holdfast.service.shares import Hold
from holdfast.service.tokens import OPERATOR_SCOPE, Caller
from holdfast.service.turns import TURN
from holdfast.telemetry.logging import get_logger

if TYPE_CHECKING:
    from holdfast.service.context import ServiceContext

_log = get_logger("holdfast.service")

ROUTES: tuple[Route, ...] = (
    *jobs.ROUTES, *work.ROUTES, *queues.ROUTES, *schedules.ROUTES, *flows.ROUTES, *events.ROUTES,
    *operating.ROUTES, *health.ROUTES,
)  # fmt: skip


PAGES = "/dashboard"
"""Where pages for people are, if the service has any."""


class Mounted(Protocol):
    """Pages that run inside the service."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def stop(self) -> None:
        """End what would keep the service from stopping."""

    async def close(self) -> None:
        """Close what the pages have open."""


def make_app(context: ServiceContext, pages: Mounted | None = None) -> Middleware:
    """Make the application of one process, with pages below `PAGES`."""
    app = FastAPI(
        title="Holdfast", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False,
        exception_handlers={HTTPException: _no_such_route, Exception: _unexpected},
    )  # fmt: skip
    routes = [route for route in ROUTES if context.settings.metrics or route.path != "/metrics"]
    document = openapi.document(routes)
    app.openapi = lambda: document
    endpoints: dict[str, _Endpoint] = {}
    for path in dict.fromkeys(route.path for route in routes):
        by_method = {route.method: route for route in routes if route.path == path}
        endpoints[path] = _Endpoint(context, by_method)
        app.router.routes.append(_starlette_route(path, endpoints[path], list(by_method)))
    app.router.routes.append(_starlette_route("/openapi.json", _document(document), ["GET"]))
    return Middleware(_Table(app, endpoints, pages), context)


class _Table:
    """Finds the endpoint of a path in one lookup. Trying each path takes a fifth of a small request's time.

    Other paths are left to FastAPI's router, which answers 404 or 405.
    """

    def __init__(self, app: FastAPI, endpoints: dict[str, _Endpoint], pages: Mounted | None) -> None:
        self._app = app
        self._pages = pages
        self._endpoints = {_shape(path.split("/")): endpoint for path, endpoint in endpoints.items()}
        self._names = {_shape(path.split("/")): [part[1:-1] for part in path.split("/")[3:6:2]] for path in endpoints}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path"].split("/")
        shape = _shape(parts)
        endpoint = self._endpoints.get(shape)
        if self._pages is not None and "/" + parts[1] == PAGES:
            await _show(self._pages, scope, receive, send)
            return
        if endpoint is None or scope["method"] not in endpoint.routes or "" in parts[1:]:
            await self._app(scope, receive, send)
            return
        scope["path_params"] = dict(zip(self._names[shape], parts[3:6:2], strict=False))
        await endpoint(scope, receive, send)


async def _show(pages: Mounted, scope: Scope, receive: Receive, send: Send) -> None:
    scope["holdfast.route"] = PAGES
    try:
        _gather(scope["headers"], {})
    except Refusal as refusal:
        await send_problem(send, refusal)
        return
    scope["holdfast.safe"] = ()  # The pages set these headers themselves.
    await pages({**scope, "root_path": PAGES}, receive, send)


def _shape(parts: list[str]) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """The constant parts of a path. In the table, the fourth and the sixth part are parameters."""
    return len(parts), tuple(parts[:3]), tuple(parts[4::2])


def _starlette_route(path: str, endpoint: Any, methods: list[str]) -> Path:
    """A route with exactly these methods: Starlette adds HEAD to GET, which the document does not list."""
    entry = Path(path, endpoint=endpoint, methods=methods)
    entry.methods = set(methods)
    return entry


class _Endpoint:
    """The routes of one path, by method."""

    def __init__(self, context: ServiceContext, routes: dict[str, Route]) -> None:
        self._context = context
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.routes[scope["method"]]
        scope["holdfast.route"] = route.path
        headers: dict[bytes, bytes] = {}
        body: bodies.Body | None = None
        holds: list[Hold] = []
        try:
            try:
                _gather(scope["headers"], headers)
                body = bodies.Body(receive, headers)
                caller = await self._caller(route, scope, headers)
                if is_audited(route, caller):
                    with trail(route, scope, caller, self._context.trail) as audit:
                        reply = await self._reply(route, scope, caller, body, holds, audit)
                else:
                    reply = await self._reply(route, scope, caller, body, holds)
            except HoldfastError as error:
                await _refuse(send, error, body)
                return
            if isinstance(reply, Stream):
                await self._stream(scope, send, reply, holds[0])
                return
            # The request and the objects of the answer are freed: only the encoded answer counts now.
            holds[0].resize(len(reply.value))
            await send_reply(send, reply)
            if scope["holdfast.flow"].write_paused:
                await scope["holdfast.flow"].drain()
        finally:
            for hold in holds:
                hold.resize(0)

    async def _caller(self, route: Route, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        """The caller that the token names. Raises a refusal."""
        if route.scope is None:
            return ANONYMOUS
        operators = route.for_operators or route.scope == OPERATOR_SCOPE
        header = headers.get(b"authorization")
        caller = await self._context.tokens.caller(header, _address(scope), operators=operators)
        scope["holdfast.tenant"] = caller.tenant
        scope["holdfast.belong"](caller.tenant)
        return caller

    async def _admit(self, route: Route, caller: Caller) -> None:
        """Raise a refusal if the token is revoked, has no scope for this route, or exceeds a rate."""
        if route.scope is not None:
            context = self._context
            context.activity.note(caller.tenant)
            if not context.revoked.is_fresh():
                await context.revoked.renew()
            context.revoked.refuse(caller)
            # A token without the scope gets no exemption from the rates.
            if not route.is_never_refused or (route.scope and route.scope not in caller.scopes):
                context.token_rates.check(caller.digest)
                context.requests.admit(caller.tenant)
            else:
                if context.requests.is_exhausted(caller.tenant) or context.token_rates.is_exhausted(caller.digest):
                    # One per turn of the event loop, so that other tenants' requests come in between. [TENANT-4]
                    await context.turns.take(TURN, caller.tenant)
                context.requests.take(caller.tenant, max_debt_s=DEBT_S)
            context.token_rates.take(caller.digest)
            if route.scope and (caller.tenant or not route.for_operators):
                caller.need(route.scope)

    async def _reply(
        self,
        route: Route,
        scope: Scope,
        caller: Caller,
        body: bodies.Body,
        holds: list[Hold],
        audit: Trail | None = None,
    ) -> Reply | Stream:
        """Check the request, cheapest checks first, and call the route's handler."""
        await self._admit(route, caller)
        context, limits = self._context, self._context.settings.limits
        address = _address(scope)
        hold, answer = context.memory.hold(caller.tenant, address), context.memory.hold(caller.tenant, address)
        holds += hold, answer
        query = parse_query(scope["query_string"], route.query)
        content: Any = None
        if route.batch and route.item is not None:
            data = await body.read(limits.batch_body, limits.body_s, hold, scope)
            content = await bodies.decode_batch(data, route.batch, route.item, context.turns, caller.tenant)
        elif route.body is not None:
            data = await body.read(limits.body, limits.body_s, hold, scope)
            content = await bodies.decode(data, route.body, context.turns, caller.tenant)
        elif not body.ended:
            raise Refusal("invalid_request", "this route takes no body")
        if route.method != "GET":
            count = context.changes.take if route.is_never_refused else context.changes.admit
            count(caller.tenant, len(content) if route.batch else 1)
        call = ServiceCall(context, scope, caller, content, query, holds)
        if audit is not None:
            audit.asked(call)
        reply = await route.handler(call)
        if audit is not None:
            audit.answered(reply)
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
                async with asyncio.timeout(self._context.settings.limits.send_s):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            scope["holdfast.abort"]()
        except HoldfastError as error:
            # Too late for a status. The client reconnects with the last id that it saw, and gets the error then.
            _log.warning("a stream ended early", code=error.code)
        finally:
            await stream.parts.aclose()
        await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, error: HoldfastError, body: bodies.Body | None) -> None:
    if body is None:
        await send_problem(send, error)
        return
    if error.code in EARLY:
        await send_problem(send, error, close=True, then=body.drain)
        return
    # Timed out: do not drain the body.
    all_read = error.code != "request_timeout" and await body.drain()
    await send_problem(send, error, close=not all_read)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _gather(lines: Iterable[tuple[bytes, bytes]], headers: dict[bytes, bytes]) -> None:
    """Collect headers by name. Those that decide about the caller and the body must not occur twice."""
    for name, value in lines:
        if name in _UNIQUE and name in headers:
            raise _misread(f"the header {name.decode('latin-1')} occurs twice")
        headers[name] = value

    if b"host" not in headers:
        raise _misread("the header host is missing")


def _misread(detail: str) -> Refusal:
    """A refusal that closes the connection: a proxy may have understood the request differently."""
    return Refusal("invalid_request", detail, {"connection": "close"})


_UNIQUE = frozenset({b"authorization", b"content-type", b"content-encoding", b"content-length", b"host"})


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

    class _OpenApiDocument:
        __call__ = staticmethod(endpoint)

    return _OpenApiDocument()


async def _no_such_route(request: Request, error: Exception) -> Response:
    try:
        _gather(request.scope["headers"], {})
    except Refusal as refusal:
        status, body, headers = problem(refusal)
        return Response(body, status, headers, media_type="application/problem+json")
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request")
    detail = {404: "no such path", 405: "this path has other methods"}.get(status, "refused")
    headers = dict((error.headers or {}) if isinstance(error, HTTPException) else {})
    body = problem(Refusal(code, detail))[1]
    return Response(body, status, headers, media_type="application/problem+json")


async def _unexpected(_: Request, error: Exception) -> Response:
    """The answer to an unexpected error. The middleware logs it."""
    status, body, headers = problem(error)
    return Response(body, status, {**headers, "connection": "close"}, media_type="application/problem+json")
