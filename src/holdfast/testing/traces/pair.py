"""Two stores that take the same steps, and must never differ."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from holdfast.core.events import Event
from holdfast.core.job import WAITING, Claimed, ClaimRequest, Job, JobKey, JobState
from holdfast.opening import parse_url
from holdfast.store import ListQuery, Reaped
from holdfast.testing.conformance.expect import Broken, expect
from holdfast.testing.traces.history import History, PurgeNumbers
from holdfast.testing.traces.sides import Side, Trimmed
from holdfast.testing.traces.steps import QUEUES, TENANTS, TraceStep, World

LOOK_EVERY = 8
"""The steps between two comparisons of everything. Each step compares its answer, the log and the jobs in it."""
TEXT = 2000
"""The most characters of an answer in a difference."""
_RUN = re.compile(r"(.)\1{40,}")


class Difference(Broken):
    """Two stores differ, or one breaks a rule."""


class Pair:
    """The store under test and the reference, side by side."""

    def __init__(self, store: Side, reference: Side) -> None:
        self.store = store
        self.reference = reference
        self.world = World()
        self.steps: list[TraceStep] = []
        self.seen: Counter[str] = Counter()
        """The kinds of answers so far, by verb, with their counts."""
        self._purges = PurgeNumbers()
        self._history = History(extensions=parse_url(store.url).options.get("events") == "all")
        self._paused: set[tuple[str, str]] = set()

    @classmethod
    async def open(cls, url: str, reference: str) -> Pair:
        """Open both. They must be empty, and their clocks frozen (`test_clock=frozen`)."""
        return cls(await Side.open(url.partition(":")[0], url), await Side.open("reference", reference))

    async def close(self) -> None:
        """Close both."""
        await self.store.close()
        await self.reference.close()

    async def perform(self, step: TraceStep) -> None:
        """Take one step on both sides and compare. Raises Difference."""
        step = self._suitable(step)
        self.steps.append(step)
        try:
            await self._perform(step)
            if len(self.steps) % LOOK_EVERY == 0:
                await self.look()
        except Broken as broken:
            raise Difference(f"step {len(self.steps)}: {step}\n{broken}") from broken

    def _suitable(self, step: TraceStep) -> TraceStep:
        """Name a tenant in every claim if turns are not exact: the order of tenants is not defined then."""
        if step.verb == "claim" and not self.store.store.capabilities.exact_turns:
            (request,) = step.arguments
            return replace(step, arguments=(replace(request, tenant=request.tenant or TENANTS[0]),))
        return step

    async def _perform(self, step: TraceStep) -> None:
        got, want = await asyncio.gather(self.store.perform(step), self.reference.perform(step))
        if step.verb == "events":
            self._compare_reads(step, got, want)
        else:
            self._compare("answers", self.store.comparable(got), self.reference.comparable(want))
        self._note(step, want)
        await self._compare_new_events()
        await self._learn(step, want)
        await self._compare_jobs(_named(step, want), step.handle)
        if step.verb == "prune":
            await self._perform(TraceStep("events", (None, None, 50)))
        if step.verb in ("claim", "reap"):
            self._check_next(step, got, self.store)
            self._check_next(step, want, self.reference)

    async def _compare_new_events(self) -> None:
        """Each step makes the same events, and the log keeps the rules. [EVENT-1]"""
        got, want = await asyncio.gather(self.store.new_events(), self.reference.new_events())
        self._compare("events", self.store.comparable(got), self.reference.comparable(want))
        for event in got:
            self._history.add(event)
            self._purges.add(event)

    async def _compare_jobs(self, keys: Sequence[JobKey], handle: int) -> None:
        if not keys:
            return
        got = await self.store.get(keys, handle)
        for key, ours, theirs in zip(keys, got, await self.reference.get(keys), strict=True):
            self._compare(f"the job {key}", self.store.comparable(ours), self.reference.comparable(theirs))
            self._history.check(key, ours)

    def _compare_reads(self, step: TraceStep, got: Any, want: Any) -> None:
        """A read shows events as they were written. The number of trimmed events of a tenant may differ. [EVENT-2]

        A store may trim less than it could, never more.
        """
        tenant, after, _ = step.arguments
        expect(type(got) is not Trimmed or type(want) is Trimmed, "trimmed more than the rules allow [EVENT-2]")
        counts: list[Counter[str]] = []
        for side, answer in ((self.store, got), (self.reference, want)):
            if isinstance(answer, Exception):
                raise Broken(f"{side.name} refused to read events: {answer!r}")
            read: list[Event] = answer.rest if isinstance(answer, Trimmed) else answer
            lost = answer.lost if isinstance(answer, Trimmed) else frozenset[str]()
            log = side.log[after or 0 :]
            for whose in {event.tenant for event in log if tenant in (None, event.tenant)}:
                written = [event for event in log if event.tenant == whose]
                mine = [event for event in read if event.tenant == whose]
                if after is not None and lost is not None and whose not in lost:
                    expect(len(mine) == len(written), f"{side.name}: {len(mine)} events of {len(written)} [EVENT-2]")
                self._compare(
                    "what was read again", side.comparable(mine), side.comparable(written[len(written) - len(mine) :])
                )
            places = {event.offset: place for place, event in enumerate(log)}
            order = [places[event.offset] for event in read]
            expect(order == sorted(order), f"{side.name}: events out of order [EVENT-2]")
            counts.append(Counter(event.tenant for event in read))
        expect(type(want) is Trimmed or counts[0] >= counts[1], "trimmed more than the rules allow [EVENT-2]")

    def _check_next(self, step: TraceStep, answer: Claimed | Reaped, side: Side) -> None:
        """A claim below its limit left no visible job. It says when to claim again: not now, and not late. [CLAIM-3]"""
        request: Any = step.arguments[0]
        claimed = isinstance(request, ClaimRequest)
        if claimed and len(answer.jobs) == request.limit:
            return
        soonest: list[int] = []
        for key, job in self.world.records.items():
            if job is None:
                continue
            if job.state is JobState.LEASED:
                soonest.append(job.deadline)
            elif claimed and job.state in WAITING and self._wanted(key, request):
                expect(job.visible_at > self.world.now, f"{side.name}: the claim left {key}, a visible job [CLAIM-2]")
                soonest.append(job.visible_at)
        next_at = side.relative(answer.next_at)
        if claimed:
            expect(
                next_at is None or next_at > self.world.now,
                f"{side.name}: next_at {next_at} is not in the future [CLAIM-3]",
            )
        first = min(soonest, default=None)
        expect(
            first is None or (next_at is not None and next_at <= first),
            f"{side.name}: next_at is {next_at}, and something is due at {first} [CLAIM-3]",
        )

    def _wanted(self, key: JobKey, request: ClaimRequest) -> bool:
        lane = (key.tenant, key.queue)
        return key.queue in request.queues and request.tenant in (None, key.tenant) and lane not in self._paused

    async def look(self) -> None:
        """Compare all records, and the lists and counts of some queues. Raises Difference."""
        await self._compare_jobs(list(self.world.records), 0)
        lane = len(self.steps) // LOOK_EVERY % (len(TENANTS) * len(QUEUES))
        query = ListQuery(TENANTS[lane // len(QUEUES)], QUEUES[lane % len(QUEUES)], limit=3)
        looks = [TraceStep("tenants"), TraceStep("list", (query,))]
        looks += [TraceStep(verb, (tenant,)) for verb in ("readers", "workers") for tenant in (None, TENANTS[0])]
        looks += [TraceStep(verb, (tenant,)) for verb in ("stats", "tenant_settings") for tenant in TENANTS]
        got = await asyncio.gather(*(self.store.perform(look) for look in looks))
        for look, ours in zip(looks, got, strict=True):
            theirs = await self.reference.perform(look)
            self._compare(
                f"{look.verb}{look.arguments}", self.store.comparable(ours), self.reference.comparable(theirs)
            )

    def _compare(self, what: str, got: Any, want: Any) -> None:
        if got != want:
            where, ours, theirs = first_difference(got, want)
            raise Broken(
                f"{what} differ at {where or 'the top'}: {self.store.name} has {ours!r}, the reference {theirs!r}\n"
                f"  {self.store.name}: {_short(got)}\n  reference: {_short(want)}"
            )

    # What the next step can refer to -------------------------------------------------------------------------

    async def _learn(self, step: TraceStep, answer: Any) -> None:
        world = self.world
        world.log = len(self.reference.log)
        if step.verb == "advance":
            world.now += step.arguments[0]
        elif step.verb == "mark":
            world.marks += [position for position in (world.log, world.log - 1) if self.reference.known(position)]
        elif step.verb == "pause":
            tenant, queue, paused = step.arguments
            (self._paused.add if paused else self._paused.discard)((tenant, queue))
        elif step.verb == "claim" and isinstance(answer, Claimed):
            for job in answer.jobs:
                world.grants.append((job.key, len(world.grants) + 1))
        world.records.update(dict.fromkeys(_named(step, answer)))
        keys = list(world.records)
        for key, job in zip(keys, await self.reference.get(keys), strict=True):
            world.records[key] = self.reference.record(job)

    def _note(self, step: TraceStep, answer: Any) -> None:
        answers = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
        self.seen.update(f"{step.verb}: {_shape(one)}" for one in answers or ["nothing"])


def first_difference(got: Any, want: Any, where: str = "") -> tuple[str, Any, Any]:
    """The path at which two answers first differ, and the value on each side."""
    if isinstance(got, dict) and isinstance(want, dict):
        ours, theirs = cast("dict[str, Any]", got), cast("dict[str, Any]", want)
        for name in [*ours, *theirs]:
            if name not in ours or name not in theirs or ours[name] != theirs[name]:
                return first_difference(ours.get(name), theirs.get(name), f"{where}.{name}")
    if isinstance(got, list) and isinstance(want, list):
        left, right = cast("list[Any]", got), cast("list[Any]", want)
        for number, (one, other) in enumerate(zip(left, right, strict=False)):
            if one != other:
                return first_difference(one, other, f"{where}[{number}]")
        number = min(len(left), len(right))
        return f"{where}[{number}]", left[number:], right[number:]
    return where, cast("Any", got), cast("Any", want)


def _short(answer: Any) -> str:
    text = _RUN.sub(r"\1...", repr(answer))
    return text if len(text) <= TEXT else f"{text[:TEXT]} ..."


def _named(step: TraceStep, answer: Any) -> list[JobKey]:
    """The jobs that a step or its answer names, each once."""
    found: list[JobKey] = []
    if isinstance(answer, Claimed):
        found = [job.key for job in answer.jobs]
    elif isinstance(answer, Reaped):
        found = answer.jobs
    elif step.arguments and isinstance(step.arguments[0], list):
        items = cast("list[Any]", step.arguments[0])
        found = [item if isinstance(item, JobKey) else item.key for item in items]
    return list(dict.fromkeys(found))


def _shape(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, Job):
        return "Job"
    if isinstance(answer, Claimed | Reaped):
        return "some" if answer.jobs else "none"
    state = getattr(answer, "state", None)
    return f"{type(answer).__name__} {state}" if isinstance(state, JobState) else type(answer).__name__
