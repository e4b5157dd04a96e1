"""The live workers, as they reported themselves."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.names import check_id
from holdfast.paging import name_cursor, name_page
from holdfast.store import WorkerInfo, WorkerPage


class WorkerTable:
    """The workers by id. Each is removed at an instant unless it reports again."""

    def __init__(self) -> None:
        self._workers: dict[str, tuple[int, WorkerInfo]] = {}

    def beat(self, worker: WorkerInfo, ttl_ms: int, now: int) -> None:
        """Record that a worker is alive. A `ttl_ms` of 0 or less removes it."""
        if ttl_ms <= 0:
            self._workers.pop(worker.worker_id, None)
            return
        expires_at, known = self._workers.get(worker.worker_id, (0, worker))
        started_at = known.started_at if expires_at > now else now
        self._workers[worker.worker_id] = (now + ttl_ms, replace(worker, started_at=started_at, seen_at=now))

    def serving(self, tenant: str | None, now: int) -> list[WorkerInfo]:
        """The live workers that serve a tenant (None: any), by id."""
        self._workers = {name: entry for name, entry in self._workers.items() if entry[0] > now}
        live = (worker for _, (_, worker) in sorted(self._workers.items()))
        return [worker for worker in live if tenant is None or worker.tenant in (None, tenant)]

    def page(self, tenant: str | None, cursor: str | None, limit: int, now: int) -> WorkerPage:
        """A page of them, by id."""
        live = {worker.worker_id: worker for worker in self.serving(tenant, now)}
        names, following = name_page(live, name_cursor(cursor, check_id), limit)
        return WorkerPage([live[name] for name in names], following)
