"""Serves metrics and health checks on a separate address, to a few short connections at a time.

It runs in threads, needs no event loop, and does not use the connections of the service.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

MAX_CONNECTIONS = 8
"""Further connections are closed without an answer: few programs read metrics and health."""
CONNECTION_S = 10.0
"""How long a connection may last."""
_PATHS = ("/", "/metrics")


Checks = Mapping[str, Callable[[], str]]
"""Health checks by path. Each returns an empty text if all is well, or the problem."""


def serve(host: str, port: int, text: Callable[[], bytes], content_type: str, checks: Checks | None = None) -> int:
    """Serve the text that `text` returns, in daemon threads. Returns the port. Raises OSError.

    `checks` answer 200, or 503 with the problem.
    """

    class MetricsHandler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            self._end = threading.Timer(CONNECTION_S, _cut, (self.request,))
            self._end.daemon = True
            self._end.start()
            super().setup()

        def finish(self) -> None:
            self._end.cancel()
            with contextlib.suppress(OSError):
                super().finish()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            check = (checks or {}).get(path)
            if check is not None:
                problem = check()
                self._answer(503 if problem else 200, f"{problem or 'ok'}\n".encode(), "text/plain; charset=utf-8")
            elif path in _PATHS:
                self._answer(200, text(), content_type)
            else:
                self.send_error(404)

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            return "holdfast"

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: metrics and health are read every few seconds."""

    server = _Bounded((host, port), MetricsHandler)
    threading.Thread(target=server.serve_forever, name="holdfast-metrics", daemon=True).start()
    return server.server_port


class _Bounded(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect or are too slow."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
