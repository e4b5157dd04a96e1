"""Idempotency keys: which job holds which key. [ENQ-3]"""

from __future__ import annotations

from holdfast.core import dedup
from holdfast.core.dedup import Binding, Scope
from holdfast.core.job import Job, NewJob


class KeyTable:
    """The bindings of keys to jobs."""

    def __init__(self) -> None:
        self._bindings: dict[Scope, Binding] = {}

    def get(self, scope: Scope | None) -> Binding | None:
        """The binding of a key, even if it has expired."""
        return None if scope is None else self._bindings.get(scope)

    def bind(self, scope: Scope | None, binding: Binding | None) -> None:
        """Bind a key to a job."""
        if scope is not None and binding is not None:
            self._bindings[scope] = binding

    def release(self, job: Job) -> None:
        """Free a job's key if its policy says so now, unless another job holds it by then."""
        if not dedup.is_released(job):
            return
        scope = dedup.scope_of(job.tenant, job.queue, job.envelope)
        binding = self.get(scope)
        if scope and binding and binding.job_id == job.id:
            del self._bindings[scope]

    def holder(self, item: NewJob, now: int) -> str | None:
        """The id of the job that holds an item's key."""
        binding = self.get(dedup.scope_of(item.key.tenant, item.key.queue, item.envelope))
        return None if binding is None or dedup.expired(binding, now) else binding.job_id

    def drop_expired(self, now: int) -> None:
        """Remove expired bindings."""
        self._bindings = {
            scope: binding for scope, binding in self._bindings.items() if not dedup.expired(binding, now)
        }

    def count_lasting(self, tenant: str) -> int:
        """How many of a tenant's keys outlive their job."""
        return sum(scope[0] == tenant and b.policy in dedup.LASTING for scope, b in self._bindings.items())
