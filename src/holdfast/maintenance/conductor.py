"""Leads flows through their steps: enqueues those whose turn has come, waits for them to end, and goes on.

What a flow has come to is nowhere but in its steps' jobs, so whoever takes over sees the same and does the same. The
steps are enqueued with request ids made from the flow: a second time is answered like the first. [ENQ-8]
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain, islice

import msgspec
from msgspec import Raw

from holdfast import codec
from holdfast.core.errors import HoldfastError, QuotaExceeded
from holdfast.core.failpoint import hit
from holdfast.core.job import (
    DAY,
    RESULT_LIMIT,
    SECOND,
    TERMINAL,
    AttemptError,
    Cancel,
    Finish,
    Job,
    JobState,
    Purge,
    Queued,
    Replayed,
    Result,
    SetResultTtl,
)
from holdfast.core.workflow import (
    PIN_MS,
    STEPS_FAILED,
    Turns,
    is_behind,
    is_earlier,
    is_own,
    plan_of,
    step_job,
    step_key,
)
from holdfast.flows import BATCH, end_steps
from holdfast.maintenance.coordinator import Place
from holdfast.telemetry.logging import get_logger

FALLBACK_S = 15.0
"""A hint can be lost with the process that should have sent it."""
QUOTA_S = 10.0
"""When to try again where a tenant has too much waiting."""
RESULTS_LIMIT = 128 * 1024
"""The results of the steps are in the flow's own as long as they are no more than this together."""
ERROR_LIMIT = 2 * 1024
AWAY_MOST_MS = 300 * SECOND
PIN_AGAIN_S = 86_400.0

COMPLETED, FAILED, CANCELED, BLOCKED = JobState.COMPLETED, JobState.FAILED, JobState.CANCELED, JobState.BLOCKED

_log = get_logger(__name__)


async def conduct(job: Job, at: Place) -> Finish:
    """See a flow through to its end."""
    return await _Conductor(job, at).run()


async def after(job: Job, at: Place, state: JobState) -> None:
    """Let the steps of a flow end with it."""
    await end_steps(at.store, job, state)


class _Conductor:
    """One flow, as long as this process leads it."""

    def __init__(self, flow: Job, at: Place) -> None:
        self._flow, self._at, self._store = flow, at, at.store
        self._plan = plan_of(flow.envelope)
        self._keys = [step_key(flow, step) for step in self._plan.steps]
        self._places = {key: place for place, key in enumerate(self._keys)}
        self._turns = Turns(self._plan)
        self._states = self._turns.states
        """Of the steps that are jobs. One that is completed stays so; all others are looked at again."""
        self._faults: dict[int, str] = {}
        self._foreign: set[int] = set()
        self._results: dict[int, Result] | None = {}
        self._size = 0
        failed = [error.at for error in flow.errors if error.type == STEPS_FAILED]
        self._failed_at = failed[-1] if failed else None
        self._again: set[int] = set()
        self._refused = False
        # Where the flow is young its steps are, too.
        self._pin_at = time.monotonic() + (0.0 if _is_old(flow) else PIN_AGAIN_S)

    async def run(self) -> Finish:
        """Go on until nothing can go on any more."""
        await self._begin()
        look_at: Iterable[int] = ()
        while True:
            await self._look(look_at)
            self._watch()
            unclear = await self._start()
            if unclear:
                look_at = unclear
                continue
            if self._turns.over:
                return self._ending()
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
            # Lost leases have pushed the failure out of the errors that are kept: the step tells. [RETRY-4]
            return is_behind(self._flow, job)
        return (job.finished_at or 0) <= self._failed_at

    def _missing(self, place: int) -> None:
        """No job there: not started yet, or it ended and was forgotten at once."""
        if self._states.get(place, COMPLETED) not in TERMINAL:
            self._turns.put(place, FAILED)
            self._faults[place] = "it has ended, and its record is gone"

    async def _strange(self, place: int, job: Job) -> None:
        """A job of the step's id that is not ours: of an earlier life of this flow, or somebody else's."""
        if not is_earlier(self._flow, job):
            self._turns.put(place, FAILED)
            self._faults[place] = f"another job has the id {job.id!r}"
            self._foreign.add(place)
            return
        if job.state not in TERMINAL:
            await self._store.cancel([Cancel(job.key)])
        await self._store.purge([Purge(job.key)])
        self._turns.drop(place)

    async def _replay(self, places: list[int]) -> None:
        refusals: dict[str | None, QuotaExceeded] = {}
        while places:
            part, places = places[:BATCH], places[BATCH:]
            answers = await self._store.replay([self._keys[place] for place in part])
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
        if self._results is not None and result is not None and not result.blob:
            self._results[place] = result
            self._size += len(result.data)
            if self._size > RESULTS_LIMIT:
                self._results = None

    # Going on --------------------------------------------------------------------------------------------------

    async def _start(self) -> list[int]:
        """Enqueue what waits for nothing any more. Returns the steps whose id is taken: they need a look."""
        self._refused = BLOCKED in self._states.values()
        unclear: list[int] = []
        places = sorted(self._turns.ready)
        refusals: dict[str | None, QuotaExceeded] = {}
        while places:
            part, places = places[:BATCH], places[BATCH:]
            answers = await self._store.enqueue([step_job(self._flow, self._plan, place) for place in part])
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
            await self._store.set_result_ttl([SetResultTtl(self._keys[place], PIN_MS) for place in ended])

    # The end ---------------------------------------------------------------------------------------------------

    def _ending(self) -> Finish:
        bad = [place for place, state in self._states.items() if state is not COMPLETED]
        if not bad:
            return Finish(self._flow.key, self._flow.token, "complete", Result(self._summary()))
        steps, told = self._plan.steps, ", ".join(self._fault(place) for place in sorted(bad))
        text = f"{len(bad)} of {len(steps)} steps did not complete: {told}"
        waiting = [step.name for place, step in enumerate(steps) if place not in self._states]
        if waiting:
            text += f"; never started: {', '.join(waiting)}"
        error = AttemptError(STEPS_FAILED, text.encode()[:ERROR_LIMIT].decode(errors="ignore"))
        return Finish(self._flow.key, self._flow.token, "fail", error=error)

    def _fault(self, place: int) -> str:
        name, why = self._plan.steps[place].name, self._faults.get(place, "")
        state = self._states[place].value
        return f"{name} ({state}: {why[:200]})" if why else f"{name} ({state})"

    def _summary(self) -> bytes:
        found = self._encoded()
        if len(found) > RESULT_LIMIT:  # In JSON some are larger than they were.
            self._results = None
            found = self._encoded()
        return found

    def _encoded(self) -> bytes:
        return msgspec.json.encode({step.name: self._shown(place) for place, step in enumerate(self._plan.steps)})

    def _shown(self, place: int) -> dict[str, object]:
        shown: dict[str, object] = {"state": COMPLETED}
        result = None if self._results is None else self._results.get(place)
        if result is not None:
            # One in a codec that is not known here is left out, and one that JSON has no words for.
            with suppress(HoldfastError, TypeError, ValueError, RecursionError, OverflowError):
                shown["result"] = Raw(
                    result.data
                    if result.codec == "json"
                    else msgspec.json.encode(codec.decode(result.data, result.codec))
                )
        return shown


def _age_ms(flow: Job) -> int:
    return (flow.claimed_at or 0) - flow.enqueued_at


def _is_old(flow: Job) -> bool:
    return _age_ms(flow) > DAY


def _away_ms(flow: Job) -> int:
    """For how long a flow is given back where many wait: a twentieth of its age, 15 s at least and 5 min at most."""
    return min(AWAY_MOST_MS, max(int(FALLBACK_S * SECOND), _age_ms(flow) // 20))
