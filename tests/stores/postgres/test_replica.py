"""A primary and a replica that follows it by streaming replication; the primary dies, the replica takes over.

Invariants verified:
- with synchronous replication nothing acknowledged is lost, nothing doubled, attempts and tokens are exact
- workers and producers with both hosts in their URL find the new primary by themselves
- nothing is ever decided on a replica, and a process that was led to one for a moment is none the worse for it
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.core.errors import StoreUnavailable
from holdfast.core.job import Cancel, Finish, JobState
from holdfast.opening import make_store, open_store
from holdfast.store import ListQuery
from holdfast.testing.postgres import ROLE, UNPRIVILEGED, PostgresServer
from holdfast.testing.processes import HOST
from holdfast.testing.proxy import Proxy
from tests.chaos import ledger
from tests.chaos.workers import notes
from tests.eventually import eventually
from tests.stores.load import claim_one, drained, end_gently, key, new, under_way, wish
from tests.stores.postgres.support import judge, opened


@pytest.fixture
def pair():
    """A primary whose commits wait for its replica, and that replica."""
    with PostgresServer() as primary:
        directory = Path(tempfile.mkdtemp(prefix="holdfast-replica-"))
        try:
            with replica_of(primary, directory) as replica:
                yield primary, replica
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def replica_of(primary, directory):
    command = [
        str(primary._bin / "pg_basebackup"),
        "-D",
        str(directory / "data"),
        "-d",
        primary.url(),
        "-R",
        "-X",
        "stream",
    ]
    subprocess.run([*command, "--checkpoint=fast", "--no-sync"], check=True, capture_output=True)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", UNPRIVILEGED, str(directory)], check=True)
    source = f"host={HOST} port={primary.port} user={ROLE} application_name=replica"
    replica = PostgresServer(directory=directory, primary_conninfo=source)
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'replica'")
    primary.sql("SELECT pg_reload_conf()")
    return replica


def url_of(pair, **options):
    """Both hosts, as the driver takes them."""
    primary, replica = pair
    hosts = f"{HOST}:{primary.port},{HOST}:{replica.port}"
    words = "&".join(f"{name}={value}" for name, value in options.items())
    return f"postgresql://{ROLE}@{hosts}/postgres?target_session_attrs=read-write&{words}"


async def in_step(primary):
    sql = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
    await eventually(lambda: primary.sql(sql))


async def replayed(primary, replica):
    """The replica shows all that is committed: that it has been written there is not enough."""
    lsn = primary.sql("SELECT pg_current_wal_flush_lsn()")[0][0]
    await eventually(lambda: replica.sql(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'") == [["t"]])


async def test_a_failover_under_load_loses_no_job(pair, zygote, log):
    primary, replica = pair
    await in_step(primary)
    url = url_of(pair, test_clock=1, timeout_s=2)
    producers = [await zygote.start(url, role="produce", log=log, name=f"p{n}") for n in range(2)]
    workers = [await zygote.start(url, log=log, lease_s=1, concurrency=5) for _ in range(2)]
    await under_way(log, producers, workers)
    await eventually(lambda: len(notes(log, "completed")) > 50, patience_s=60)
    await asyncio.to_thread(primary.kill)
    before = len(notes(log, "queued")), len(notes(log, "completed"))
    replica.sql("SELECT pg_promote()")
    await eventually(lambda: len(notes(log, "queued")) > before[0] + 30, patience_s=60)
    await eventually(lambda: len(notes(log, "completed")) > before[1] + 30, patience_s=60)
    await end_gently(zygote, *producers)
    async with Queue(url, tenant="acme") as queue:
        counts = await drained(queue.store, "acme", "default", step_ms=300, patience_s=60)
        await end_gently(zygote, *workers)
        jobs = {k.id: job for k, job in (await judge(queue.store)).items()}
        assert counts == {JobState.COMPLETED: len(jobs)}
        queued = [id_ for id_, *_ in notes(log, "queued")]
        assert len(queued) == len(set(queued))
        assert set(queued) <= set(jobs), "an acknowledged enqueue was lost"
        for id_, _, token, _ in notes(log, "completed"):
            assert jobs[id_].token == token, f"the acknowledged completion of {id_} was undone"
        await ledger.check(queue.store, "acme", list(jobs))


async def test_a_replica_alone_is_refused_with_the_reason(pair):
    primary, replica = pair
    await in_step(primary)
    store = await open_store(primary.url())
    await store.enqueue([new("x")])
    await store.close()
    with pytest.raises(StoreUnavailable, match=r"replica|read-only"):
        await open_store(replica.url())
    with pytest.raises(StoreUnavailable):
        await open_store(replica.url(target_session_attrs="read-write"))


async def test_an_address_that_leads_to_a_replica_briefly_is_tried_again(pair):
    """Whatever a handle did meanwhile, it continues when the address leads to the primary again."""
    primary, replica = pair
    await in_step(primary)
    async with Proxy(HOST, primary.port) as proxy, opened(f"postgresql://{ROLE}@{HOST}:{proxy.port}/postgres") as store:
        await store.enqueue([new("a"), new("b"), new("c")])
        leased = await claim_one(store)
        known = dict(store._cache.by_number)
        await replayed(primary, replica)
        for act in (
            lambda: store.claim(wish(1)),
            lambda: store.get([key("a")]),
            lambda: store.list(ListQuery("acme", "mail", frozenset(JobState), 10)),
            lambda: store.events("acme", None, 5),
            lambda: store.cancel([Cancel(key("b"))]),
            lambda: store.finish([Finish(leased.key, leased.token, "complete")]),
            lambda: store.reap(10, 0.5),
            lambda: store.enqueue([new("d")]),
        ):
            proxy.lead_to(replica.port)
            proxy.drop_all()
            store._client.drop_idle()  # Nothing is sent on a line that is cut.
            with pytest.raises(StoreUnavailable, match="is a replica"):
                await act()
            proxy.lead_to(primary.port)
            await act()
        assert dict(store._cache.by_number) == known


async def test_a_connection_to_a_replica_is_closed(pair):
    """As with a pooler: the connection was made when the address led to the primary."""
    primary, replica = pair
    await in_step(primary)
    async with opened(primary.url()) as store:
        await store.enqueue([new("a")])
        await replayed(primary, replica)
        client = make_store(replica.url())._client  # Not open: it takes a connection as it is.
        for name, *args in (
            ("check_cache", store._cache.fingerprint()),
            ("add_queue", "q", store._cache.fingerprint()),
        ):
            with pytest.raises(StoreUnavailable, match="replica"):
                await client.rows(name, *args)
            assert client._idle == []
        await client.close()
