"""The plan of a flow: its steps, what each step waits for, and which steps can start now.

A flow is a job in the reserved queue `holdfast:flows`, and its plan is the payload. A step becomes a job when
all steps before it have completed: `{flow id}/{step name}` in the step's own queue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import InvalidName, InvalidOption, UnknownCodec
from holdfast.core.job import (
    DAY,
    FLOW_HEADER,
    SECOND,
    TERMINAL,
    Backoff,
    Envelope,
    Job,
    JobKey,
    JobState,
    NewJob,
)
from holdfast.core.names import check_id, check_type

MAX_STEPS, MAX_EDGES = 1_000, 10_000
FLOW_ID_BYTES, STEP_NAME_BYTES = 99, 100
"""The id of a step's job has both, with a `/` between them."""
VERSION = 1
AFTER_HEADER = "holdfast-after"
"""The header of a step that waited for others: their names by queue, as JSON."""
CODEC = "msgpack"
MAX_ATTEMPTS = 100
"""A flow loses one attempt whenever the process that runs it dies."""
ATTEMPTS_EXHAUSTED = MAX_ATTEMPTS // 2
"""A flow with this many lost attempts gets all of them back if it still makes progress."""
BACKOFF = Backoff(1 * SECOND, 2.0, 60 * SECOND, "full")
PIN_MS = 30 * DAY
"""How long the steps of a running flow are kept: the flow has no other record of them. [RESULT-1]"""
STEPS_FAILED = "StepsFailed"
"""The type of a failed flow's error."""


class Step(Struct, frozen=True, array_like=True):
    """One step: the job that it becomes, and the indexes of the steps that it waits for."""

    name: str
    queue: str
    envelope: Envelope
    after: tuple[int, ...] = ()
    delay_ms: int = 0
    run_at: int | None = None


class _Version(Struct, frozen=True, array_like=True):
    version: int


class Plan(Struct, frozen=True, array_like=True):
    """A whole flow. Each step comes after those that it waits for."""

    version: int
    name: str
    steps: tuple[Step, ...]


def check_flow_id(id: str) -> str:
    """Return `id` if it is a valid flow id. Raises InvalidName."""
    return _check_bytes(check_id(id, "flow id"), "flow id", FLOW_ID_BYTES)


def check_step_name(name: str) -> str:
    """Return `name` if it is a valid step name. Raises InvalidName."""
    _check_bytes(check_id(name, "step name"), "step name", STEP_NAME_BYTES)
    if "/" in name:
        # The last `/` of a step's job id separates flow and step, so two flows never share an id. [TENANT-3]
        raise InvalidName("step name", name, "it must not have a '/'")
    return name


def _check_bytes(name: str, what: str, limit: int) -> str:
    if (size := len(name.encode())) > limit:
        raise InvalidName(what, name, f"it is {size} bytes of UTF-8, 1 to {limit} are allowed")
    return name


def check_plan(plan: Plan, flow_id: str) -> Plan:
    """Return `plan` if it is valid. Raises InvalidName or InvalidOption."""
    check_type(plan.name)
    check_flow_id(flow_id)
    if not plan.steps:
        raise InvalidOption("flow", "has no steps; add(...) at least one")
    if len(plan.steps) > MAX_STEPS:
        raise InvalidOption(
            "flow", f"has {len(plan.steps)} steps, {MAX_STEPS} are allowed; start another flow at its end"
        )
    check_edges(sum(len(step.after) for step in plan.steps))
    seen: set[str] = set()
    for place, step in enumerate(plan.steps):
        check_step_name(step.name)
        if step.name in seen:
            raise InvalidOption("flow", f"two steps are named {step.name[:80]!r}; give each its own name=")
        seen.add(step.name)
        if any(before not in range(place) for before in step.after):
            raise InvalidOption("after", f"step {step.name[:80]!r} waits for a step that does not come before it")
    return plan


def check_edges(count: int) -> None:
    """Raise InvalidOption if the steps have too many dependencies in total."""
    if count > MAX_EDGES:
        raise InvalidOption(
            "after", f"the steps wait for {count} others in all, {MAX_EDGES} are allowed; add one step to wait for many"
        )


def in_order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """Names of steps, each after those that it waits for. Raises InvalidOption."""
    for name, others in after.items():
        for other in others:
            if other not in after:
                raise InvalidOption("after", f"step {name[:80]!r} waits for {other[:80]!r}, but there is no such step")
    try:
        return list(TopologicalSorter(after).static_order())
    except CycleError as error:
        circle = " before ".join(repr(name[:80]) for name in error.args[1][:10])
        raise InvalidOption("after", f"steps wait for each other in a cycle: {circle}") from None


def flow_job(key: JobKey, plan: Plan, request_id: str, result_ttl_ms: int, headers: dict[str, str] | None) -> NewJob:
    """The job of a flow."""
    envelope = Envelope(
        plan.name,
        msgspec.msgpack.encode(plan),
        CODEC,
        max_attempts=MAX_ATTEMPTS,
        backoff=BACKOFF,
        result_ttl_ms=result_ttl_ms,
        request_id=request_id,
        headers=headers,
    )
    return NewJob(key, envelope)


def plan_of(envelope: Envelope) -> Plan:
    """The plan in a flow's payload. Raises UnknownCodec for a plan of a later version."""
    version = msgspec.msgpack.decode(envelope.payload, type=_Version).version
    if version != VERSION:
        raise UnknownCodec(envelope.codec, f"the flow is of version {version}, this process knows version {VERSION}")
    return msgspec.msgpack.decode(envelope.payload, type=Plan)


def step_id(flow_id: str, name: str) -> str:
    """The id of a step's job."""
    return f"{flow_id}/{name}"


def step_key(flow: Job, step: Step) -> JobKey:
    """The key of a step's job."""
    return JobKey(flow.tenant, step.queue, step_id(flow.id, step.name))


def step_job(flow: Job, plan: Plan, place: int) -> NewJob:
    """The job of a step. Every call makes the same request, so the step is enqueued once. [ENQ-8]"""
    step = plan.steps[place]
    envelope = replace(
        step.envelope,
        request_id=f"{_life(flow)}:{place}:{flow.replays}",
        result_ttl_ms=max(PIN_MS, step.envelope.result_ttl_ms),
        headers={**(step.envelope.headers or {}), FLOW_HEADER: flow.id, **_after(plan, step)},
    )
    return NewJob(step_key(flow, step), envelope, step.delay_ms, step.run_at)


def _after(plan: Plan, step: Step) -> dict[str, str]:
    names: dict[str, list[str]] = {}
    for place in step.after:
        before = plan.steps[place]
        names.setdefault(before.queue, []).append(before.name)
    return {AFTER_HEADER: msgspec.json.encode(names).decode()} if names else {}


def steps_before(tenant: str, headers: Mapping[str, str]) -> dict[str, JobKey]:
    """The jobs that a step has waited for, by step name. They come from its headers."""
    names = msgspec.json.decode(headers.get(AFTER_HEADER, "{}"), type=dict[str, list[str]])
    flow_id = headers[FLOW_HEADER]
    return {name: JobKey(tenant, queue, step_id(flow_id, name)) for queue, some in names.items() for name in some}


def is_own(flow: Job, job: Job) -> bool:
    """Whether this life of the flow made the job. Another job may have a step's id."""
    return job.envelope.request_id.partition(":")[0] == _life(flow)


def is_earlier(flow: Job, job: Job) -> bool:
    """Whether an earlier life of the flow made the job."""
    return (job.envelope.headers or {}).get(FLOW_HEADER) == flow.id and not is_own(flow, job)


def is_behind(flow: Job, job: Job) -> bool:
    """Whether a failed or canceled step was not started again after its flow was replayed.

    The step's request id has the number of replays of the flow at the time it was made. Each later replay of the flow
    replays a failed step once.
    """
    return int(job.envelope.request_id.rpartition(":")[2]) + job.replays < flow.replays


class Turns:
    """The states of the steps that are jobs, and the steps that can start. A completed step unblocks its dependents."""

    def __init__(self, plan: Plan) -> None:
        self.states: dict[int, JobState] = {}
        """States of the steps that are jobs. A completed step stays completed."""
        self.ready: set[int] = set()
        """Steps that can be enqueued now."""
        self._open: set[int] = set()
        self._left = [len(step.after) for step in plan.steps]
        self._behind: list[list[int]] = [[] for _ in plan.steps]
        for place, step in enumerate(plan.steps):
            for before in step.after:
                self._behind[before].append(place)
            if not step.after:
                self.ready.add(place)

    def put(self, place: int, state: JobState) -> None:
        """Record the state of the job of a step."""
        before = self.states.get(place)
        self.states[place] = state
        self.ready.discard(place)
        if state in TERMINAL:
            self._open.discard(place)
        else:
            self._open.add(place)
        if state is JobState.COMPLETED and before is not JobState.COMPLETED:
            for behind in self._behind[place]:
                self._left[behind] -= 1
                self._add_if_ready(behind)

    def drop(self, place: int) -> None:
        """Record that the job of a step disappeared before it completed."""
        self.states.pop(place, None)
        self._open.discard(place)
        self._add_if_ready(place)

    @property
    def over(self) -> bool:
        """Whether no step runs and none can be started."""
        return not self._open and not self.ready

    def _add_if_ready(self, place: int) -> None:
        if not self._left[place] and place not in self.states:
            self.ready.add(place)


def shown_state(plan: Plan, place: int, states: Mapping[int, JobState], flow: JobState) -> JobState:
    """The state to show for a step. One that is no job yet is blocked, or ready if all steps before it completed."""
    if place in states:
        return states[place]
    if flow is JobState.COMPLETED:
        return JobState.COMPLETED  # Its record has been forgotten.
    if flow in TERMINAL or any(states.get(before) is not JobState.COMPLETED for before in plan.steps[place].after):
        return JobState.BLOCKED
    return JobState.READY


def _life(flow: Job) -> str:
    """Identify one life of a flow id. A flow that is started again under the same id has other steps."""
    return hashlib.sha256(flow.envelope.request_id.encode()).hexdigest()[:32]
