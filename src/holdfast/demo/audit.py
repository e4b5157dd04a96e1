"""The count at the end: what producers were promised, against the store, the event log and the handlers' own log."""

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
    """Milliseconds of one tenant's jobs."""

    waits: list[float] = field(default_factory=list[float])
    """From the moment a job was due until its handler first began."""
    runs: list[float] = field(default_factory=list[float])


class Audit(Struct):
    """What was found."""

    acknowledged: Counter[str]
    """Promised jobs, by tenant."""
    states: dict[str, Counter[JobState]] = field(default_factory=dict[str, Counter[JobState]])
    times: dict[str, Times] = field(default_factory=dict[str, Times])
    lost: list[Lost] = field(default_factory=list[Lost])
    dead: list[JobRecord] = field(default_factory=list[JobRecord])
    events: Counter[str] = field(default_factory=Counter[str])
    leases_lost: int = 0
    """Leases that ran out because their worker was gone."""
    run_again: int = 0
    """Jobs whose handler had begun when its lease was lost with its worker, and that began again elsewhere."""
    finished_twice: int = 0
    """Jobs whose handler came to its end more than once: the work was done, the word of it was lost."""


async def audit(queues: Sequence[Queue], acknowledged: Iterable[JobName], effects: Sequence[Effect]) -> Audit:
    """Check every acknowledged job. Reads only what anybody could read."""
    names = sorted(set(acknowledged))
    found = Audit(Counter(tenant for tenant, _, _ in names))
    events: dict[JobName, list[Event]] = defaultdict(list)
    for queue in queues:
        found.states[queue.tenant] = Counter()
        async for event in queue.events():
            events[event.tenant, event.queue, event.job_id].append(event)
            found.events[event.kind] += 1
            found.leases_lost += _is_lost_lease(event)
        mine = [name for name in names if name[0] == queue.tenant]
        # Asked for one by one, and sent together: concurrent calls share round trips.
        records = await asyncio.gather(*(queue.get(id_, queue=queue_name) for _, queue_name, id_ in mine))
        for name, record in zip(mine, records, strict=True):
            if record is not None:
                found.states[queue.tenant][record.state] += 1
                if record.state is JobState.FAILED:
                    found.dead.append(record)
            trouble = _trouble(record, events.get(name, []))
            if trouble:
                found.lost.append(Lost(name, trouble))
    _count_effects(found, events, effects)
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` of them; 0 of none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _trouble(record: JobRecord | None, events: Sequence[Event]) -> str:
    """What is wrong with an acknowledged job, or nothing: it ended once, and the store and the log agree on how."""
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


def _count_effects(found: Audit, events: dict[JobName, list[Event]], effects: Sequence[Effect]) -> None:
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
