"""Around every request: the raw path, a request id, the trace, the access log, metrics, unexpected errors."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from holdfast.service.call import Receive, Scope, Send, send_problem
from holdfast.telemetry import http as http_metrics
from holdfast.telemetry import tracing
from holdfast.telemetry.logging import get_logger

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from holdfast.service.context import ServiceContext

_access = get_logger("holdfast.access")
_log = get_logger("holdfast.service")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
_TRACEPARENT = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_TRACESTATE = re.compile(rb"[ -~]{1,512}\Z")
_SAFE = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]


class Middleware:
    """The outermost layer. It never logs a token, a query or a body."""

    def __init__(self, app: ASGIApp, context: ServiceContext) -> None:
        self._app = app
        self._context = context
        self._peaks = (0, 0, 0, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        # Routes match the raw path, split at literal slashes. Each segment is decoded later.
        scope["path"] = scope["raw_path"].decode("latin-1")
        scope.setdefault("holdfast.lost", set())
        scope.setdefault("holdfast.left", bool)
        scope.setdefault("holdfast.belong", _nothing)
        scope.setdefault("holdfast.flow", _NO_FLOW)
        scope["holdfast.safe"] = _SAFE
        request_id, trace = _request_id_and_trace(scope["headers"])
        scope["holdfast.trace"] = trace
        scope["holdfast.request_id"] = request_id.decode()
        status = 0

        async def out(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *scope["holdfast.safe"], (b"x-request-id", request_id)]
            await send(message)

        try:
            with tracing.request_span(scope["method"], trace) as carried:
                scope["holdfast.trace"] = carried
                await self._app(scope, receive, out)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, and the log the error
            _log.exception("a request failed", request_id=request_id.decode())
            if not status:
                scope["holdfast.safe"] = _SAFE
                await send_problem(out, error, close=True)
        finally:
            self._note(scope, request_id, status, time.perf_counter() - started)

    def _note(self, scope: Scope, request_id: bytes, status: int, took_s: float) -> None:
        route = scope.get("holdfast.route", "")
        if http_metrics.current is not None:
            http_metrics.current.answered(scope["method"], route, status, took_s)
            peaks = self._context.peaks()
            if peaks != self._peaks:
                self._peaks = peaks
                http_metrics.current.set_peaks(*peaks)
        if not self._context.settings.access_log:
            return
        client = scope.get("client")
        trace = scope["holdfast.trace"]
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "route": route,
            "status": status,
            "ms": round(1000 * took_s, 2),
            "tenant": scope.get("holdfast.tenant", ""),
            "client": client[0] if client else "",
            "request_id": request_id.decode(),
        }
        if trace is not None:
            fields["trace_id"] = trace["traceparent"][3:35]
        _access.info("request", **fields)


class _NoFlow:
    """The flow control of a server that has none."""

    write_paused = False


_NO_FLOW = _NoFlow()


def _nothing(tenant: str) -> None:
    """In place of our server's hook: other servers do not count connections by tenant."""


def _request_id_and_trace(headers: list[tuple[bytes, bytes]]) -> tuple[bytes, dict[str, str] | None]:
    """The request id, the client's own if it is well-formed, and the client's trace context."""
    request_id, parent, state = b"", None, None
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            request_id = value
        elif name == b"traceparent" and _TRACEPARENT.match(value):
            parent = value.decode()
        elif name == b"tracestate" and _TRACESTATE.match(value):
            state = value.decode()
    trace = None if parent is None else {"traceparent": parent}
    if trace is not None and state is not None:
        trace["tracestate"] = state
    return request_id or secrets.token_hex(8).encode(), trace
