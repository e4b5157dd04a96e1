"""A storm: producers, workers and readers of three tenants while the server loses what it acknowledged last.

    python -m tests.stores.postgres.storm           crashes, failovers and restores, direct and through pgbouncer
    python -m tests.stores.postgres.storm crash --losses 20 --pooler

    crash       synchronous_commit=off; a process of the server is killed, and all of it begins anew
    failover    the primary is killed; an asynchronous standby that has got nothing for a while takes over
    restore     a dump is loaded in place of what came after it, with all clients connected

Each client has a memory of its own, as if it were a process of its own. Prints what was lost, and fails if
- a job came into the hands of another tenant or queue, or a token was granted twice,
- an event is in the log that a reader has neither seen nor learned of (EventsTrimmed),
- a job that is in the store in the end was not completed, or one is missing that was acknowledged before the standby
  or the dump was made, or after the last loss.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections import Counter

from holdfast.core.errors import EventsTrimmed, StoreError
from holdfast.core.job import TERMINAL, ClaimRequest, Envelope, Finish, Job, JobKey, JobState, NewJob, Result
from holdfast.opening import open_store
from holdfast.stores.postgres import lanes
from holdfast.stores.postgres.log import parse_offset
from holdfast.testing.postgres import PostgresServer
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.postgres.bouncer import PROGRAM, bouncing
from tests.stores.postgres.losses import Standby, crashed, dump, restore

Outcome = tuple[dict[str, int], list[str]]
TENANTS = ("acme", "beta", "mallory")
IDLE = "idle"
"""A queue that has workers of its own, which wait for its jobs and get them by direct hand-off."""
LEASE_MS = 3000
PATIENCE_S = 120


class Storm:
    """The clients, and what they have seen."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.wrong: list[str] = []
        self.queued: dict[JobKey, float] = {}
        self.losses: list[float] = []
        self.kept: list[tuple[float, float]] = []
        """Of what was acknowledged in between nothing may be lost."""
        self.tokens: dict[int, JobKey] = {}
        self.handed_off = 0
        self.seen: dict[str, set[str]] = {}
        self.gaps: dict[str, list[tuple[str, str]]] = {}
        self.refused: Counter[str] = Counter()
        self.producing = True
        self.running = True

    async def client(self):
        """A store that shares no memory with others."""
        while True:
            with contextlib.suppress(StoreError):
                store = await open_store(self.url)
                lanes.forget(store.address.identity)
                return store
            await asyncio.sleep(0.1)

    async def trying(self, act):
        """Do it; None if the store refused, as it does while the server is away."""
        try:
            return await act()
        except StoreError as error:
            self.refused[type(error).__name__] += 1
            await asyncio.sleep(0.05)
            return None

    async def produce(self, tenant: str) -> None:
        """New queues and priorities all the time: each is a lane, or a mark on one, that may be lost."""
        store = await self.client()
        for n in itertools.count():
            if not self.producing:
                break
            queue = IDLE if self.random.random() < 0.1 else f"q{n // 15}"
            items = []
            for k in range(self.random.choice((1, 1, 3))):
                key = JobKey(tenant, queue, f"{n}.{k}")
                said = json.dumps(key).encode()
                # Each lease that is lost counts as an attempt; none may be the last one.
                rank, request = self.random.randrange(10), f"{tenant}.{n}.{k}"
                envelope = Envelope("t", said, priority=rank, request_id=request, max_attempts=1000)
                items.append(NewJob(key, envelope))
            while self.producing and await self.trying(lambda items=items: store.enqueue(items)) is None:
                pass
            if self.producing:
                self.queued.update(dict.fromkeys((item.key for item in items), time.monotonic()))
            await asyncio.sleep(self.random.uniform(0, 0.01))
        await store.close()

    async def work(self, tenant: str | None, name: str, only: str = "") -> None:
        store = await self.client()
        came: list[Job] = []
        post = store.open_inbox(
            lambda claimed, _: came.extend(claimed.jobs)
        )  # None with a pooler: nothing is handed off.
        claim = store.claim if post is None else post.claim
        while self.running:
            queues = [only] if only else await self.trying(lambda: self._queues(store, tenant))
            jobs = []
            for some in _batched(queues or []):
                names = tuple(some)
                claimed = await self.trying(lambda names=names: claim(ClaimRequest(tenant, names, 5, LEASE_MS, name)))
                jobs += claimed.jobs if claimed else []
            self.handed_off += len(came)
            jobs += came
            came.clear()
            for job in jobs:
                self._judge(tenant, job)
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.uniform(0, 1.0))  # Long enough for the lease to be lost meanwhile.
            done = [Finish(job.key, job.token, "complete", Result(b"1")) for job in jobs]
            if done:
                await self.trying(lambda done=done: store.finish(done))
            else:
                await asyncio.sleep(0.02)
        if post is not None:
            await post.close()
        await store.close()

    async def _queues(self, store, tenant: str | None) -> list[str]:
        names = TENANTS if tenant is None else (tenant,)
        stats = [stat for name in names for stat in await store.stats(name)]
        return sorted({stat.queue for stat in stats if any(stat.counts[s] for s in JobState if s not in TERMINAL)})

    def _judge(self, tenant: str | None, job) -> None:
        said = JobKey(*json.loads(bytes(job.envelope.payload)))
        if said != job.key or tenant not in (None, job.tenant):
            self.wrong.append(f"{said} was handed to {tenant or 'all'} as {job.key}")
        if job.token in self.tokens:
            self.wrong.append(f"the token {job.token} of {self.tokens[job.token]} was granted again, for {job.key}")
        self.tokens[job.token] = job.key

    async def read(self, tenant: str | None) -> None:
        store = await self.client()
        name = tenant or ""
        seen, gaps = self.seen.setdefault(name, set()), self.gaps.setdefault(name, [])
        after = None
        while True:
            last = not self.running
            try:
                page = await store.events(tenant, after, 500)
            except EventsTrimmed as gap:
                gaps.append((gap.from_, gap.to))
                after = gap.to
                continue
            except StoreError as error:
                self.refused[type(error).__name__] += 1
                await asyncio.sleep(0.05)
                continue
            for event in page.events:
                if tenant not in (None, event.tenant):
                    self.wrong.append(f"the stream of {tenant} has an event of {event.tenant}")
                if event.offset in seen:
                    self.wrong.append(f"{event.offset} came twice")
                seen.add(event.offset)
            after = page.next
            if last and not page.more:
                break
            if not page.more:
                await asyncio.sleep(0.02)
        await store.close()

    def keep(self) -> None:
        """Everything acknowledged since the last loss is in the copy that is made next."""
        self.kept.append((self.losses[-1] if self.losses else 0.0, time.monotonic()))

    async def run(self, losses: int, lose) -> dict[str, int]:
        """Run all actors at once, then `lose` this often, then to the end. Returns the outcome.

        Between two losses enough time passes for some of it to be kept, or too little.
        """
        producers = [asyncio.create_task(self.produce(tenant)) for tenant in TENANTS]
        others = [asyncio.create_task(self.work(tenant, f"worker of {tenant}")) for tenant in (*TENANTS, None)]
        others += [asyncio.create_task(self.work(tenant, f"waits for {tenant}", IDLE)) for tenant in TENANTS]
        others += [asyncio.create_task(self.read(tenant)) for tenant in (*TENANTS, None)]
        try:
            for _ in range(losses):
                before = len(self.queued)
                more = self.random.randrange(60, 400)
                await self._until(lambda before=before, more=more: len(self.queued) > before + more)
                await lose()
                self.losses.append(time.monotonic())
            before = len(self.queued)
            await self._until(lambda: len(self.queued) > before + 60)
            self.producing = False
            await asyncio.gather(*producers)
            self.keep()
            return await self._finish(others)
        finally:
            for task in (*producers, *others):
                task.cancel()
            await asyncio.gather(*producers, *others, return_exceptions=True)

    async def _until(self, holds) -> None:
        await eventually(holds, patience_s=PATIENCE_S)

    async def _finish(self, others) -> dict[str, int]:
        store = await self.client()
        await eventually(lambda: self._queues(store, None), lambda left: not left, patience_s=PATIENCE_S, every_s=0.2)
        self.running = False
        await asyncio.gather(*others)
        log = await all_events(store, limit=1000)
        for name, seen in self.seen.items():
            unseen = [e.offset for e in log if name in ("", e.tenant) and e.offset not in seen]
            self.wrong += [
                f"{name or 'the reader of all'} missed {at}" for at in unseen if not self._reported(name, at)
            ]
        keys = list(self.queued)
        found = [job for n in range(0, len(keys), 500) for job in await store.get(keys[n : n + 500])]
        gone = [key for key, job in zip(keys, found, strict=True) if job is None]
        for key in gone:
            if any(since < self.queued[key] <= until for since, until in self.kept):
                self.wrong.append(f"{key} is lost, and should have been kept")
        left = [job for job in found if job is not None and job.state is not JobState.COMPLETED]
        self.wrong += [f"{job.key} is {job.state}" for job in left]
        await store.close()
        return {
            "jobs acknowledged": len(keys), "of them lost": len(gone), "leases granted": len(self.tokens),
            "of them by hand-off": self.handed_off, "losses": len(self.losses),
            "events in the log": len(log), "gaps reported": sum(map(len, self.gaps.values())),
            "refused, to be tried again": sum(self.refused.values()), "wrong": len(self.wrong),
        }  # fmt: skip

    def _reported(self, name: str, offset: str) -> bool:
        place = parse_offset(offset)
        return any(parse_offset(from_) < place <= parse_offset(to) for from_, to in self.gaps[name])


def _batched(names):
    return [names[n : n + 20] for n in range(0, len(names), 20)]


# The losses -----------------------------------------------------------------------------------------------------


async def crash(losses: int, seed: int, *, pooler: bool) -> Outcome:
    with PostgresServer(synchronous_commit=False) as server, _before(server, pooler) as url:
        storm = Storm(url, seed)

        async def lose() -> None:
            struck = False
            while not struck:  # A connection that was there a moment ago may be closed.
                rows = server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'client%'")
                with contextlib.suppress(ProcessLookupError):
                    await crashed(server, int(storm.random.choice(rows)[0]))
                    struck = True

        return await storm.run(losses, lose), storm.wrong


async def failover(losses: int, seed: int, *, pooler: bool) -> Outcome:
    standbys: list[Standby] = []
    with PostgresServer() as first, _bouncer(first, pooler) as bouncer:
        current = [first]
        storm = Storm(_url(first, bouncer), seed)

        async def lose() -> None:
            storm.keep()
            standby = await asyncio.to_thread(Standby, current[0])
            standbys.append(standby)
            before = len(storm.queued)
            await storm._until(lambda: len(storm.queued) > before + 30)
            current[0].kill()
            if bouncer is None:
                current[0] = await standby.take_over(first.port)
            else:
                current[0] = await standby.take_over()
                bouncer.lead_to(current[0])

        try:
            return await storm.run(losses, lose), storm.wrong
        finally:
            for standby in standbys:
                standby.close()


async def restored(losses: int, seed: int, *, pooler: bool) -> Outcome:
    with PostgresServer(durable=False) as server, _before(server, pooler) as url:
        storm = Storm(url, seed)

        async def lose() -> None:
            storm.keep()
            text = await asyncio.to_thread(dump, server)
            before = len(storm.queued)
            await storm._until(lambda: len(storm.queued) > before + 30)
            await restore(server, text)

        return await storm.run(losses, lose), storm.wrong


@contextlib.contextmanager
def _bouncer(server, pooler: bool):
    with bouncing(server) if pooler else contextlib.nullcontext() as bouncer:
        yield bouncer


@contextlib.contextmanager
def _before(server, pooler: bool):
    with _bouncer(server, pooler) as bouncer:
        yield _url(server, bouncer)


def _url(server, bouncer) -> str:
    return server.url() if bouncer is None else bouncer.url("postgres", listen=0)


WAYS = {"crash": (crash, 20), "failover": (failover, 3), "restore": (restored, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", choices=[*WAYS, []], help="all, if none is named")
    parser.add_argument("--losses", type=int, help="how many of each")
    parser.add_argument("--pooler", action=argparse.BooleanOptionalAction, help="through pgbouncer; both if not said")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failed = False
    for way in given.ways or WAYS:
        run, losses = WAYS[way]
        for pooler in (False, True) if given.pooler is None else (given.pooler,):
            if pooler and PROGRAM is None:
                print(f"{way}, pgbouncer: left out, it is not installed here", flush=True)  # noqa: T201 - the report
                continue
            figures, wrong = asyncio.run(run(given.losses or losses, given.seed, pooler=pooler))
            said = ", ".join(f"{name} {number}" for name, number in figures.items())
            print(f"{way}, {given.losses or losses} times, {'pgbouncer' if pooler else 'direct'}: {said}", flush=True)  # noqa: T201 - the report
            for what in wrong[:20]:
                print("   ", what)  # noqa: T201
            failed |= bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main())
