"""Runs flows: enqueues the steps that are ready, waits until they end, and enqueues the next ones.

Only the jobs of its steps record a flow's progress, so a process that takes over sees the same and does the same.
Request ids of steps are made from the flow's id: a repeated enqueue gets the first answer. [ENQ-8] Steps are enqueued
under the flow's lease: a process that lost it, or whose flow was canceled, starts nothing. [LEASE-1]
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
    ATTEMPTS_EXHAUSTED,
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
from holdfast.core.names import as_operator
from holdfast.flows.flow import BATCH, end_steps
from holdfast.jobs import codec
from holdfast.maintenance.system_jobs import SystemContext
from holdfast.telemetry.logging import get_logger

FALLBACK_S = 15.0
"""How often to read the steps without a hint: a process can crash before it sends one."""
QUOTA_S = 10.0
"""How often to retry while the tenant is over its quota."""
RESULTS_LIMIT = 128 * 1024
"""The most bytes of step results in the flow's own result."""
TOO_LARGE, NOT_JSON = "too_large", "not_json"
"""Why the flow's result leaves out the result of a step."""
ERROR_LIMIT = 2 * 1024
MAX_AWAY_MS = 300 * SECOND
PIN_EVERY_S = 86_400.0

COMPLETED, FAILED, CANCELED, BLOCKED = JobState.COMPLETED, JobState.FAILED, JobState.CANCELED, JobState.BLOCKED

_log = get_logger(__name__)


async def serve(job: Job, context: SystemContext) -> Finish:
    """Run a flow to its end."""
    return await _FlowRun(job, context).run()


async def clean_up(job: Job, context: SystemContext, state: JobState) -> None:
    """End the steps of a flow that has ended."""
    await end_steps(context.store, job, state)


class _FlowRun:
    """One flow, while this process has its lease."""

    def __init__(self, flow: Job, context: SystemContext) -> None:
        self._flow, self._context, self._store = flow, context, context.store
        self._plan = plan_of(flow.envelope)
        self._keys = [step_key(flow, step) for step in self._plan.steps]
        self._places = {key: place for place, key in enumerate(self._keys)}
        self._turns = Turns(self._plan)
        self._states = self._turns.states
        """The states of the steps that are jobs. A completed step stays completed; all others are read again."""
        self._faults: dict[int, str] = {}
        self._foreign: set[int] = set()
        self._seqs: dict[int, int] = {}
        """The sequence numbers of the steps that are jobs: a step that is enqueued again gets a new one."""
        self._moved_at = 0
        """When a step was last enqueued or ended."""
        self._results: dict[int, Result] = {}
        self._kept_bytes = 0
        self._sizes: dict[int, int] = {}
        """The sizes of all results, including those that are not kept in memory."""
        self._lease = Lease(flow.key, flow.token)
        failed = [error.at for error in flow.errors if error.type == STEPS_FAILED]
        self._failed_at = failed[-1] if failed else None
        self._restarted: set[int] = set()
        self._over_quota = False
        # The steps of a new flow are new, too: their retention need not be extended yet.
        self._pin_at = time.monotonic() + (0.0 if _is_old(flow) else PIN_EVERY_S)

    async def run(self) -> Finish:
        """Start steps until none can start and none is running."""
        await self._begin()
        if self._flow.attempts >= ATTEMPTS_EXHAUSTED and self._makes_progress():
            return Finish(self._flow.key, self._flow.token, "release", forgive=True)
        changed: Iterable[int] = ()
        while True:
            await self._read(changed)
            self._watch()
            unclear = await self._start()
            if unclear:
                changed = unclear
                continue
            if self._turns.over:
                return await self._ending()
            await self._pin()
            ended = await self._context.changed(QUOTA_S if self._over_quota else FALLBACK_S)
            if ended is None:
                return Finish(self._flow.key, self._flow.token, "release", delay_ms=_away_ms(self._flow))
            open_ = {place for place, state in self._states.items() if state is not COMPLETED}
            changed = open_ & {self._places[key] for key in ended} if ended and not self._over_quota else open_

    # Reading ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Read how far the flow has come. Only steps whose predecessors have completed can be jobs.

        A batch with room left also reads the steps after those: a long chain takes few reads.
        """
        unseen = dict.fromkeys(range(len(self._keys)))
        while ready := [place for place in unseen if place in self._turns.ready]:
            others = (place for place in unseen if place not in self._turns.ready)
            part = ready + list(islice(others, max(0, BATCH - len(ready))))
            self._watch(part)
            await self._read(part)
            for place in part:
                del unseen[place]

    def _makes_progress(self) -> bool:
        """Whether a step moved or an hour passed during the last ten lost leases: then the flow did not cause them.

        A flow that crashes its processes loses ten leases within minutes without progress, and becomes a dead
        letter. [RETRY-2]
        """
        lost = [error.at for error in self._flow.errors if error.type == LEASE_EXPIRED]
        since = lost[0] if lost else 0
        return self._moved_at > since or (self._flow.claimed_at or 0) - since > HOUR

    def _watch(self, more: Iterable[int] = ()) -> None:
        """Watch steps that run or will run. Call it before reading them, so that no end is missed. [RESULT-2]"""
        open_ = (place for place, state in self._states.items() if state is not COMPLETED)
        self._context.watch(self._keys[place] for place in chain(open_, self._turns.ready, more))

    async def _read(self, places: Iterable[int]) -> None:
        wanted = list(places)
        replays: list[int] = []
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            jobs = await self._store.get([self._keys[place] for place in part])
            for place, job in zip(part, jobs, strict=True):
                if job is None:
                    self._update_missing(place)
                elif is_own(self._flow, job):
                    self._update(place, job, replays)
                else:
                    await self._replace_foreign(place, job)
        if replays:
            await self._replay(replays)

    def _update(self, place: int, job: Job, replays: list[int]) -> None:
        self._turns.put(place, job.state)
        self._seqs[place] = job.seq
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
        # The flow failed after this step did, and was replayed: replay the step too, once.
        if self._precedes_replay(job) and place not in self._restarted:
            if job.state is FAILED:
                replays.append(place)
            else:
                self._restarted.add(place)
                self._turns.drop(place)  # A canceled step is enqueued again.

    def _precedes_replay(self, job: Job) -> bool:
        """Whether the flow was replayed after this step ended."""
        if not self._flow.replays:
            return False
        if self._failed_at is None:
            # Only the last errors are kept. The flow's failure is not among them, so use the step's record. [RETRY-4]
            return is_behind(self._flow, job)
        return (job.finished_at or 0) <= self._failed_at

    def _update_missing(self, place: int) -> None:
        """The step has no job: it was not started, or it ended and was deleted at once."""
        if self._states.get(place, COMPLETED) not in TERMINAL:
            self._turns.put(place, FAILED)
            self._faults[place] = "it has ended, and its record is deleted"

    async def _replace_foreign(self, place: int, job: Job) -> None:
        """Another job has the step's id: delete it if an earlier run of this flow left it, else fail the step."""
        if not is_earlier(self._flow, job):
            self._turns.put(place, FAILED)
            self._faults[place] = f"another job has the id {job.id!r}"
            self._foreign.add(place)
            return
        # Give the sequence number: a late process must not delete the job that its successor has enqueued.
        if job.state not in TERMINAL:
            await self._store.cancel([Cancel(job.key, seq=job.seq)])
        await self._store.purge([Purge(job.key, seq=job.seq)])
        self._turns.drop(place)

    async def _replay(self, places: list[int]) -> None:
        refusals: dict[str | None, QuotaExceeded] = {}
        while places:
            part, places = places[:BATCH], places[BATCH:]
            keys = [self._keys[place] for place in part]
            answers = await self._store.replay(keys, under=self._lease, by=as_operator(f"flow:{self._flow.id}"))
            for place, answer in zip(part, answers, strict=True):
                if isinstance(answer, QuotaExceeded):
                    refusals[answer.queue] = answer
                    self._turns.put(place, BLOCKED)
                    continue
                self._restarted.add(place)
                if isinstance(answer, Replayed):
                    self._turns.put(place, JobState.READY)
            for place in self._full(places, refusals):
                self._turns.put(place, BLOCKED)
            places = [place for place in places if self._states[place] is not BLOCKED]
        self._log_refusals(refusals)

    def _keep(self, place: int, result: Result | None) -> None:
        """Record the size of a result and keep it while there is room. The flow's result prefers the last steps."""
        if result is None or place in self._sizes:
            return
        self._sizes[place] = RESULT_LIMIT + 1 if result.blob else len(result.data)
        self._results[place] = result
        self._kept_bytes += self._sizes[place]
        while self._kept_bytes > RESULTS_LIMIT:
            first = min(self._results)
            del self._results[first]
            self._kept_bytes -= self._sizes[first]

    # Starting --------------------------------------------------------------------------------------------------

    async def _start(self) -> list[int]:
        """Enqueue the steps that are ready. Returns those whose id is taken or that have ended: they must be read."""
        self._over_quota = BLOCKED in self._states.values()
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
        self._log_refusals(refusals)
        return unclear

    def _full(self, places: list[int], refusals: Mapping[str | None, QuotaExceeded]) -> list[int]:
        """The steps that the same quota would refuse: those of a queue, or all of them."""
        return [place for place in places if None in refusals or self._plan.steps[place].queue in refusals]

    def _log_refusals(self, refusals: Mapping[str | None, QuotaExceeded]) -> None:
        for refusal in refusals.values():
            self._over_quota = True
            _log.warning(
                "a step waits for its tenant's quota", tenant=self._flow.tenant, flow=self._flow.id, error=str(refusal)
            )

    async def _pin(self) -> None:
        """Extend the retention of ended steps: they are the record of the flow's progress. [RESULT-1]"""
        if time.monotonic() < self._pin_at:
            return
        self._pin_at = time.monotonic() + PIN_EVERY_S
        ended = [place for place, state in self._states.items() if state in TERMINAL and place not in self._foreign]
        if ended:
            items = [SetResultTtl(self._keys[place], PIN_MS, self._seqs.get(place)) for place in ended]
            await self._store.set_result_ttl(items)

    # Ending ---------------------------------------------------------------------------------------------------

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
        """The state of each step, and its result if there is room: the last steps come first."""
        shown: dict[str, dict[str, object]] = {step.name: {"state": COMPLETED} for step in self._plan.steps}
        for place in self._sizes:
            shown[self._plan.steps[place].name]["left_out"] = TOO_LARGE
        left = room = min(RESULTS_LIMIT, RESULT_LIMIT - len(msgspec.json.encode(shown)))
        chosen: list[int] = []
        for place in sorted(self._sizes, reverse=True):
            if self._sizes[place] <= left:
                chosen.append(place)
                left -= self._sizes[place]
        for place, result in zip(chosen, await self._results_of(chosen), strict=True):
            step, data = shown[self._plan.steps[place].name], _as_json(result)
            if data is None:
                step["left_out"] = NOT_JSON
            elif len(data) <= room:  # JSON can be larger than the original codec.
                room -= len(data)
                del step["left_out"]
                step["result"] = Raw(data)
        return msgspec.json.encode(shown)

    async def _results_of(self, places: list[int]) -> list[Result | None]:
        """These results: from memory, and the others from the store."""
        others = [place for place in places if place not in self._results]
        found: dict[int, Result | None] = dict(self._results)
        for start in range(0, len(others), BATCH):
            part = others[start : start + BATCH]
            jobs = await self._store.get([self._keys[place] for place in part])
            found |= {place: None if job is None else job.result for place, job in zip(part, jobs, strict=True)}
        return [found[place] for place in places]


def _as_json(result: Result | None) -> bytes | None:
    """A result as JSON; None if it is in a blob store, its codec is unknown here, or JSON cannot represent it."""
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
    """The delay of a flow that is released because many wait: a twentieth of its age, from 15 s to 5 min."""
    return min(MAX_AWAY_MS, max(int(FALLBACK_S * SECOND), _age_ms(flow) // 20))
