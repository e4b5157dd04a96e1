"""Metrics on an address of their own: a few connections at a time, each for a short time, one request each.

Apart from the service: it needs no event loop, and takes none of the connections that clients may have.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

MAX_CONNECTIONS = 8
"""Further ones are closed without an answer: metrics are read by one or two programs."""
CONNECTION_S = 10.0
"""How long a connection may last, from its beginning to its end."""
_PATHS = ("/", "/metrics")


def serve(host: str, port: int, text: Callable[[], bytes], content_type: str) -> int:
    """Serve what `text` gives, in threads that end with the process; the port. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
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
            if self.path.partition("?")[0] not in _PATHS:
                self.send_error(404)
                return
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            return "holdfast"

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: whoever reads metrics does so often."""

    server = _Bounded((host, port), Handler)
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
        """A client that left, or that was too slow."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
