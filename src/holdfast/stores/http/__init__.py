"""A store behind the HTTP service: `https://host`, with a token. Needs `pip install 'holdfast[http]'`.

    store    the operations: those that one tenant's token allows
    link     requests and answers, errors by their codes
    shapes   jobs and events between the wire and the library
    ears     hints, from the stream of events

The token decides whose jobs these are; whoever asks for another tenant's is refused here already. What concerns
several tenants, the upkeep and the clock are the service's own and cannot be had from here.
"""

from __future__ import annotations

from holdfast.core.errors import InvalidOption
from holdfast.store import Options, StoreUrl
from holdfast.stores.http.link import Link
from holdfast.stores.http.store import HttpStore


def open_http(url: StoreUrl) -> HttpStore:
    """The store at an address. Its token comes by `Queue(url, token=...)`, or from HOLDFAST_TOKEN."""
    options = Options(url)
    timeout_s = options.number("timeout_s", 30, 1, 3600)
    options.finish()
    address = f"{url.scheme}:{url.rest}".rstrip("/")
    if "@" in url.rest.partition("/")[2].lstrip("/").partition("/")[0]:
        raise InvalidOption("store", "no name and password here: pass the token as token=")
    return HttpStore(Link(address, float(timeout_s)))
