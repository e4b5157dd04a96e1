"""uvicorn's HTTP protocol with limits that it lacks: the time and size of headers, the number of connections.

uvicorn's own timer covers only the time between requests, and restarts with every byte. httptools limits no headers.
Here a timer starts with the connection and with each request, and only complete headers stop it. The body has
its own timeout, in `bodies`. Trailers are refused, and so is an upgrade: after it httptools would read the body as the
next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.service.errors import Refusal, problem
from holdfast.service.settings import Limits, proxy_networks
from holdfast.service.shares import Shares


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    limits: Limits = Limits()
    shares: Shares = Shares("connections")
    proxies: Sequence[IPv4Network | IPv6Network] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._lost: set[Callable[[], None]] = set()
        self._verdict: Refusal | None = None
        self._in_head = True
        self._head = 0
        self._in_body = False
        self._moved = False
        self._no_body = 0
        self._timer: asyncio.TimerHandle | None = None
        # A trusted proxy's connections carry the requests of many addresses.
        address = self.client[0] if self.client else ""
        self._hold = self.shares.hold("", "" if _is_one_of(address, self.proxies) else address)
        try:
            self._hold.take(1)
        except Refusal as refusal:
            self._refuse(refusal)
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._hold.resize(0)
        for leave in list(self._lost):
            leave()
        self._lost.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._verdict is not None:
            return
        self._moved = not self._in_body
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_body and not self._moved:
            # For example an endless trailer: httptools stores it and makes no callback.
            self._no_body += len(data)
            if self._no_body > self.limits.header_bytes:
                self._refuse(_too_long(self.limits))
                return
        if self._in_head:
            self._head += len(data)
            if self._head > self.limits.header_bytes:
                self._refuse(_too_long(self.limits))
        elif self._timer is None and self.cycle.response_complete:
            # For example empty lines before a request: they stop uvicorn's timer and start none.
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head = 0
        if self._timer is None:
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            raise self._over(Refusal("invalid_request", "trailers are not accepted"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.header_bytes:
            raise self._over(_too_long(self.limits))
        parser: Any = self.parser
        if parser.should_upgrade() or any(name == b"upgrade" for name, _ in self.headers):
            raise self._over(Refusal("invalid_request", "an upgrade to another protocol is not supported"))
        self._in_head = False
        self._in_body = self._moved = True
        self._no_body = 0
        self._stop_timer()
        scope: Any = self.scope
        scope["holdfast.lost"] = self._lost
        scope["holdfast.left"] = self.transport.is_closing
        scope["holdfast.abort"] = self.transport.abort
        scope["holdfast.belong"] = self._hold.move
        scope["holdfast.flow"] = self.flow
        super().on_headers_complete()
        scope["holdfast.cycle"] = self.cycle

    def on_body(self, body: bytes) -> None:
        self._moved = True
        self._no_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # One timer from here to the end of the next headers.
        self._unset_keepalive_if_required()
        if self._timer is None and not self.transport.is_closing() and self.cycle.response_complete:
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with a problem, and close the connection."""
        del msg
        self._refuse(self._verdict or Refusal("invalid_request", "this is not a well-formed HTTP request"))

    def _over(self, refusal: Refusal) -> Exception:
        """An exception that ends the parsing. The client gets the refusal."""
        self._verdict = refusal
        return ValueError(refusal.detail)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_s, self._on_slow_headers)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_slow_headers(self) -> None:
        self._timer = None
        if not self._in_head:
            self.transport.close()
            return
        self._refuse(Refusal("request_timeout", f"the headers did not arrive within {self.limits.header_s:g} s"))

    def _refuse(self, refusal: Refusal) -> None:
        self._verdict = refusal
        self._stop_timer()
        if self.transport.is_closing():
            return
        status, body, headers = problem(refusal)
        lines = {"content-type": "application/problem+json", "content-length": str(len(body)), "connection": "close"}
        text = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **headers}.items())
        # Do not write into a response that has started.
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(b"".join([STATUS_LINE[status], text.encode(), b"\r\n", body]))
        self.transport.close()


def bounded(limits: Limits, shares: Shares, proxies: str = "") -> type[BoundedProtocol]:
    """Make the protocol with these limits."""
    own = {"limits": limits, "shares": shares, "proxies": proxy_networks(proxies)}
    return type("BoundedProtocol", (BoundedProtocol,), own)


def _is_one_of(address: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        return any(ip_address(address) in network for network in networks)
    except ValueError:
        return False


def _too_long(limits: Limits) -> Refusal:
    return Refusal("headers_too_large", f"the headers are longer than {limits.header_bytes} bytes")
