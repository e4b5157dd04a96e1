"""Where a service is: `https://HOST[:PORT][/PREFIX]`, and what can be set by query parameters.

timeout_s=30      how long an answer may take, beside what a call itself waits
connections=100   how many may be open at once
plain=1           lets a token go over http:// to another machine: only where nobody else can listen
"""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.core.errors import InvalidOption
from holdfast.opening import Options, StoreUrl

_LOCAL = ("localhost", "127.0.0.1", "::1")


class Address(Struct, frozen=True):
    """A service's address, taken apart."""

    base: str
    timeout_s: float
    connections: int

    @property
    def is_secure(self) -> bool:
        return self.base.startswith("https:")


def read(url: StoreUrl) -> Address:
    """Take the URL of a service apart. Raises InvalidOption with what to write instead."""
    options = Options(url)
    timeout_s = options.number("timeout_s", 30, 1, 3600)
    connections = options.number("connections", 100, 1, 10_000)
    plain = options.text("plain", "0", ("0", "1")) == "1"
    options.finish()
    head = url.url.partition("?")[0]
    try:
        parts = urlsplit(head)
        host, user = parts.hostname, parts.username or parts.password
        _ = parts.port
    except ValueError:
        raise InvalidOption("store", "that is not the URL of a service; write https://HOST[:PORT]") from None
    if not host or parts.fragment:
        raise InvalidOption("store", "that is not the URL of a service; write https://HOST[:PORT]")
    if user:
        raise InvalidOption("store", "a service takes a token, no password: leave it out of the URL, pass token=")
    if url.scheme == "http" and host not in _LOCAL and not plain:
        reason = "over http:// a token can be read on its way; use https://, or ?plain=1 where the network is yours"
        raise InvalidOption("store", reason)
    return Address(head.rstrip("/"), float(timeout_s), connections)
