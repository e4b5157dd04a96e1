"""The client of the HTTP service: a `Store` for one tenant, identified by a token.

The parts:

    address              parses an http:// or https:// URL
    bearer               the token, and its tenant
    client, errors       sends requests, repeats those that are safe to repeat, turns problems into errors
    outgoing, incoming   convert values to and from the HTTP form
    notifications        hints, from the tenant's event stream
    handoff              a worker's inbox: a claim that waits at the service
    batches, jobs, reads, schedules, flows   the calls, by subject
    session, store       what all calls share, and the `Store` itself
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.kinds import store_kind
from holdfast.opening import StoreUrl

if TYPE_CHECKING:
    from holdfast.stores.http.store import HttpStore


@store_kind(install="holdfast[http]")
def open_http(url: StoreUrl) -> HttpStore:
    """Make a store from `https://HOST[:PORT][/PREFIX]`. The token is `Queue(url, token=...)` or HOLDFAST_TOKEN."""
    from holdfast.stores.http import address
    from holdfast.stores.http.bearer import Bearer
    from holdfast.stores.http.store import HttpStore

    return HttpStore(address.read(url), Bearer.from_environment())
