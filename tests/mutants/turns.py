"""Bugs in who gets which job, and in what one tenant sees of another. They reach into the stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappush
from typing import Any

from msgspec.structs import replace

from holdfast.core import fairness
from holdfast.core.job import Claimed, ClaimRequest, Job, JobKey
from holdfast.store import Hint, Listener, QueueStats, Signal
from holdfast.tables import SettingsTable
from tests.mutants.planting import FACES, Bug, Planted, mutant

# Order --------------------------------------------------------------------------------------------------------


def _reorder(bug: Bug, place: Callable[[Job], tuple[int, int, int]]) -> None:
    """Have the memory store keep ready jobs in another order."""

    def put(original: Planted, index: Any, job: Job, now: int) -> None:
        original(index, job, now)
        ready = index.tenants[job.tenant].ready
        ready.entries = [(*place(job), job) for *_, job in ready.entries]
        heapify(ready.entries)

    bug.around(bug.memory("queues").QueueIndex, "put", put)


@mutant("CLAIM-2")
def priority_ignored(bug: Bug) -> None:
    """Jobs are ordered only by time."""

    def new_row(original: Planted, *args: Any) -> Any:
        row = original(*args)
        return (*row[:4], 4, *row[5:])

    _reorder(bug.at("memory"), lambda job: (0, job.visible_at, job.seq))
    bug.at("file").around(bug.file("rows"), "new_row", new_row)


@mutant("CLAIM-2")
def fifo_reversed(bug: Bug) -> None:
    """Of two jobs that became visible at the same moment, the one sent last comes first."""
    _reorder(bug.at("memory"), lambda job: (-job.envelope.priority, job.visible_at, -job.seq))
    next_job = (bug.file("claims")._Picker, "_next")
    bug.at("file").query("VISIBLE", "ORDER BY visible_at, seq", "ORDER BY visible_at, seq DESC", used_by=next_job)


@mutant("CLAIM-1", "ENQ-5", stores=("memory",))
def delayed_job_promoted_twice(bug: Bug) -> None:
    """A due job is queued twice."""

    queues = bug.memory("queues")

    def promote(original: Planted, index: Any, now: int) -> None:
        due = [entry[2] for entry in index.later.entries if entry[0] <= now and queues._is_later(entry)]
        original(index, now)
        for job in due:
            entry = (-job.envelope.priority, job.visible_at, job.seq + 0.5, job.snapshot())
            heappush(index.tenants[job.tenant].ready.entries, entry)

    bug.around(queues.QueueIndex, "promote", promote)


@mutant("CLAIM-5")
def paused_queue_hands_out(bug: Bug) -> None:
    """A pause shows in the stats but stops nothing."""

    def first(original: Planted, lane: Any) -> Any:
        paused, lane.paused = lane.paused, False
        job = original(lane)
        lane.paused = paused
        return job

    for name in ("has_ready", "take_ready"):
        bug.at("memory").around(bug.memory("queues").TenantQueue, name, first)
    bug.at("file").sql("lane_paused", "SELECT paused", "SELECT 0")
    bug.at("file").sql("lanes_entering", "AND paused = 0", "")


@mutant("CLAIM-3", stores=FACES)
def next_look_is_never_returned(bug: Bug) -> None:
    """An empty claim does not return when the next job is due."""

    async def claim(original: Planted, store: Any, request: ClaimRequest) -> Claimed:
        return replace(await original(store, request), next_at=None)

    bug.answer("claim", claim)


@mutant("CLAIM-3", stores=FACES)
def wake_up_is_lost(bug: Bug) -> None:
    """A job that becomes visible sends no hint."""

    def listen(original: Planted, store: Any, listener: Listener, *rest: Any) -> Any:
        def dropping(signal: Signal) -> None:
            if signal.hint is not Hint.READY:
                listener(signal)

        return original(store, dropping, *rest)

    bug.around(bug.face, "listen", listen)


@mutant("CANCEL-2", stores=FACES)
def running_handler_gets_no_hint_of_its_cancel(bug: Bug) -> None:
    """Canceling a running job sends no hint."""

    def listen(original: Planted, store: Any, listener: Listener, *rest: Any) -> Any:
        def dropping(signal: Signal) -> None:
            if signal.hint is not Hint.CANCELED:
                listener(signal)

        return original(store, dropping, *rest)

    bug.around(bug.face, "listen", listen)


@mutant("CLAIM-1", stores=FACES)
def claim_gives_more_than_was_asked_for(bug: Bug) -> None:
    """A claim of N returns N + 1 jobs."""

    async def claim(original: Planted, store: Any, request: ClaimRequest) -> Claimed:
        return await original(store, replace(request, limit=request.limit + 1))

    bug.answer("claim", claim)


# Turns --------------------------------------------------------------------------------------------------------


def _around_cost(bug: Bug, cost: Planted) -> None:
    bug.at("memory").around(SettingsTable, "turn_cost", cost)
    bug.at("file").around(bug.file("transaction").Transaction, "cost", cost)


@mutant("TENANT-4")
def fairness_off(bug: Bug) -> None:
    """A turn costs nothing: the first tenant is served until it has no more."""

    def cost(*_: Any) -> int:
        return 0

    _around_cost(bug, cost)


@mutant("TENANT-4")
def weights_ignored(bug: Bug) -> None:
    """All tenants get the same share, whatever their weight."""

    def cost(*_: Any) -> int:
        return fairness.STRIDE

    _around_cost(bug, cost)


@mutant("TENANT-4")
def newcomer_catches_up(bug: Bug) -> None:
    """A tenant that starts late gets all the turns that it missed."""

    def entry(_: Planted, own: int, __: int) -> int:
        return own

    bug.around(fairness, "entry", entry)


@mutant("TENANT-4")
def coming_back_gains_a_turn(bug: Bug) -> None:
    """A tenant that leaves and returns enters at the minimum, although its own time was later."""

    def entry(_: Planted, __: int, floor: int) -> int:
        return floor

    bug.around(fairness, "entry", entry)


@mutant("TENANT-4", stores=FACES)
def queues_without_rotation(bug: Bug) -> None:
    """A claim over several queues empties the first before it reads the next."""

    async def claim(original: Planted, store: Any, request: ClaimRequest) -> Claimed:
        jobs: list[Job] = []
        for queue in request.queues:
            part = replace(request, queues=(queue,), limit=request.limit - len(jobs))
            jobs += (await original(store, part)).jobs if part.limit else []
        rest = await original(store, replace(request, limit=request.limit - len(jobs)))
        return replace(rest, jobs=jobs)

    bug.answer("claim", claim)


# Tenants ------------------------------------------------------------------------------------------------------


@mutant("TENANT-2", "TENANT-1", stores=FACES)
def tenant_filter_dropped_in_get(bug: Bug) -> None:
    """A read of an id returns any tenant's job."""

    async def get(original: Planted, store: Any, keys: Sequence[JobKey]) -> list[Job | None]:
        found: list[Job | None] = await original(store, keys)
        for number, key in enumerate(keys):
            for tenant in await store.tenants() if found[number] is None else ():
                found[number] = found[number] or (await original(store, [key._replace(tenant=tenant)]))[0]
        return found

    bug.answer("get", get)


@mutant("TENANT-1", "TENANT-2", stores=FACES)
def tenant_filter_dropped_in_stats(bug: Bug) -> None:
    """The counts of a queue are those of all tenants together."""

    async def stats(original: Planted, store: Any, tenant: str, queues: Sequence[str] | None = None) -> Any:
        own: list[QueueStats] = await original(store, tenant, queues)
        names = [mine.queue for mine in own]
        for other in await store.tenants():
            for mine, theirs in zip(own, await original(store, other, names), strict=True):
                for state, count in theirs.counts.items() if other != tenant else ():
                    mine.counts[state] += count
        return own

    bug.answer("stats", stats)


@mutant("EVENT-3", stores=FACES)
def tenant_filter_dropped_in_events(bug: Bug) -> None:
    """A tenant's stream shows all tenants' events."""

    async def events(original: Planted, store: Any, _: str | None, *rest: Any) -> Any:
        return await original(store, None, *rest)

    bug.answer("events", events)


@mutant("TENANT-5")
def quota_ignored(bug: Bug) -> None:
    """There is always room."""

    def over_quota(*_: Any) -> None:
        return None

    bug.at("memory").around(bug.memory("tables").Tables, "over_quota", over_quota)
    bug.at("file").around(bug.file("transaction").Transaction, "over_quota", over_quota)


@mutant("TENANT-5")
def replay_gets_around_the_quota(bug: Bug) -> None:
    """A full queue accepts replayed jobs."""
    replaying: list[bool] = []

    def over_quota(original: Planted, *args: Any) -> Any:
        return None if replaying else original(*args)

    def replay(original: Planted, *args: Any) -> Any:
        replaying.append(True)
        try:
            return original(*args)
        finally:
            replaying.pop()

    bug.at("memory").around(bug.memory("tables").Tables, "over_quota", over_quota)
    bug.at("memory").around(bug.memory("changes"), "replay", replay)
    bug.at("file").around(bug.file("transaction").Transaction, "over_quota", over_quota)
    bug.at("file").around(bug.file("changes"), "_replay_one", replay)
