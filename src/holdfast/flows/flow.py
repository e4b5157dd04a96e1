"""Flows: jobs that wait for each other.

    flow = Flow("report")
    a = flow.add(extract.message())
    b = flow.add(load.message(), after=[a])
    ticket = await queue.start(flow)

A flow is itself a job, in the reserved queue `holdfast:flows`. A process that does maintenance leads it. See
docs/howto/flows.md for use, docs/adr/0014-schedules-and-flows.md for the reasons.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import InvalidOption
from holdfast.core.flow import (
    MAX_STEPS,
    PIN_MS,
    STEPS_FAILED,
    VERSION,
    Plan,
    Step,
    check_flow_id,
    check_plan,
    check_step_name,
    flow_job,
    is_own,
    plan_of,
    shown_state,
    step_key,
)
from holdfast.core.job import RESULT_TTL, TERMINAL, Cancel, Job, JobKey, JobState, NewJob, SetResultTtl
from holdfast.core.lifecycle import DEFAULT_RETENTION
from holdfast.core.names import FLOWS, check_type
from holdfast.core.times import moment
from holdfast.ids import new_id
from holdfast.jobs import codec as codecs
from holdfast.jobs.definition import Message, untyped
from holdfast.jobs.options import EnqueueOptions, Resolved, Seconds, duration_ms, resolve
from holdfast.store import Store

R = TypeVar("R")

BATCH = 100
"""The most steps read in one call: each has its payload and its result."""
MAX_NAMED = 20
_BROKEN = (JobState.FAILED, JobState.RETRYING)
_NOT_FOR_STEPS = ("id", "idempotency_key", "idempotency", "replace_failed")


class StepOptions(TypedDict, total=False):
    """Options of a step, as for `enqueue`. A delay counts from the completion of all steps before it."""

    queue: str | None
    delay: Seconds | None
    run_at: datetime | None
    priority: int | None
    max_attempts: int | None
    result_ttl: Seconds | None


class FlowStep(Generic[R]):
    """A step of a flow, for use in `after=`. Made by `Flow.add`."""

    __slots__ = ("after", "flow", "message", "name", "options")

    def __init__(
        self, flow: Flow, name: str, message: Message[R], after: Sequence[FlowStep[Any]], options: Resolved
    ) -> None:
        self.flow, self.name, self.message, self.after, self.options = flow, name, message, after, options

    def __repr__(self) -> str:
        return f"<step {self.name!r} of {self.flow!r}>"


class Flow:
    """Jobs that wait for each other, to be started as one by `queue.start(flow)`.

    `name` is the kind of flow, `id` identifies this one (default: a new id), `result_ttl` is how long the flow is kept
    after it has completed. Raises InvalidName or InvalidOption.
    """

    def __init__(self, name: str, id: str | None = None, *, result_ttl: Seconds | None = None) -> None:
        self.name = check_type(name)
        self.id = new_id() if id is None else check_flow_id(id)
        self.result_ttl_ms = RESULT_TTL if result_ttl is None else duration_ms("result_ttl", result_ttl)
        self._steps: dict[str, FlowStep[Any]] = {}

    @property
    def steps(self) -> Sequence[FlowStep[Any]]:
        """The steps as they were added."""
        return tuple(self._steps.values())

    @overload
    def add(
        self,
        message: Message[R],
        *,
        after: Iterable[FlowStep[Any]] = (),
        name: str | None = None,
        **options: Unpack[StepOptions],
    ) -> FlowStep[R]: ...
    @overload
    def add(
        self,
        message: Any,
        *,
        after: Iterable[FlowStep[Any]] = (),
        name: str | None = None,
        **options: Unpack[StepOptions],
    ) -> FlowStep[Any]: ...
    def add(
        self,
        message: Any,
        *,
        after: Iterable[FlowStep[Any]] = (),
        name: str | None = None,
        **options: Unpack[StepOptions],
    ) -> FlowStep[Any]:
        """Add a step. It is enqueued when the steps in `after` have completed; without any, at once.

        `name` is by default its number, from "1". Raises InvalidName or InvalidOption.
        """
        made: Message[Any] = cast("Message[Any]", message) if isinstance(message, Message) else untyped(message)
        given: EnqueueOptions = {**(made.given or {}), **cast("EnqueueOptions", options)}
        for option in _NOT_FOR_STEPS:
            if given.get(option):
                raise InvalidOption(option, "is not for steps: a step's id is made from the flow's id and its name")
        if len(self._steps) >= MAX_STEPS:
            raise InvalidOption("flow", f"{MAX_STEPS} steps are allowed; start another flow at its end")
        name = str(len(self._steps) + 1) if name is None else check_step_name(name)
        if name in self._steps:
            raise InvalidOption("name", f"there is a step {name[:80]!r} already; give each step its own name=")
        step = FlowStep(self, name, made, self._before(after), resolve(given))
        self._steps[name] = step
        return step

    def job(self, tenant: str, jobs: Sequence[NewJob], headers: dict[str, str] | None) -> NewJob:
        """The flow's job, made from the jobs of its steps. Raises PayloadTooLarge, InvalidOption."""
        places = {name: place for place, name in enumerate(self._steps)}
        steps = [
            Step(
                step.name,
                job.key.queue,
                replace(job.envelope, request_id=""),
                tuple(places[before.name] for before in step.after),
                job.delay_ms,
                job.run_at,
            )
            for step, job in zip(self._steps.values(), jobs, strict=True)
        ]
        plan = Plan(VERSION, self.name, tuple(steps))
        return new_flow(JobKey(tenant, FLOWS, self.id), plan, new_id(), self.result_ttl_ms, headers)

    def _before(self, after: Iterable[FlowStep[Any]]) -> Sequence[FlowStep[Any]]:
        if isinstance(after, (FlowStep, str)):
            raise InvalidOption("after", "takes a list of steps: after=[step]")
        found: dict[str, FlowStep[Any]] = {}
        for step in after:
            if not isinstance(step, FlowStep):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidOption("after", f"{step!r} is not a step; use what flow.add() returned")
            if step.flow is not self:
                raise InvalidOption("after", f"{step!r} is of another flow; a step waits for steps of its own flow")
            found[step.name] = step
        return tuple(found.values())

    def __repr__(self) -> str:
        return f"<Flow {self.name} {self.id}>"


def new_flow(key: JobKey, plan: Plan, request_id: str, result_ttl_ms: int, headers: dict[str, str] | None) -> NewJob:
    """A flow's job, checked. Raises InvalidName, InvalidOption, or PayloadTooLarge for the sum of all payloads."""
    new = flow_job(key, check_plan(plan, key.id), request_id, result_ttl_ms, headers)
    codecs.check_size(new.envelope.payload)
    return new


# Records -----------------------------------------------------------------------------------------------------


class StepRecord(Struct, frozen=True):
    """A step as it was when its flow was read.

    A step that is not a job yet is "blocked", or "ready" if it can start.
    """

    name: str
    id: str
    queue: str
    type: str
    after: list[str]
    state: JobState
    attempts: int = 0
    error: str | None = None
    """The last error of a failed or retrying step, as `type: message`."""
    enqueued_at: datetime | None = None
    finished_at: datetime | None = None


class FlowRecord(Struct, frozen=True):
    """A flow as it was when it was read. A snapshot: it does not change by itself."""

    id: str
    name: str
    tenant: str
    state: JobState
    steps: list[StepRecord]
    enqueued_at: datetime
    finished_at: datetime | None = None
    replays: int = 0
    error: str | None = None
    """For a failed flow: which steps did not complete."""

    def step(self, name: str) -> StepRecord:
        """The step of that name. Raises KeyError."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)


async def flow_record(store: Store, flow: Job) -> FlowRecord:
    """A flow with its steps as they are now."""
    plan = plan_of(flow.envelope)
    places = {step.name: place for place, step in enumerate(plan.steps)}
    records: dict[int, StepRecord] = {}
    # Read in batches, so that not all payloads and results are in memory at once.
    async for part in own_steps(store, flow):
        for step, job in part:
            place = places[step.name]
            records[place] = _step_record(flow, plan, place, job.state, job)
    states = {place: record.state for place, record in records.items()}
    steps = [
        records.get(place) or _step_record(flow, plan, place, shown_state(plan, place, states, flow.state))
        for place in range(len(plan.steps))
    ]
    return FlowRecord(
        flow.id,
        plan.name,
        flow.tenant,
        flow.state,
        steps,
        moment(flow.enqueued_at),
        None if flow.finished_at is None else moment(flow.finished_at),
        flow.replays,
        _error(flow, steps),
    )


def _error(flow: Job, steps: Sequence[StepRecord]) -> str | None:
    if flow.state is not JobState.FAILED or not flow.errors:
        return None
    last = flow.errors[-1]
    bad = [f"{step.name} ({step.state})" for step in steps if step.state in (JobState.FAILED, JobState.CANCELED)]
    if last.type == STEPS_FAILED or not bad:
        return last.message
    # The flow ran out of attempts before a leader could record the failed steps.
    more = f" and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
    return f"{last.message}; steps that did not complete: {', '.join(bad[:MAX_NAMED])}{more}"


def _step_record(flow: Job, plan: Plan, place: int, state: JobState, job: Job | None = None) -> StepRecord:
    step = plan.steps[place]
    key = step_key(flow, step)
    names = [plan.steps[before].name for before in step.after]
    if job is None:
        return StepRecord(step.name, key.id, key.queue, step.envelope.type, names, state)
    # A job keeps its errors when it is retried or replayed: they are its history, not its outcome.
    last = job.errors[-1] if job.errors and state in _BROKEN else None
    return StepRecord(
        step.name,
        key.id,
        key.queue,
        step.envelope.type,
        names,
        state,
        job.attempts,
        None if last is None else f"{last.type}: {last.message}",
        moment(job.enqueued_at),
        None if job.finished_at is None else moment(job.finished_at),
    )


async def own_steps(store: Store, flow: Job) -> AsyncGenerator[list[tuple[Step, Job]]]:
    """The steps that became jobs in this life of a flow, in batches. Other jobs under a step's id are left out."""
    steps = plan_of(flow.envelope).steps
    for start in range(0, len(steps), BATCH):
        part = steps[start : start + BATCH]
        jobs = await store.get([step_key(flow, step) for step in part])
        yield [(step, job) for step, job in zip(part, jobs, strict=True) if job is not None and is_own(flow, job)]


async def end_steps(store: Store, flow: Job, state: JobState, by: str = "") -> None:
    """Bring the steps of an ended flow to an end, too.

    A canceled flow's steps are canceled. A failed flow's steps are kept for a replay of the flow. A completed flow's
    steps are kept for their own retention from now on. [CANCEL-1, RESULT-1]
    """
    async for steps in own_steps(store, flow):
        if state is JobState.CANCELED:
            open_ = [Cancel(job.key, seq=job.seq, by=by) for _, job in steps if job.state not in TERMINAL]
            if open_:
                await store.cancel(open_)
        ended = [(step, job) for step, job in steps if job.state in TERMINAL or state is JobState.CANCELED]
        kept = [SetResultTtl(job.key, _kept_ms(step, job, state), job.seq) for step, job in ended]
        if kept:
            await store.set_result_ttl(kept)


def _kept_ms(step: Step, job: Job, flow: JobState) -> int:
    """How long a step is kept once its flow has ended."""
    if flow is JobState.FAILED:
        return PIN_MS
    own_ms = step.envelope.result_ttl_ms
    if job.state is JobState.COMPLETED:
        return own_ms
    return max(own_ms, DEFAULT_RETENTION.failed_ms if job.state is JobState.FAILED else DEFAULT_RETENTION.canceled_ms)
