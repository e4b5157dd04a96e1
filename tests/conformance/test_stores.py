"""The contract, on every store: one test for each check of the shipped suite."""

import asyncio
from functools import partial

import pytest

from holdfast.opening import make_store
from holdfast.testing.conformance import RULES, Check, Skipped, Spaces, all_checks, certify, perform
from holdfast.testing.fdb import drop_simulation
from holdfast.testing.servers import ValkeyCluster, ValkeyServer
from tests.stores.foundationdb.transactions import of_a_cluster
from tests.stores.postgres.transactions import of_asyncpg

STORES = ["memory", "file", "valkey", "cluster", "postgres", "fdb"]


@pytest.fixture(scope="module")
def on_memory():
    return Spaces("memory:conformance")


@pytest.fixture(scope="module")
def on_file(fast):
    return Spaces(f"file:{fast}/conformance")


@pytest.fixture(scope="module")
def on_valkey(fast):
    with ValkeyServer(directory=fast / "valkey", appendonly=True, appendfsync="always") as server:
        yield Spaces(server.url())


@pytest.fixture(scope="module")
def on_cluster():
    with ValkeyCluster(3) as cluster, pytest.MonkeyPatch.context() as patch:
        # None of its servers hangs: one that is slow on a busy machine is not left out of a claim.
        patch.setattr("holdfast.stores.redis.claims.PROBE_S", 60.0)
        yield Spaces(cluster.url())


@pytest.fixture(scope="module")
def on_postgres(postgres):
    return Spaces(postgres.url(), exact=True)


@pytest.fixture(scope="module")
def on_fdb():
    """A simulated cluster."""
    yield Spaces("fdb:?simulation=conformance", exact=True)
    drop_simulation("conformance")


@pytest.fixture(scope="module", params=STORES)
def spaces(request):
    return request.getfixturevalue(f"on_{request.param}")


OPENERS = {"postgres": of_asyncpg, "fdb": of_a_cluster}
"""By the name of a store: how a caller opens a transaction that the store can join. [ENQ-7]"""


def transaction_on(url: str):
    """A way to open a caller's transaction, if the store can join one."""
    capabilities = make_store(url).capabilities
    return partial(OPENERS[capabilities.name], url) if capabilities.transactional_enqueue else None


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: f"{check.rule}-{check.name}")
def test_the_store_keeps_each_rule(check: Check, spaces: Spaces) -> None:
    try:
        asyncio.run(perform(check, spaces, transaction_on(spaces.given)))
    except Skipped as reason:
        pytest.skip(str(reason))


def test_every_rule_of_the_contract_has_a_check() -> None:
    assert {check.rule for check in all_checks()} == set(RULES)


def test_a_run_on_a_server_leaves_nothing_behind() -> None:
    """This includes the spaces of checks with frozen clocks."""
    checks = [check for check in all_checks() if check.rule in ("RETRY-3", "ENQ-6", "TIME-1")]
    with ValkeyServer() as server:
        server.command("SET", "foreign", "value")
        certificate = asyncio.run(certify(server.url(), checks))
        assert certificate.held
        assert server.command("KEYS", "*") == ["foreign"]


def test_a_broken_rule_is_named_in_the_certificate() -> None:
    async def never_holds(_: object) -> None:
        raise AssertionError("as planned")

    certificate = asyncio.run(certify("memory:certificate", [Check("LEASE-1", "never_holds", never_holds)]))
    assert not certificate.held
    assert [(row.rule, row.check) for row in certificate.broken] == [("LEASE-1", "never_holds")]
    assert "as planned" in certificate.broken[0].error


def test_checks_that_do_not_apply_are_skipped_with_the_reason() -> None:
    checks = [check for check in all_checks() if check.name == "a_handed_off_job_is_leased_as_by_a_claim"]
    certificate = asyncio.run(certify("memory:skipped", checks))
    assert certificate.held
    assert [row.skipped for row in certificate.rows] == ["the store has no direct hand-off: it has no `open_inbox`"]
    with ValkeyServer() as server:
        many, one = (asyncio.run(certify(server.url(shards=shards), checks)) for shards in (2, 1))
    assert [row.skipped for row in many.rows] == ["no direct hand-off in this deployment: `open_inbox` gives None"]
    assert one.held
    assert [row.skipped for row in one.rows] == [""]
