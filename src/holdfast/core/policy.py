"""What workers report about the job types that they run, for producers without the `@job` definition."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, Self

from msgspec import Struct

from holdfast.core.job import RESULT_TTL, Backoff


class TypeInfo(Struct, frozen=True, omit_defaults=True):
    """One job type with the options of its `@job`. The name "" means jobs without a type."""

    name: str
    queue: str = "default"
    max_attempts: int = 4
    backoff: Backoff = Backoff()
    timeout_ms: int | None = None
    priority: int = 5
    result_ttl_ms: int = RESULT_TTL


class Running(Protocol):
    """A live worker."""

    @property
    def queues(self) -> tuple[str, ...]: ...
    @property
    def types(self) -> tuple[TypeInfo, ...]: ...
    @property
    def started_at(self) -> int: ...


class KnownTypes(Struct, frozen=True):
    """What the live workers of a tenant run."""

    types: dict[str, TypeInfo]
    queues: dict[str, frozenset[str] | None]
    """The names of the types that the workers of each queue know. None: one of them does not report its types."""

    @classmethod
    def of(cls, workers: Iterable[Running]) -> Self:
        """Merge the workers' reports. If two of them differ about a type, as in a deploy, the later worker wins."""
        types: dict[str, TypeInfo] = {}
        queues: dict[str, frozenset[str] | None] = {}
        for worker in sorted(workers, key=lambda worker: worker.started_at):
            types.update({one.name: one for one in worker.types})
            names = frozenset(one.name for one in worker.types)
            for queue in worker.queues:
                before = queues.get(queue, frozenset())
                queues[queue] = None if before is None or not names else before | names
        return cls(types, queues)

    def only(self, queues: Collection[str]) -> KnownTypes:
        """The part about these queues."""
        served = {queue: names for queue, names in self.queues.items() if queue in queues}
        return KnownTypes({name: one for name, one in self.types.items() if one.queue in queues}, served)

    def warnings(self, type: str, queue: str) -> list[str]:
        """Warnings for the producer of a job. It is not refused: a worker for it may be about to start."""
        if queue not in self.queues:
            return [f"no live worker serves the queue {queue!r}: the job waits until one does"]
        known = self.queues[queue]
        if known is None or type in known:
            return []
        what = f"the type {type!r}" if type else "jobs without a type"
        elsewhere = sorted(queue for queue, names in self.queues.items() if names is not None and type in names)
        where = f", but those of {', '.join(map(repr, elsewhere))} do" if elsewhere else ""
        return [f"no live worker of the queue {queue!r} knows {what}{where}"]
