"""The contract through the HTTP client, as if the service were a store: one test for each check of the shipped suite.

The service runs in a process of its own, on a real socket. See `tests.service.tenants` for what goes over HTTP.
"""

import asyncio

import pytest

from holdfast import store as stores
from holdfast.testing.conformance import Check, Skipped, Spaces, all_checks, perform
from tests.service.tenants import Behind, Tenants


@pytest.fixture(scope="module")
def spaces():
    behind = Behind()
    known = stores._opener

    def opener(scheme):
        return clients if scheme == "behind" else known(scheme)

    def clients(url):
        return Tenants(behind, f"memory:{url.url.partition(':')[2]}")

    stores._opener = opener
    try:
        yield Spaces("behind:", lambda url, place: f"{url}{place}", exact=True)
    finally:
        stores._opener = known
        behind.close()


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: f"{check.rule}-{check.name}")
def test_the_service_keeps_the_rule(check: Check, spaces: Spaces) -> None:
    try:
        asyncio.run(perform(check, spaces))
    except Skipped as reason:
        pytest.skip(str(reason))
