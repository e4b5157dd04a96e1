"""Few ids and many lives: every change of a job beside every other one, from several processes on one store.

    python -m tests.stores.lives file|valkey|postgres [SECONDS] [SEED]

Prints what was done, and fails if
- the log has a move that the table of transitions does not allow, a number that is not the next, or a token twice,
- the number of answers `queued`, `claimed`, `replayed` or `purged` is not the number of their events,
- a job was answered `canceled` and completed all the same,
- a reader beside it saw other events, or another order, than a reader that comes later.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict

from holdfast.core.errors import JobNotFound, LeaseExpired, LeaseLost, StoreBusy
from holdfast.core.job import (
    Backoff,
    Cancel,
    ClaimRequest,
    Envelope,
    Extend,
    Finish,
    IdempotencyKey,
    JobKey,
    NewJob,
    Purge,
    Queued,
    Replayed,
    Result,
    SetResultTtl,
)
from holdfast.ids import new_id
from holdfast.opening import open_store
from holdfast.testing.traces import History
from holdfast.testing.traces.history import PurgeNumbers
from tests.log import all_events
from tests.places import PLACES

TENANT, LIVES, RACES = "acme", "lives", "races"
IDS = "abcdef"
OUTCOMES = ("complete", "complete", "fail", "retry", "release")
NO_DELAY = Backoff(0, 1.0, 0)


class Actor:
    """Does one thing after another, at random, and counts the answers."""

    def __init__(self, store, seed: str) -> None:
        self.store, self.random = store, random.Random(seed)
        self.said: Counter[str] = Counter()
        self.canceled: list[str] = []
        """Ids of races whose cancel was answered `canceled`."""
        self._held = []
        self._races = (f"{seed}-{n}" for n in itertools.count())

    async def act(self) -> None:
        acts = (self.enqueue, self.claim, self.finish, self.extend, self.cancel, self.race, self.replay, self.purge,
                self.keep, self.prune)  # fmt: skip
        act = self.random.choices(acts, (30, 25, 25, 3, 6, 10, 6, 5, 3, 3))[0]
        with contextlib.suppress(StoreBusy, LeaseLost, LeaseExpired, JobNotFound):
            await act()

    def some(self) -> list[JobKey]:
        return [JobKey(TENANT, LIVES, id_) for id_ in self.random.sample(IDS, self.random.choice((1, 1, 2)))]

    def new(self, key: JobKey, **fields) -> NewJob:
        envelope = Envelope("t", b"1", request_id=new_id(), backoff=NO_DELAY, **fields)
        return NewJob(key, envelope, replace_failed=self.random.random() < 0.5)

    async def enqueue(self) -> None:
        draw = self.random
        items = []
        for key in self.some():
            once = IdempotencyKey(draw.choice("12"), draw.choice(("until_terminal", "until_started")))
            items.append(
                self.new(
                    key,
                    max_attempts=draw.choice((1, 2, 3)),
                    result_ttl_ms=draw.choice((0, 50, 5000)),
                    idempotency=once if draw.random() < 0.3 else None,
                )
            )
        self.said["enqueued"] += sum(isinstance(answer, Queued) for answer in await self.store.enqueue(items))

    async def claim(self) -> None:
        lease_ms = self.random.choice((1000, 1000, 30_000))
        request = ClaimRequest(TENANT, (LIVES, RACES), self.random.choice((1, 3)), lease_ms, "w", self.random.random())
        jobs = (await self.store.claim(request)).jobs
        self.said["claimed"] += len(jobs)
        self._held += jobs

    async def finish(self) -> None:
        self.random.shuffle(self._held)
        items = []
        for job in self._held[: self.random.choice((1, 2, 3))]:
            outcome = self.random.choice(OUTCOMES)
            result = Result(b"1") if outcome == "complete" else None
            items.append(Finish(job.key, job.token, outcome, result, delay_ms=None if result else 0))
        del self._held[: len(items)]
        if items:
            await self.store.finish(items)

    async def extend(self) -> None:
        if self._held:
            job = self.random.choice(self._held)
            await self.store.extend([Extend(job.key, job.token, 1000)])

    async def cancel(self) -> None:
        await self.store.cancel([Cancel(key, only_waiting=self.random.random() < 0.3) for key in self.some()])

    async def race(self) -> None:
        """A cancel concurrent with the enqueue of the same id."""
        key = JobKey(TENANT, RACES, next(self._races))
        queued, canceled = await asyncio.gather(
            self.store.enqueue([self.new(key, result_ttl_ms=86_400_000)]),
            self.store.cancel([Cancel(key)]),
            return_exceptions=True,
        )
        if not isinstance(queued, BaseException):
            self.said["enqueued"] += isinstance(queued[0], Queued)
        if canceled == ["canceled"]:
            self.canceled.append(key.id)

    async def replay(self) -> None:
        self.said["replayed"] += sum(isinstance(a, Replayed) for a in await self.store.replay(self.some()))

    async def purge(self) -> None:
        self.said["purged"] += (await self.store.purge([Purge(key) for key in self.some()])).count("purged")

    async def keep(self) -> None:
        await self.store.set_result_ttl([SetResultTtl(key, self.random.choice((0, 30, 5000))) for key in self.some()])

    async def prune(self) -> None:
        await self.store.prune(100)
        await self.store.reap(100, self.random.random())


async def live(store, seed: str, goes_on, tasks: int = 4) -> list[Actor]:
    """Let some actors act on a store for as long as it `goes_on`."""
    actors = [Actor(store, f"{seed}.{n}") for n in range(tasks)]

    async def run(actor: Actor) -> None:
        while goes_on():
            await actor.act()

    await asyncio.gather(*map(run, actors))
    return actors


def judge(events, said: Counter[str], canceled: list[str]) -> list[str]:
    """What the log and the answers say that cannot both be true."""
    wrong = []
    stories = defaultdict(list)
    for event in events:
        stories[event.queue, event.job_id].append(event)
    tokens = [event.token for event in events if event.kind == "claimed"]
    if len(set(tokens)) < len(tokens):
        wrong.append("a token was granted twice")
    for (queue, id_), story in stories.items():
        history = History(extensions=False)
        try:
            for event in story:
                history.add(event)
        except AssertionError as error:
            wrong.append(f"{queue}/{id_}: {error}")
    purges = PurgeNumbers()
    try:
        for event in events:
            purges.add(event)
    except AssertionError as error:
        wrong.append(str(error))
    kinds = Counter(event.kind for event in events)
    wrong += [f"{said[kind]} answers and {kinds[kind]} events: {kind}" for kind in said if said[kind] != kinds[kind]]
    for id_ in canceled:
        story = [event.kind for event in stories[RACES, id_]]
        if story[-1:] != ["canceled"]:
            wrong.append(f"answered canceled: {id_} {story}")
    return wrong


# As a program ---------------------------------------------------------------------------------------------------


async def _child(url: str, seconds: float, seed: str) -> None:
    until = time.monotonic() + seconds
    store = await open_store(url)
    actors = await live(store, seed, lambda: time.monotonic() < until, tasks=6)
    await store.close()
    said = sum((actor.said for actor in actors), Counter())
    sys.stdout.write(json.dumps([said, [id_ for actor in actors for id_ in actor.canceled]]))


def _ran(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


async def _parent(url: str, seconds: float, seed: str) -> int:
    store = await open_store(url)
    command = [sys.executable, "-m", "tests.stores.lives", "child", url, str(seconds)]
    children = [asyncio.create_task(asyncio.to_thread(_ran, [*command, f"{seed}.{n}"])) for n in (1, 2)]
    seen, after, last = [], None, False
    while True:
        page = await store.events(None, after, 200)
        seen += page.events
        after = page.next
        if not page.more:
            if last:
                break
            last = all(child.done() for child in children)
            await asyncio.sleep(0.5 if last else 0.01)
    said, canceled = Counter(), []
    for child in children:
        theirs, races = json.loads(await child)
        said, canceled = said + Counter(theirs), canceled + races
    again = await all_events(store, limit=1000)
    await store.close()
    wrong = judge(seen, said, canceled)
    # A store trims its log: who comes later sees the last events alone.
    if not again or [event.offset for event in seen][-len(again) :] != [event.offset for event in again]:
        wrong.append(f"a reader beside it saw {len(seen)} events, one that came later {len(again)}, or another order")
    figures = f"{len(seen)} events, {dict(said)}, {len(canceled)} races won by the cancel, {len(wrong)} wrong"
    sys.stdout.write("\n".join([figures, *wrong[:20], ""]))
    return 1 if wrong else 0


def main(kind: str, seconds: str = "60", seed: str = "1") -> int:
    with PLACES[kind]() as url:
        return asyncio.run(_parent(url, float(seconds), seed))


if __name__ == "__main__":
    if sys.argv[1] == "child":
        asyncio.run(_child(sys.argv[2], float(sys.argv[3]), sys.argv[4]))
    else:
        sys.exit(main(*sys.argv[1:]))
