"""uvicorn's protocol, with the bounds it does not have: how long headers may take and be, how many connections.

uvicorn's own timer covers only the time between requests, and starts anew with every byte; httptools takes headers of
any length. A connection here has an end set when it is made and at each request, which only complete headers lift.
The body has its own, in `bodies`. Headers are what stood in the head: trailers are refused, and so is an upgrade, after
which httptools would take the body for the next request.
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
        # Those of a proxy are of many addresses.
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
            # A trailer without end, say: httptools keeps it, and tells nobody.
            self._no_body += len(data)
            if self._no_body > self.limits.header_bytes:
                self._refuse(_too_long(self.limits))
                return
        if self._in_head:
            self._head += len(data)
            if self._head > self.limits.header_bytes:
                self._refuse(_too_long(self.limits))
        elif self._timer is None and self.cycle.response_complete:
            # Empty lines before a request, say: they have stopped uvicorn's timer, and started nothing.
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head = 0
        if self._timer is None:
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            raise self._over(Refusal("invalid_request", "headers after the body are not taken"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.header_bytes:
            raise self._over(_too_long(self.limits))
        parser: Any = self.parser
        if parser.should_upgrade() or any(name == b"upgrade" for name, _ in self.headers):
            raise self._over(Refusal("invalid_request", "there is no other protocol here to upgrade to"))
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
        # One time for what follows, from here to the end of the headers, however they come.
        self._unset_keepalive_if_required()
        if self._timer is None and not self.transport.is_closing() and self.cycle.response_complete:
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP, or not by the rules, is refused as a problem, and the connection is over."""
        del msg
        self._refuse(self._verdict or Refusal("invalid_request", "this is not a well-formed HTTP request"))

    def _over(self, refusal: Refusal) -> Exception:
        """What ends the parsing when raised; the client gets the refusal."""
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
        self._refuse(Refusal("request_timeout", f"the headers did not come within {self.limits.header_s:g} s"))

    def _refuse(self, refusal: Refusal) -> None:
        self._verdict = refusal
        self._stop_timer()
        if self.transport.is_closing():
            return
        status, body, headers = problem(refusal)
        lines = {"content-type": "application/problem+json", "content-length": str(len(body)), "connection": "close"}
        text = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **headers}.items())
        # A response that is under way would be torn in two by another one.
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(b"".join([STATUS_LINE[status], text.encode(), b"\r\n", body]))
        self.transport.close()


def bounded(limits: Limits, shares: Shares, proxies: str = "") -> type[BoundedProtocol]:
    """The protocol with these limits."""
    own = {"limits": limits, "shares": shares, "proxies": proxy_networks(proxies)}
    return type("BoundedProtocol", (BoundedProtocol,), own)


def _is_one_of(address: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        return any(ip_address(address) in network for network in networks)
    except ValueError:
        return False


def _too_long(limits: Limits) -> Refusal:
    return Refusal("headers_too_large", f"the headers are longer than {limits.header_bytes} bytes")
