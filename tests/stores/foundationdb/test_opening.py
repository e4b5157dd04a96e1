"""Addresses of clusters, and what keeps a store from opening."""

import pytest

from holdfast.core.errors import InvalidOption, StoreMismatch, Unsupported
from holdfast.opening import parse_url
from holdfast.store import TenantSettings
from holdfast.stores.foundationdb import address


@pytest.mark.parametrize(
    "url, cluster_file, simulation",
    [
        ("fdb:", "", None),
        ("fdb:///etc/foundationdb/fdb.cluster?prefix=a", "/etc/foundationdb/fdb.cluster", None),
        ("fdb:./fdb.cluster", "./fdb.cluster", None),
        ("fdb:?simulation=x", "", "x"),
    ],
)
def test_a_url_names_a_cluster_file_or_a_simulation(url, cluster_file, simulation):
    found = address.read(parse_url(url))
    assert (found.cluster_file, found.simulation) == (cluster_file, simulation)


@pytest.mark.parametrize(
    "url, what",
    [
        ("fdb://host/x", "names a host"),
        ("fdb:?prefix=", "prefix"),
        ("fdb:?prefix=a b", "prefix"),
        ("fdb:/x?simulation=y", "has no cluster file"),
        ("fdb:?shards=3", "has no such option"),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_write(url, what):
    with pytest.raises(InvalidOption, match=what):
        address.read(parse_url(url))


async def test_two_prefixes_are_two_stores_and_other_data_is_refused(cluster):
    database = cluster()
    one, two = await database.handle(prefix="a", test_clock=1), await database.handle(prefix="ab", test_clock=1)
    await one.set_tenant("t", TenantSettings(weight=2.0))
    assert (await one.tenants(), await two.tenants()) == (["t"], [])
    await one.erase()
    assert await two.tenants() == []
    transaction = database.transaction()
    transaction.set(one._transactions.keys.root + b"\x02else\x00", b"")
    await transaction.commit()
    with pytest.raises(StoreMismatch, match="other keys under this prefix"):
        await database.handle(prefix="a")
    with pytest.raises(StoreMismatch, match="made without test_clock=frozen"):
        await database.handle(prefix="ab", test_clock="frozen")


async def test_a_store_in_use_cannot_be_erased(cluster):
    store = await cluster().handle()
    with pytest.raises(Unsupported):
        await store.erase()
