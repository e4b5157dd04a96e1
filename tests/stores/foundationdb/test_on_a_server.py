"""The store on a real server, where there is one: the contract, random traces, and replies that are lost."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from holdfast import Queue
from holdfast.opening import open_store
from holdfast.stores.foundationdb.transactions import Transactions
from holdfast.testing.conformance import Check, Skipped, Spaces, all_checks, perform
from holdfast.testing.fdb.server import FdbServer, missing
from holdfast.testing.processes import HOST, free_port
from holdfast.testing.proxy import Proxy
from holdfast.testing.traces import check_trace
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.foundationdb.transactions import of_a_cluster
from tests.stores.lives import judge, live

fdb = pytest.importorskip("fdb", reason="the store is not tested on a FoundationDB server: no package foundationdb")
LEFT_OUT = missing()
if LEFT_OUT:
    pytest.skip(f"the store is not tested on a FoundationDB server: {LEFT_OUT}", allow_module_level=True)

ACTS, WANTED = 400, 8


@pytest.fixture(scope="module")
def server():
    with FdbServer() as server:
        yield server


@pytest.fixture(scope="module")
def url(server):
    return server.url()


@pytest.fixture(scope="module")
def spaces(url):
    return Spaces(url, exact=True)


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: f"{check.rule}-{check.name}")
def test_the_store_keeps_each_rule(check: Check, spaces: Spaces) -> None:
    try:
        asyncio.run(perform(check, spaces, lambda: of_a_cluster(spaces.given)))
    except Skipped as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("seed", range(10))
async def test_the_store_never_differs_from_the_memory_store(url, seed):
    await check_trace(url, seed, 80)


@pytest.mark.parametrize("commits", [True, False])
async def test_an_enqueue_joins_a_transaction_of_the_binding(url, server, commits):
    db = fdb.open(server.cluster_file)
    async with Queue(f"{url}?prefix=joined{commits}", tenant="acme") as queue:
        transaction = db.create_transaction()
        transaction[b"orders/1"] = str(commits).encode()
        await queue.enqueue("send", id="receipt-1", connection=transaction)
        if commits:
            await asyncio.to_thread(transaction.commit().wait)
        else:
            transaction.cancel()
        assert (await queue.get("receipt-1") is not None) is commits
        assert db[b"orders/1"] == b"True"


async def cut_now_and_then(proxy):
    """One connection at a time: after many in a row a client waits for half a minute."""
    for after in itertools.cycle((3, 7, 5, 11)):
        before = proxy.counts.replies_cut
        proxy.cut_replies(after=after)
        await eventually(lambda: proxy.counts.replies_cut > before)  # noqa: B023 - awaited in this round
        await asyncio.sleep(0.3)


async def test_answers_and_events_agree_when_replies_are_lost(monkeypatch):
    """Connections are cut at replies, commits among them: their outcome is unknown, and the store finds it out."""
    unknown = Counter()
    is_logged = Transactions._is_logged

    async def counted(self, work):
        found = await is_logged(self, work)
        unknown[found] += 1
        return found

    monkeypatch.setattr(Transactions, "_is_logged", counted)
    port = free_port()
    async with Proxy(HOST, port) as proxy:
        server = await asyncio.to_thread(FdbServer, proxied=(proxy.port, port))
        with server:
            stores = [await open_store(server.url()) for _ in range(2)]
            cutting = asyncio.create_task(cut_now_and_then(proxy))
            actors = []
            while unknown.total() < WANTED:
                acts, round_ = itertools.count(), len(actors)
                lives = (
                    live(one, f"{round_}.{n}", lambda acts=acts: next(acts) < ACTS) for n, one in enumerate(stores)
                )
                actors += [actor for group in await asyncio.gather(*lives) for actor in group]
            cutting.cancel()
            await proxy.heal()
            events = await all_events(stores[0])
            for store in stores:
                await store.close()
    assert proxy.counts.replies_cut
    assert unknown[True]
    canceled = [id_ for actor in actors for id_ in actor.canceled]
    assert judge(events, sum((actor.said for actor in actors), Counter()), canceled) == []
