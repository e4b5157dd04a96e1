"""Why a job is where it is, and what would move it: from facts to causes. No I/O; `queue.explain` gathers the facts.

A cause is a value: a stable `code`, the facts as fields, and one or two plain sentences. A new kind of cause is a code
in `CODES` and one function here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import QuotaExceeded
from holdfast.core.job import FLOW_HEADER, TERMINAL, WAITING, Job, JobKey, JobState
from holdfast.core.names import RESERVED
from holdfast.core.policy import KnownTypes
from holdfast.core.text import printable
from holdfast.core.times import moment

AHEAD_LIMIT = 1_000
"""The most jobs ahead that are counted exactly."""
OTHERS_LIMIT = 20
"""The most other tenants that are counted exactly. Each costs a store a probe or two."""
OTHERS_SCAN = 40
"""The most tenants that a store looks at to count those with visible work."""
MAX_NAMED = 20
"""The most steps that a cause names."""
ERROR_SHOWN = 200
"""The most characters of an error in a sentence."""

CODES = {
    "paused": "the queue is paused",
    "no_worker": "no living worker serves the queue",
    "unknown_type": "no living worker of the queue knows the job's type",
    "jobs_ahead": "jobs of the same tenant come first: `count`, or `more` than that",
    "other_tenants": "other tenants have visible work in a queue of this name and get turns: `count`, or `more`",
    "next": "nothing is before it: the next claim takes it",
    "maintenance": "a process that does maintenance takes it",
    "scheduled": "it is not due before `at`",
    "retry": "attempt `attempt` of `max_attempts` failed with `error`; it is tried again `at`",
    "released": "the last worker gave it back, for `reason`; since `at` for that reason",
    "leased": "`worker_id` has it until `at`, on attempt `attempt` of `max_attempts`",
    "lease_expired": "the lease of `worker_id` ran out `at`: the next claim or the reaper ends it",
    "steps": "the flow `flow` waits for `count` of its `steps`",
    "flow": "it is a step of the flow `flow`",
    "completed": "it completed; its record is kept until `at`",
    "failed": "it failed with `error`, for `reason`; its record is kept until `at`; it can be replayed",
    "canceled": "it was canceled; its record is kept until `at`",
    "quota": "the tenant is at a quota or budget, `reason`, of `limit`: it can add no more jobs",
    "not_found": "there is no such job",
}
"""The codes of causes, with their facts."""


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason why a job is where it is. `code` is one of `CODES`; the facts that belong to it are set."""

    code: str
    text: str
    """One or two plain sentences."""
    at: datetime | None = None
    count: int | None = None
    more: bool = False
    """There are more than `count`."""
    limit: int | None = None
    attempt: int | None = None
    max_attempts: int | None = None
    error: str | None = None
    """As `type: message`."""
    worker_id: str | None = None
    type: str | None = None
    reason: str | None = None
    flow: str | None = None
    steps: list[str] = []


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a job is where it is, at one instant. `str` makes a few plain lines of it."""

    id: str
    queue: str
    state: JobState | None
    """None: there is no such job."""
    since: datetime | None
    """Since when it is in this state, if that is recorded."""
    causes: list[Cause]
    """What holds it back most comes first."""
    next_at: datetime | None
    """When the clock alone changes something, if it does."""

    def has(self, code: str) -> Cause | None:
        """The first cause with that code, or None."""
        return next((cause for cause in self.causes if cause.code == code), None)

    def __str__(self) -> str:
        state = "not found" if self.state is None else str(self.state)
        since = "" if self.since is None else f" since {_clock(self.since)}"
        return "\n".join([f"{self.queue}/{self.id}: {state}{since}", *(f"- {cause.text}" for cause in self.causes)])


class Standing(Struct, frozen=True):
    """A job in its queue, at one instant."""

    job: Job
    """As `get` shows it."""
    now: int
    paused: bool
    ahead: int = 0
    """Of a ready job: the visible jobs of its tenant that a claim takes first, up to AHEAD_LIMIT + 1. [CLAIM-2]"""
    others: int = 0
    """Of a ready job: the other tenants with visible work in a queue of this name that is not paused, up to
    OTHERS_LIMIT + 1. A store looks at OTHERS_SCAN tenants at most. [TENANT-4]"""


class Facts(Struct, frozen=True):
    """What is known about a job. `standing` is None if there is no such job."""

    key: JobKey
    standing: Standing | None
    workers: KnownTypes | None = None
    """What the workers serve, as far as they were read. None: workers do not matter."""
    more_workers: int = 0
    """The number of workers that were read, if there are more. 0: all were read."""
    quotas: Sequence[QuotaExceeded] = ()
    """The quotas and budgets that the tenant has reached."""
    flow: FlowFacts | None = None
    """Of a flow, or of a step that is not a job yet."""


class FlowFacts(Struct, frozen=True):
    """A flow, and the steps that it or one of its steps waits for: names with states."""

    flow: Job
    steps: Sequence[tuple[str, JobState]]
    step: JobState | None = None
    """The state of the step in question, which is not a job yet. None: it is about the flow itself."""


def standing_of(job: Job, now: int, *, paused: bool, visible: Iterable[Job], turns: Iterable[str]) -> Standing:
    """The standing of a job among the visible jobs of its tenant and the tenants that take turns. Looks at all."""
    if job.state is not JobState.READY:
        return Standing(job, now, paused)
    place = claim_order(job)
    ahead = sum(claim_order(other) < place for other in visible)
    others = len({*turns} - {job.tenant})
    return Standing(job, now, paused, min(ahead, AHEAD_LIMIT + 1), min(others, OTHERS_LIMIT + 1))


def claim_order(job: Job) -> tuple[int, int, int]:
    """Where a visible job comes among those of its tenant and queue. [CLAIM-2]"""
    return -job.envelope.priority, job.visible_at, job.seq


def explain(facts: Facts) -> Explanation:
    """What follows from the facts."""
    id, queue = facts.key.id, facts.key.queue
    if facts.standing is None:
        if facts.flow is not None and facts.flow.step is not None:
            since = moment(facts.flow.flow.enqueued_at)
            causes = [_steps(facts.flow)]
            return Explanation(id=id, queue=queue, state=facts.flow.step, since=since, causes=causes, next_at=None)
        return Explanation(id=id, queue=queue, state=None, since=None, causes=[_not_found(facts.key)], next_at=None)
    job, now = facts.standing.job, facts.standing.now
    next_at = _next_at(job)
    return Explanation(
        id=id,
        queue=queue,
        state=job.state,
        since=_moment(_since(job)),
        causes=list(_causes(facts, facts.standing)),
        next_at=_moment(next_at) if next_at is not None and next_at > now else None,
    )


def without_others(explanation: Explanation) -> Explanation:
    """The same, without the number of other tenants: a tenant may know that there are some. [TENANT-2]"""
    causes = [_others(0) if cause.code == "other_tenants" else cause for cause in explanation.causes]
    return replace(explanation, causes=causes)


def _since(job: Job) -> int | None:
    if job.state in TERMINAL:
        return job.finished_at
    if job.state is JobState.LEASED:
        return job.claimed_at
    if job.state is JobState.READY:
        return job.visible_at
    if job.state is JobState.RETRYING and job.errors:
        return job.errors[-1].at
    return job.enqueued_at if job.claimed_at is None else None  # The time of a release is in the log alone.


def _next_at(job: Job) -> int | None:
    if job.state is JobState.LEASED:
        return job.deadline
    if job.state in TERMINAL:
        return job.expires_at
    return job.visible_at


def _causes(facts: Facts, standing: Standing) -> Iterator[Cause]:
    job = standing.job
    if job.state in WAITING:
        yield from _waiting(facts, standing)
    elif job.state is JobState.LEASED:
        yield _leased(job, standing.now)
    else:
        yield _ended(job)
    if facts.flow is not None and job.state not in TERMINAL:
        yield _steps(facts.flow)
    flow_id = (job.envelope.headers or {}).get(FLOW_HEADER)
    if flow_id is not None:
        yield Cause(code="flow", text=f"It is a step of the flow {flow_id!r}.", flow=flow_id)
    if job.state in WAITING or job.state is JobState.FAILED:
        yield from map(_quota, facts.quotas)


def _waiting(facts: Facts, standing: Standing) -> Iterator[Cause]:
    job = standing.job
    held = [*_held_back(facts, standing)]
    yield from held
    if job.state is JobState.READY:
        if standing.ahead:
            yield _ahead(standing.ahead)
        elif not held:
            yield _next(job)
        if standing.others:
            yield _others(standing.others)
    if job.released_for:
        at = moment(job.first_released_at)
        text = f"The last worker gave it back, with the reason {job.released_for!r}, given since {_clock(at)}."
        yield Cause(code="released", text=text, reason=job.released_for, at=at)


def _held_back(facts: Facts, standing: Standing) -> Iterator[Cause]:
    """What keeps even the first job of the queue from being claimed."""
    job = standing.job
    if standing.paused:
        yield Cause(code="paused", text=f"The queue {job.queue!r} is paused: it hands out no jobs until it is resumed.")
    if job.state is JobState.RETRYING:
        yield _retry(job)
    elif job.state is JobState.SCHEDULED:
        at = moment(job.visible_at)
        yield Cause(code="scheduled", text=f"It is scheduled for {_clock(at)}.", at=at)
    if facts.workers is not None and not job.queue.startswith(RESERVED):
        yield from _workers(job, facts.workers, facts.more_workers)


def _retry(job: Job) -> Cause:
    at, last = moment(job.visible_at), _last_error(job)
    attempts, most = job.attempts, job.envelope.max_attempts
    text = f"Attempt {attempts} of {most} failed{_because(last)}. It is tried again at {_clock(at)}."
    return Cause(code="retry", text=text, at=at, attempt=attempts, max_attempts=most, error=last)


def _workers(job: Job, known: KnownTypes, more: int) -> Iterator[Cause]:
    """Says that no worker serves the job only if all workers were read."""
    among = f"none of the first {more:,} living workers" if more else "no living worker"
    if job.queue not in known.queues:
        text = f"{among.capitalize()} serves the queue {job.queue!r}."
        yield Cause(code="no_worker", text=text, count=more or None, more=more > 0)
        return
    types = known.queues[job.queue]
    if types is not None and job.envelope.type not in types:
        what = f"the type {job.envelope.type!r}" if job.envelope.type else "jobs without a type"
        text = f"{among.capitalize()} of the queue {job.queue!r} knows {what}."
        yield Cause(code="unknown_type", text=text, type=job.envelope.type, count=more or None, more=more > 0)


def _next(job: Job) -> Cause:
    if job.queue.startswith(RESERVED):
        return Cause(
            code="maintenance", text="A process that does maintenance takes it next: a worker, or `holdfast maintain`."
        )
    return Cause(code="next", text="No job of this tenant is ahead: the next free worker takes it.")


def _ahead(count: int) -> Cause:
    more = count > AHEAD_LIMIT
    count = min(count, AHEAD_LIMIT)
    verb = "is" if count == 1 else "are"
    text = f"{_number(count, 'job', more=more)} of this tenant {verb} ahead in this queue."
    return Cause(code="jobs_ahead", text=text, count=count, more=more)


def _others(count: int) -> Cause:
    """With `count` 0 it says that there are some, without their number."""
    if not count:
        return Cause(code="other_tenants", text="Other tenants have work in a queue of this name: workers take turns.")
    more = count > OTHERS_LIMIT
    count = min(count, OTHERS_LIMIT)
    verb = "has" if count == 1 else "have"
    text = f"{_number(count, 'other tenant', more=more)} {verb} work in a queue of this name: workers take turns."
    return Cause(code="other_tenants", text=text, count=count, more=more)


def _leased(job: Job, now: int) -> Cause:
    at, attempt, most = moment(job.deadline), job.attempts, job.envelope.max_attempts
    code, text = "leased", f"Worker {job.worker_id!r} has it until {_clock(at)}, on attempt {attempt} of {most}."
    if job.deadline <= now:
        code = "lease_expired"
        text = f"The lease of worker {job.worker_id!r} ran out at {_clock(at)}: the next claim or the reaper ends it."
    return Cause(code=code, text=text, at=at, attempt=attempt, max_attempts=most, worker_id=job.worker_id)


def _ended(job: Job) -> Cause:
    at = _moment(job.expires_at)
    kept = "" if at is None else f" Its record is kept until {_clock(at)}."
    if job.state is not JobState.FAILED:
        return Cause(code=str(job.state), text=f"It is {job.state}.{kept}", at=at)
    last, most = _last_error(job), job.envelope.max_attempts
    text = (
        f"It failed with the reason {job.reason} on attempt {job.attempts} of {most}{_because(last)}."
        f"{kept} A replay starts it again: `queue.replay` or `holdfast dlq replay`."
    )
    return Cause(
        code="failed", text=text, at=at, attempt=job.attempts, max_attempts=most, error=last, reason=job.reason
    )


def _steps(facts: FlowFacts) -> Cause:
    flow, steps = facts.flow, facts.steps
    named = [f"{name} ({state})" for name, state in steps[:MAX_NAMED]]
    rest = f" and {len(steps) - MAX_NAMED} more" if len(steps) > MAX_NAMED else ""
    who = "The flow" if facts.step is None else "This step"
    if facts.step is not None and flow.state in TERMINAL:
        text = f"This step of the flow {flow.id!r} never started: the flow is {flow.state}."
    elif steps:
        text = f"{who} waits for {_number(len(steps), 'step')} of the flow {flow.id!r}: {', '.join(named)}{rest}."
    else:
        text = f"{who} waits for no other step: the process that leads the flow {flow.id!r} goes on with it."
    return Cause(
        code="steps", text=text, count=min(len(steps), MAX_NAMED), more=len(steps) > MAX_NAMED, flow=flow.id,
        steps=[name for name, _ in steps[:MAX_NAMED]],
    )  # fmt: skip


def _quota(reached: QuotaExceeded) -> Cause:
    where = "the tenant" if reached.queue is None else f"the queue {reached.queue!r}"
    text = f"Note: {where} is at its {reached.budget} of {reached.limit:,}: more jobs and replays are refused."
    return Cause(code="quota", text=text, reason=reached.budget, count=reached.used, limit=reached.limit)


def _not_found(key: JobKey) -> Cause:
    text = f"There is no job {key.id!r} in the queue {key.queue!r}: never enqueued, purged, or its retention is over."
    return Cause(code="not_found", text=text)


def _last_error(job: Job) -> str | None:
    return f"{job.errors[-1].type}: {job.errors[-1].message}" if job.errors else None


def _because(error: str | None) -> str:
    if error is None:
        return ""
    return f" ({printable(error if len(error) <= ERROR_SHOWN else f'{error[:ERROR_SHOWN]}...')})"


def _number(count: int, noun: str, *, more: bool = False) -> str:
    return f"{'More than ' if more else ''}{count:,} {noun}{'' if count == 1 else 's'}"


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
