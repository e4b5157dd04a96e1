"""Holdfast on a FoundationDB server of this machine, beside what the server could do at most.

    python -m bench.foundationdb [--only raw,rates,idle,conflicts,tenants,depth,crowd] [--processes 1]

It needs `fdbserver`, see `holdfast.testing.fdb.server`. Depths and idle tenants are written below the store: what is
timed is claiming.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import fdb
from msgspec.structs import replace

from bench import depth, ours
from bench.measure import MOVED, SETTLED, Figures, percentile
from bench.ours import Settings
from holdfast import Queue
from holdfast.core.job import ClaimRequest, Finish, Job, JobKey
from holdfast.ids import new_id
from holdfast.opening import open_store
from holdfast.stores.foundationdb import client, lanes, records
from holdfast.stores.foundationdb.store import FdbStore
from holdfast.testing.fdb.server import FdbServer

NAME = "FoundationDB"
ADDED = "raw: ids added"
BATCH, MOVES = 100, 300
JOBS = 20_000
CLAIMERS, CLAIM, CLAIMS = (1, 4, 16), 5, 600
SETTINGS = Settings()
AT_ONCE = 2_000
"""Jobs that are written below the store in one transaction."""
IDLE_TENANTS = 1_000_000
LEASE_MS = 60_000
SETTLE_S = 30
"""While the server stores what was written in one go, it is slower."""
PARTS = ("raw", "rates", "idle", "conflicts", "tenants", "depth", "crowd")

assert client.API_VERSION  # Its import has chosen the version of the API.


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.foundationdb", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--processes", type=int, default=1, help="of the server")
    parser.add_argument("--deepest", type=int, default=depth.DEPTHS[-1])
    parser.add_argument("--idle-tenants", type=int, default=IDLE_TENANTS)
    asked = parser.parse_args()
    figures = Figures()
    with FdbServer(asked.processes) as server:
        for part in asked.only:
            began = time.perf_counter()
            asyncio.run(_measure(part, figures, server, asked))
            print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
            server.command("writemode on; clearrange '' \\xff")
    for measure, subjects in figures.as_dict().items():
        for found in subjects.values():
            print(f"{measure:48} {found['median']:12,.2f}   ({found['least']:,.2f} to {found['most']:,.2f})")


async def _measure(part: str, figures: Figures, server: FdbServer, asked: argparse.Namespace) -> None:
    url = server.url(prefix=f"bench{part}")
    match part:
        case "raw":
            await asyncio.to_thread(raw, figures, server)
        case "rates":
            await ours.fill(figures, NAME, url, JOBS)
            await ours.empty(figures, NAME, url, JOBS, SETTINGS)
        case "idle":
            await ours.idle(figures, NAME, url, SETTINGS)
        case "conflicts":
            for claimers in CLAIMERS:
                await conflicts(figures, f"{url}{claimers}", claimers)
        case "tenants":
            await tenants(figures, url)
        case "depth":
            await depths(figures, url, asked.deepest)
        case "crowd":
            await idle_tenants(figures, url, asked.idle_tenants)


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some


def raw(figures: Figures, server: FdbServer) -> None:
    """Transactions that only move ids between two ranges, 100 at a time, one after another: no jobs, no rules."""
    db = fdb.open(server.cluster_file)
    for measure, settle in ((MOVED, False), (SETTLED, True)):
        began = time.perf_counter()
        for ids in _batches((b"%026d" % n for n in range(BATCH * MOVES)), BATCH):
            tr = db.create_transaction()
            for id_ in ids:
                tr[b"ready" + id_] = b""
            tr.commit().wait()
        figures.add(ADDED, NAME, BATCH * MOVES / (time.perf_counter() - began))
        began = time.perf_counter()
        for _ in range(MOVES):
            tr = db.create_transaction()
            ids = [row.key[5:] for row in tr.get_range(b"ready", b"readz", limit=BATCH)]
            for id_ in ids:
                del tr[b"ready" + id_]
                tr[b"leased" + id_] = b""
            tr.commit().wait()
            if settle:
                tr = db.create_transaction()
                for id_ in ids:
                    del tr[b"leased" + id_]
                tr.commit().wait()
        figures.add(measure, NAME, BATCH * MOVES / (time.perf_counter() - began))
        tr = db.create_transaction()
        del tr[b"leased":b"leasee"]
        tr.commit().wait()


async def conflicts(figures: Figures, url: str, claimers: int) -> None:
    """Handles that claim from one queue and never pause, 5 jobs at a time: how many of their commits ran again."""
    async with Queue(url, tenant="bench") as queue:
        await ours.bulk(queue, CLAIMS * CLAIM)
    stores = [await _open(url) for _ in range(claimers)]
    took: list[float] = []

    async def claim(store: FdbStore) -> None:
        while len(took) < CLAIMS:
            began = time.perf_counter()
            jobs = (await store.claim(ClaimRequest("bench", ("bench",), CLAIM, LEASE_MS, new_id()))).jobs
            if not jobs:
                return
            took.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*map(claim, stores))
    seconds = time.perf_counter() - began
    again = sum(store._transactions.conflicts for store in stores)  # noqa: SLF001 - it is not in the contract
    figures.add(f"{claimers} claimers: conflicts a claim", NAME, again / len(took))
    figures.add(f"{claimers} claimers: claims a second", NAME, len(took) / seconds)
    figures.add(f"{claimers} claimers: p99 ms", NAME, percentile(took, 99))
    for store in stores:
        await store.close()


async def tenants(figures: Figures, url: str) -> None:
    """Claims of 100 for all tenants, where one has 20,000 jobs waiting, and where 10,000 have them."""
    store = await _open(url)
    ends = depth.TENANTS[0], depth.TENANTS[-1]
    for many in ends:
        keys = [JobKey(f"tenant-{n % many}", f"shared-{many}", f"{n:07}") for n in range(depth.SHARED)]
        await depth._fill(store, keys)  # noqa: SLF001
    for n in range(depth.TIMES):
        for many in ends:
            took = await _claim(store, ClaimRequest(None, (f"shared-{many}",), BATCH, LEASE_MS, "bench"))
            if n >= depth.TIMES // 8:
                figures.add(depth.measure_tenants(many), NAME, took)
    await store.close()


async def depths(figures: Figures, url: str, deepest: int) -> None:
    """Claims of 100 with few and with many jobs waiting, in turns."""
    store = await _open(url)
    ends = depth.DEPTHS[0], deepest
    for many in ends:
        await multiply(store, f"depth-{many}", many)
    for n in range(depth.TIMES):
        for many in ends:
            took = await _claim(store, ClaimRequest(f"depth-{many}", ("bench",), BATCH, LEASE_MS, "bench"))
            if n >= depth.TIMES // 8:
                figures.add(depth.measure(BATCH, many), NAME, took)
    await store.close()


async def idle_tenants(figures: Figures, url: str, idle: int) -> None:
    """Claims for all tenants, before and after tenants have come that have no work."""
    store = await _open(url)
    await multiply(store, "busy", 10_000)
    for many in (0, idle):
        await asyncio.to_thread(_write, store, _idle(store, many))
        await asyncio.sleep(SETTLE_S if many else 0)
        for n in range(depth.TIMES):
            took = await _claim(store, ClaimRequest(None, ("bench",), BATCH, LEASE_MS, "bench"))
            if n >= depth.TIMES // 8:
                figures.add(f"claim of {BATCH}, {many:,} idle tenants", NAME, took)
    await store.close()


def _idle(store: FdbStore, tenants: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys of tenants that have one job, which is no longer waiting."""
    keys, one = store._transactions.keys, (1).to_bytes(8, "little")  # noqa: SLF001
    for n in range(tenants):
        name = f"idle-{n:07}"
        yield keys.tenant_jobs(name), one
        yield keys.lane_jobs(name, "bench"), one
        yield keys.job(JobKey(name, "bench", "0")), b"\x00" + bytes(200)


async def multiply(store: FdbStore, tenant: str, jobs: int) -> None:
    """Make `jobs` waiting jobs of one, below the store."""
    key = JobKey(tenant, "bench", "template")
    await depth._fill(store, [key])  # noqa: SLF001
    (job,) = await store.get([key])
    assert job is not None
    made = (replace(job, id=f"{n:08}", seq=job.seq + 8 * n) for n in range(1, jobs))
    counts: Counter[bytes] = Counter()
    transactions = store._transactions  # noqa: SLF001
    await asyncio.to_thread(_write, store, _pairs(store, made))
    for one, by in records.counted(transactions.keys, job, None).items():
        counts[one] = by * (jobs - 1)

    async def count(work: Any) -> None:
        for one, by in counts.items():
            work.count(one, by)
        await lanes.point(work, tenant, "bench", job.visible_at)

    await transactions.change(count)


def _pairs(store: FdbStore, jobs: Iterable[Job]) -> Iterator[tuple[bytes, bytes]]:
    keys = store._transactions.keys  # noqa: SLF001
    for job in jobs:
        yield keys.job(job.key), b"\x00" + records.pack_job(job, None)
        yield from records.indexed(keys, job).items()


def _write(store: FdbStore, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    db = fdb.open(store._address.cluster_file)  # noqa: SLF001
    under_way: list[Any] = []
    for some in _batches(pairs, AT_ONCE):
        tr = db.create_transaction()
        for key, value in some:
            tr[key] = value
        under_way.append((tr, tr.commit()))
        if len(under_way) > 4:
            under_way[0][1].wait()
            del under_way[0]
    for _, commit in under_way:
        commit.wait()


async def _claim(store: FdbStore, request: ClaimRequest) -> float:
    """Milliseconds. What was claimed is given back."""
    began = time.perf_counter()
    jobs = (await store.claim(request)).jobs
    took = (time.perf_counter() - began) * 1000
    assert len(jobs) == request.limit
    await store.finish([Finish(job.key, job.token, "release") for job in jobs])
    return took


async def _open(url: str) -> FdbStore:
    store = await open_store(url)
    assert isinstance(store, FdbStore)
    return store


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
