"""The check at the end: acknowledged jobs against the store, the event log and the handlers' own log."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from holdfast import JobRecord, JobState, Queue
from holdfast.core.job import TERMINAL
from holdfast.demo.effects import Effect
from holdfast.queue.records import Event

JobName = tuple[str, str, str]
"""Tenant, queue, id."""


class Lost(Struct, frozen=True):
    """An acknowledged job that has not ended as it should."""

    job: JobName
    text: str


class Times(Struct):
    """The times of one tenant's jobs, in milliseconds."""

    waits: list[float] = field(default_factory=list[float])
    """From the time a job was due until its handler first began."""
    runs: list[float] = field(default_factory=list[float])


class DemoAudit(Struct):
    """The result of the check."""

    acknowledged: Counter[str]
    """The acknowledged jobs of each tenant."""
    states: dict[str, Counter[JobState]] = field(default_factory=dict[str, Counter[JobState]])
    times: dict[str, Times] = field(default_factory=dict[str, Times])
    lost: list[Lost] = field(default_factory=list[Lost])
    dead: list[JobRecord] = field(default_factory=list[JobRecord])
    events: Counter[str] = field(default_factory=Counter[str])
    leases_lost: int = 0
    """Leases that expired because their worker was dead."""
    run_again: int = 0
    """Jobs whose handler had begun when its worker died, and that ran again on another worker."""
    finished_twice: int = 0
    """Jobs whose handler finished more than once: the work was done, but its acknowledgement was lost."""


async def audit(queues: Sequence[Queue], acknowledged: Iterable[JobName], effects: Sequence[Effect]) -> DemoAudit:
    """Check every acknowledged job. Uses only the public API."""
    names = sorted(set(acknowledged))
    found = DemoAudit(Counter(tenant for tenant, _, _ in names))
    events: dict[JobName, list[Event]] = defaultdict(list)
    for queue in queues:
        found.states[queue.tenant] = Counter()
        async for event in queue.events():
            events[event.tenant, event.queue, event.job_id].append(event)
            found.events[event.kind] += 1
            found.leases_lost += _is_lost_lease(event)
        own = [name for name in names if name[0] == queue.tenant]
        # Concurrent calls share round trips.
        records = await asyncio.gather(*(queue.get(id_, queue=queue_name) for _, queue_name, id_ in own))
        for name, record in zip(own, records, strict=True):
            if record is not None:
                found.states[queue.tenant][record.state] += 1
                if record.state is JobState.FAILED:
                    found.dead.append(record)
            problem = _problem(record, events.get(name, []))
            if problem:
                found.lost.append(Lost(name, problem))
    _count_effects(found, events, effects)
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the values do not exceed; 0 without values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _problem(record: JobRecord | None, events: Sequence[Event]) -> str:
    """What is wrong with an acknowledged job. Empty if it ended once and the store and the log agree on its end."""
    if record is None:
        return "the store does not know it"
    if record.state not in TERMINAL:
        return f"it is still {record.state.value}"
    endings = [event.kind for event in events if event.kind in TERMINAL]
    if endings != [record.state]:
        return f"the store says {record.state.value}, the event log says {', '.join(endings) or 'nothing'}"
    return ""


def _is_lost_lease(event: Event) -> bool:
    return event.kind == "expired" or (event.kind == "failed" and event.data["reason"] == "lease_expired")


def _count_effects(found: DemoAudit, events: dict[JobName, list[Event]], effects: Sequence[Effect]) -> None:
    runs: dict[JobName, dict[int, list[Effect]]] = defaultdict(dict)
    for effect in effects:
        runs[effect.tenant, effect.queue, effect.id].setdefault(effect.fence, []).append(effect)
    for name, by_fence in runs.items():
        times = found.times.setdefault(name[0], Times())
        due_ms = next((event.data["visible_at"] for event in events[name] if event.kind == "enqueued"), None)
        began = [run[0].at_ms for run in by_fence.values()]
        if due_ms is not None:
            times.waits.append(max(0.0, min(began) - due_ms))
        times.runs += [run[1].at_ms - run[0].at_ms for run in by_fence.values() if len(run) == 2]
        abandoned = {event.token for event in events[name] if _is_lost_lease(event)} & by_fence.keys()
        if any(fence > lost for lost in abandoned for fence in by_fence):
            found.run_again += 1
        if sum(len(run) == 2 for run in by_fence.values()) > 1:
            found.finished_twice += 1
