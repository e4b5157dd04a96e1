"""Leads flows through their steps: enqueues those whose turn has come, waits for them to end, and goes on.

What a flow has come to is nowhere but in its steps' jobs, so the next leader sees the same and does the same. The
steps are enqueued with request ids made from the flow: a second time is answered like the first. [ENQ-8] They are
started under the flow's lease: what a leader sends that lost it, or whose flow was canceled, starts nothing. [LEASE-1]
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import chain, islice

import msgspec
from msgspec import Raw

from holdfast.core.errors import HoldfastError, QuotaExceeded
from holdfast.core.events import LEASE_EXPIRED
from holdfast.core.failpoint import hit
from holdfast.core.flow import (
    PIN_MS,
    STEPS_FAILED,
    WORN,
    Turns,
    is_behind,
    is_earlier,
    is_own,
    plan_of,
    step_job,
    step_key,
)
from holdfast.core.job import (
    DAY,
    HOUR,
    RESULT_LIMIT,
    SECOND,
    TERMINAL,
    AttemptError,
    Cancel,
    Finish,
    Job,
    JobState,
    Lease,
    Purge,
    Queued,
    Replayed,
    Result,
    SetResultTtl,
)
from holdfast.flows.flow import BATCH, end_steps
from holdfast.jobs import codec
from holdfast.maintenance.coordinator import DutyContext
from holdfast.telemetry.logging import get_logger

FALLBACK_S = 15.0
"""A hint can be lost with the process that should have sent it."""
QUOTA_S = 10.0
"""When to try again where a tenant has too much waiting."""
RESULTS_LIMIT = 128 * 1024
"""This much of the steps' results is in the flow's own."""
TOO_LARGE, NOT_JSON = "too_large", "not_json"
"""Why a step's result is not in the flow's."""
ERROR_LIMIT = 2 * 1024
AWAY_MOST_MS = 300 * SECOND
PIN_AGAIN_S = 86_400.0

COMPLETED, FAILED, CANCELED, BLOCKED = JobState.COMPLETED, JobState.FAILED, JobState.CANCELED, JobState.BLOCKED

_log = get_logger(__name__)


async def conduct(job: Job, at: DutyContext) -> Finish:
    """See a flow through to its end."""
    return await _FlowLeader(job, at).run()


async def after(job: Job, at: DutyContext, state: JobState) -> None:
    """Let the steps of a flow end with it."""
    await end_steps(at.store, job, state)


class _FlowLeader:
    """One flow, as long as this process leads it."""

    def __init__(self, flow: Job, at: DutyContext) -> None:
        self._flow, self._at, self._store = flow, at, at.store
        self._plan = plan_of(flow.envelope)
        self._keys = [step_key(flow, step) for step in self._plan.steps]
        self._places = {key: place for place, key in enumerate(self._keys)}
        self._turns = Turns(self._plan)
        self._states = self._turns.states
        """Of the steps that are jobs. One that is completed stays so; all others are looked at again."""
        self._faults: dict[int, str] = {}
        self._foreign: set[int] = set()
        self._lives: dict[int, int] = {}
        """The sequence numbers of the steps that are jobs."""
        self._moved_at = 0
        """When a step was last started or ended, as far as was seen at the beginning."""
        self._results: dict[int, Result] = {}
        self._held = 0
        self._sizes: dict[int, int] = {}
        """Of all results, also of those that are not held here."""
        self._lease = Lease(flow.key, flow.token)
        failed = [error.at for error in flow.errors if error.type == STEPS_FAILED]
        self._failed_at = failed[-1] if failed else None
        self._again: set[int] = set()
        self._refused = False
        # Where the flow is young its steps are, too.
        self._pin_at = time.monotonic() + (0.0 if _is_old(flow) else PIN_AGAIN_S)

    async def run(self) -> Finish:
        """Go on until nothing can go on any more."""
        await self._begin()
        if self._flow.attempts >= WORN and self._moves_on():
            return Finish(self._flow.key, self._flow.token, "release", forgive=True)
        look_at: Iterable[int] = ()
        while True:
            await self._look(look_at)
            self._watch()
            unclear = await self._start()
            if unclear:
                look_at = unclear
                continue
            if self._turns.over:
                return await self._ending()
            await self._pin()
            heard = await self._at.changed(QUOTA_S if self._refused else FALLBACK_S)
            if heard is None:
                return Finish(self._flow.key, self._flow.token, "release", delay_ms=_away_ms(self._flow))
            open_ = {place for place, state in self._states.items() if state is not COMPLETED}
            look_at = open_ & {self._places[key] for key in heard} if heard and not self._refused else open_

    # Looking ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """See how far the flow has come. A step is a job only if its turn has come: beyond those nothing is looked at.

        But where a batch has room for them, those that come next: a long chain is seen in few looks.
        """
        unseen = dict.fromkeys(range(len(self._keys)))
        while ready := [place for place in unseen if place in self._turns.ready]:
            others = (place for place in unseen if place not in self._turns.ready)
            part = ready + list(islice(others, max(0, BATCH - len(ready))))
            self._watch(part)
            await self._look(part)
            for place in part:
                del unseen[place]

    def _moves_on(self) -> bool:
        """Whether lost leases say nothing about this flow: since the last ten a step has moved, or an hour passed.

        A flow that kills its leaders loses ten within minutes, and nothing moves: it becomes a dead letter. [RETRY-2]
        """
        lost = [error.at for error in self._flow.errors if error.type == LEASE_EXPIRED]
        since = lost[0] if lost else 0
        return self._moved_at > since or (self._flow.claimed_at or 0) - since > HOUR

    def _watch(self, more: Iterable[int] = ()) -> None:
        """Hear of what is open or about to be. First, and then the look: so no end is missed. [RESULT-2]"""
        open_ = (place for place, state in self._states.items() if state is not COMPLETED)
        self._at.watch(self._keys[place] for place in chain(open_, self._turns.ready, more))

    async def _look(self, places: Iterable[int]) -> None:
        wanted = list(places)
        replays: list[int] = []
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            jobs = await self._store.get([self._keys[place] for place in part])
            for place, job in zip(part, jobs, strict=True):
                if job is None:
                    self._missing(place)
                elif is_own(self._flow, job):
                    self._see(place, job, replays)
                else:
                    await self._strange(place, job)
        if replays:
            await self._replay(replays)

    def _see(self, place: int, job: Job, replays: list[int]) -> None:
        self._turns.put(place, job.state)
        self._lives[place] = job.seq
        self._moved_at = max(self._moved_at, job.enqueued_at, job.finished_at or 0)
        self._faults.pop(place, None)
        self._foreign.discard(place)
        if job.state is COMPLETED:
            self._keep(place, job.result)
            return
        if job.state not in (FAILED, CANCELED):
            return
        last = job.errors[-1] if job.errors else None
        if job.state is FAILED and last is not None:
            self._faults[place] = f"{last.type}: {last.message}"
        # It ended badly before the flow did, and the flow was replayed: so is the step, once.
        if self._is_of_before(job) and place not in self._again:
            if job.state is FAILED:
                replays.append(place)
            else:
                self._again.add(place)
                self._turns.drop(place)  # A canceled one is enqueued anew.

    def _is_of_before(self, job: Job) -> bool:
        """Whether a step ended before its flow failed, and the flow was replayed since."""
        if not self._flow.replays:
            return False
        if self._failed_at is None:
            # Lost leases have pushed the failure out of the errors that are kept: read it from the step. [RETRY-4]
            return is_behind(self._flow, job)
        return (job.finished_at or 0) <= self._failed_at

    def _missing(self, place: int) -> None:
        """No job there: not started yet, or it ended and was forgotten at once."""
        if self._states.get(place, COMPLETED) not in TERMINAL:
            self._turns.put(place, FAILED)
            self._faults[place] = "it has ended, and its record is gone"

    async def _strange(self, place: int, job: Job) -> None:
        """A job with the step's id that is not ours: from an earlier life of this flow, or from another program."""
        if not is_earlier(self._flow, job):
            self._turns.put(place, FAILED)
            self._faults[place] = f"another job has the id {job.id!r}"
            self._foreign.add(place)
            return
        # By the life that was seen: a leader that comes late must not take what the next one has made of it.
        if job.state not in TERMINAL:
            await self._store.cancel([Cancel(job.key, seq=job.seq)])
        await self._store.purge([Purge(job.key, seq=job.seq)])
        self._turns.drop(place)

    async def _replay(self, places: list[int]) -> None:
        refusals: dict[str | None, QuotaExceeded] = {}
        while places:
            part, places = places[:BATCH], places[BATCH:]
            answers = await self._store.replay([self._keys[place] for place in part], under=self._lease)
            for place, answer in zip(part, answers, strict=True):
                if isinstance(answer, QuotaExceeded):
                    refusals[answer.queue] = answer
                    self._turns.put(place, BLOCKED)
                    continue
                self._again.add(place)
                if isinstance(answer, Replayed):
                    self._turns.put(place, JobState.READY)
            for place in self._full(places, refusals):
                self._turns.put(place, BLOCKED)
            places = [place for place in places if self._states[place] is not BLOCKED]
        self._over_quota(refusals)

    def _keep(self, place: int, result: Result | None) -> None:
        """Note the size of a result, and hold it while there is room: the last steps are the ones that are shown."""
        if result is None or place in self._sizes:
            return
        self._sizes[place] = RESULT_LIMIT + 1 if result.blob else len(result.data)
        self._results[place] = result
        self._held += self._sizes[place]
        while self._held > RESULTS_LIMIT:
            first = min(self._results)
            del self._results[first]
            self._held -= self._sizes[first]

    # Going on --------------------------------------------------------------------------------------------------

    async def _start(self) -> list[int]:
        """Enqueue what waits for nothing any more. Returns the steps whose id is taken: they need a look."""
        self._refused = BLOCKED in self._states.values()
        unclear: list[int] = []
        places = sorted(self._turns.ready)
        refusals: dict[str | None, QuotaExceeded] = {}
        while places:
            part, places = places[:BATCH], places[BATCH:]
            new = [step_job(self._flow, self._plan, place) for place in part]
            answers = await self._store.enqueue(new, under=self._lease)
            hit("flows.after_enqueue")
            for place, answer in zip(part, answers, strict=True):
                if isinstance(answer, Queued):
                    self._turns.put(place, answer.state)
                    if answer.state in TERMINAL:
                        unclear.append(place)
                elif isinstance(answer, QuotaExceeded):
                    refusals[answer.queue] = answer
                else:
                    unclear.append(place)
            full = set(self._full(places, refusals))
            places = [place for place in places if place not in full]
        self._over_quota(refusals)
        return unclear

    def _full(self, places: list[int], refusals: Mapping[str | None, QuotaExceeded]) -> list[int]:
        """Those that need not be tried: where one was refused, the others of its queue are, or of all queues."""
        return [place for place in places if None in refusals or self._plan.steps[place].queue in refusals]

    def _over_quota(self, refusals: Mapping[str | None, QuotaExceeded]) -> None:
        for refusal in refusals.values():
            self._refused = True
            _log.warning("a step waits for room", tenant=self._flow.tenant, flow=self._flow.id, error=str(refusal))

    async def _pin(self) -> None:
        """Keep what has ended: it is what this flow knows about itself. [RESULT-1]"""
        if time.monotonic() < self._pin_at:
            return
        self._pin_at = time.monotonic() + PIN_AGAIN_S
        ended = [place for place, state in self._states.items() if state in TERMINAL and place not in self._foreign]
        if ended:
            lives = [SetResultTtl(self._keys[place], PIN_MS, self._lives.get(place)) for place in ended]
            await self._store.set_result_ttl(lives)

    # The end ---------------------------------------------------------------------------------------------------

    async def _ending(self) -> Finish:
        bad = [place for place, state in self._states.items() if state is not COMPLETED]
        if not bad:
            return Finish(self._flow.key, self._flow.token, "complete", Result(await self._summary()))
        steps, faults = self._plan.steps, ", ".join(self._fault(place) for place in sorted(bad))
        text = f"{len(bad)} of {len(steps)} steps did not complete: {faults}"
        waiting = [step.name for place, step in enumerate(steps) if place not in self._states]
        if waiting:
            text += f"; never started: {', '.join(waiting)}"
        error = AttemptError(STEPS_FAILED, text.encode()[:ERROR_LIMIT].decode(errors="ignore"))
        return Finish(self._flow.key, self._flow.token, "fail", error=error)

    def _fault(self, place: int) -> str:
        name, why = self._plan.steps[place].name, self._faults.get(place, "")
        state = self._states[place].value
        return f"{name} ({state}: {why[:200]})" if why else f"{name} ({state})"

    async def _summary(self) -> bytes:
        """Each step's state, and its result as far as they fit: those of the last steps first."""
        shown: dict[str, dict[str, object]] = {step.name: {"state": COMPLETED} for step in self._plan.steps}
        for place in self._sizes:
            shown[self._plan.steps[place].name]["left_out"] = TOO_LARGE
        left = room = min(RESULTS_LIMIT, RESULT_LIMIT - len(msgspec.json.encode(shown)))
        chosen: list[int] = []
        for place in sorted(self._sizes, reverse=True):
            if self._sizes[place] <= left:
                chosen.append(place)
                left -= self._sizes[place]
        for place, result in zip(chosen, await self._read(chosen), strict=True):
            step, data = shown[self._plan.steps[place].name], _as_json(result)
            if data is None:
                step["left_out"] = NOT_JSON
            elif len(data) <= room:  # In JSON some are larger than they were.
                room -= len(data)
                del step["left_out"]
                step["result"] = Raw(data)
        return msgspec.json.encode(shown)

    async def _read(self, places: list[int]) -> list[Result | None]:
        """These results: those that are held, and the others from the store."""
        others = [place for place in places if place not in self._results]
        found: dict[int, Result | None] = dict(self._results)
        for start in range(0, len(others), BATCH):
            part = others[start : start + BATCH]
            jobs = await self._store.get([self._keys[place] for place in part])
            found |= {place: None if job is None else job.result for place, job in zip(part, jobs, strict=True)}
        return [found[place] for place in places]


def _as_json(result: Result | None) -> bytes | None:
    """A result as JSON; None where it is in a blob store, in a codec that is not known here, or JSON cannot hold it."""
    if result is None or result.blob:
        return None
    if result.codec == "json":
        return result.data
    try:
        return msgspec.json.encode(codec.decode(result.data, result.codec))
    except (HoldfastError, TypeError, ValueError, RecursionError, OverflowError):
        return None


def _age_ms(flow: Job) -> int:
    return (flow.claimed_at or 0) - flow.enqueued_at


def _is_old(flow: Job) -> bool:
    return _age_ms(flow) > DAY


def _away_ms(flow: Job) -> int:
    """For how long a flow is given back where many wait: a twentieth of its age, 15 s at least and 5 min at most."""
    return min(AWAY_MOST_MS, max(int(FALLBACK_S * SECOND), _age_ms(flow) // 20))
