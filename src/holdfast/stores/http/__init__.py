"""The client of the HTTP service: one tenant's jobs, behind a token, with the face of a store.

The parts:

    address     an http:// or https:// URL, taken apart
    bearer      the token: where it comes from, and whose it is
    link, trouble   requests, which of them may be sent twice, what answers mean
    outgoing, incoming   values as the wire has them, both ways
    ears        hints, from the tenant's events
    schedules, flows   the routes that these have of their own
    posts       a worker's place: claims that wait at the service
    store       the `Store` face
"""

from __future__ import annotations

from holdfast.opening import StoreUrl
from holdfast.stores.http import address
from holdfast.stores.http.bearer import Bearer
from holdfast.stores.http.store import HttpStore


def open_http(url: StoreUrl) -> HttpStore:
    """`https://HOST[:PORT][/PREFIX]`; the token comes by `Queue(url, token=...)` or from HOLDFAST_TOKEN."""
    return HttpStore(address.read(url), Bearer.from_environment())


__all__ = ["HttpStore", "open_http"]
