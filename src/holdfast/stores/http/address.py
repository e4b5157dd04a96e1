"""The address of a service, `https://HOST[:PORT][/PREFIX]`, with its options as query parameters.

timeout_s=30      how long to wait for an answer, in addition to the time that a call itself waits
connections=100   the most open connections
plain=1           allows sending a token over http:// to another machine; use it only on a network you trust
"""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.core.errors import InvalidOption
from holdfast.opening import Options, StoreUrl

_LOCAL = ("localhost", "127.0.0.1", "::1")


class HttpAddress(Struct, frozen=True):
    """The parsed address of a service."""

    base: str
    timeout_s: float
    connections: int

    @property
    def is_secure(self) -> bool:
        return self.base.startswith("https:")


def read(url: StoreUrl) -> HttpAddress:
    """Parse the URL of a service. Raises InvalidOption, which says what to write instead."""
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
        raise InvalidOption("store", "this is not the URL of a service; write https://HOST[:PORT]") from None
    if not host or parts.fragment:
        raise InvalidOption("store", "this is not the URL of a service; write https://HOST[:PORT]")
    if user:
        raise InvalidOption("store", "a service takes a token, not a password; remove it from the URL and pass token=")
    if url.scheme == "http" and host not in _LOCAL and not plain:
        reason = "http:// sends the token unencrypted; use https://, or ?plain=1 on a network you trust"
        raise InvalidOption("store", reason)
    return HttpAddress(head.rstrip("/"), float(timeout_s), connections)
