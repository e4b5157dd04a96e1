"""Protocols that a store may have beyond the contract. Callers check for each with `isinstance`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from holdfast.core.budgets import TenantUsage
from holdfast.core.explain import Explanation
from holdfast.core.job import Claimed, ClaimRequest, JobKey
from holdfast.core.policy import KnownTypes
from holdfast.core.schedule import Schedule, Target, Timing
from holdfast.protocol import answers
from holdfast.store import LogPage, Store

Deliver = Callable[[Claimed, float], None]
"""Takes jobs that were handed off, and the instant, by this process's clock, from which their leases count."""


class WorkerInbox(Protocol):
    """Where one worker claims, and where jobs are sent to it by direct hand-off."""

    async def claim(self, request: ClaimRequest, free: int | None = None) -> Claimed:
        """As `Store.claim`. If it finds fewer jobs than `request.limit`, more may be delivered until the next claim.

        An inbox serves one tenant, or all, and always the same queues, in any order. Claimed and delivered jobs
        together are at most `request.limit`. Delivered jobs are also at most `free`, the number that can start at
        once, less the claimed ones.
        """
        ...

    @property
    def needs_claim(self) -> bool:
        """Whether half of the room or more is used up: only a claim makes new room."""
        ...

    async def close(self) -> None:
        """Stop deliveries, after those in flight have arrived. Calling it twice is harmless."""
        ...


@runtime_checkable
class DirectHandoff(Protocol):
    """A store whose enqueue can lease a new job to a waiting worker in the same step."""

    def open_inbox(self, deliver: Deliver) -> WorkerInbox | None:
        """An inbox for one worker, in the current event loop; None if this deployment cannot do it."""
        ...


@runtime_checkable
class SelfCreating(Protocol):
    """A store that `open` creates where none exists."""

    @property
    def created(self) -> bool:
        """Whether `open` created the store."""
        ...


@runtime_checkable
class Pooled(Protocol):
    """A store whose calls take a connection from a pool: further calls wait."""

    @property
    def calls_at_once(self) -> int:
        """How many calls, other than extends, one handle can have in flight."""
        ...


class LogRange(Struct, frozen=True):
    """A part of one shard's log: the events after `after`, up to and including `end`."""

    shard: int
    after: str
    end: str


@runtime_checkable
class SplitLog(Protocol):
    """A store whose log can be read in ranges, in parallel, between fixed offsets. [EVENT-2]

    All methods raise EventsTrimmed if a part of what they read is gone, and InvalidOption for an invalid offset.
    """

    async def bounds(self, after: str | None, most: int | None = None, end: str | None = None) -> tuple[str, str]:
        """The offsets to read between: from `after` (or the oldest event kept), about `most` events on.

        Without `most`, up to `end`, or to the end of the log now.
        """
        ...

    async def written(self) -> str:
        """The end of what has been written: a reader that gets there has the event of every change until now.

        `bounds` may end earlier, at a transaction that is still open.
        """
        ...

    async def split(self, after: str, end: str, size: int) -> Sequence[LogRange]:
        """Cut the log between two offsets into ranges of about `size` events, in log order within each shard."""
        ...

    async def read(self, log_range: LogRange, limit: int) -> LogPage:
        """About the first `limit` events of a range. While there are `more`, continue with `after` set to `next`."""
        ...


@runtime_checkable
class SingleTenant(Protocol):
    """A store of one tenant: its token names the tenant."""

    def use_token(self, token: str | Callable[[], str]) -> None:
        """Send this token, or what the function returns at the time. Call it before `open`. Raises InvalidOption."""
        ...

    def bind(self, tenant: str | None) -> str:
        """The token's tenant. Raises InvalidOption if `tenant` names another."""
        ...


@runtime_checkable
class ScheduleKeeper(Protocol):
    """A store that keeps and runs schedules itself: the HTTP service."""

    async def put_schedule(self, tenant: str, name: str, timing: Timing, target: Target) -> Schedule:
        """Enqueue `target` at every tick of `timing`. Replaces the schedule of that name."""
        ...

    async def get_schedule(self, tenant: str, name: str) -> Schedule | None:
        """The schedule, or None. [TENANT-2]"""
        ...

    async def list_schedules(self, tenant: str) -> Sequence[Schedule]:
        """The tenant's schedules, by name."""
        ...

    async def remove_schedule(self, tenant: str, name: str) -> bool:
        """Remove a schedule. Returns whether there was one."""
        ...


@runtime_checkable
class TypeCatalog(Protocol):
    """A store that knows by itself which job types the workers of a tenant run. See `known_types`."""

    async def known_types(self, tenant: str) -> KnownTypes:
        """The job types that the live workers of this tenant run."""
        ...


async def known_types(store: Store, tenant: str) -> KnownTypes:
    """The job types that live workers run for this tenant: its own workers, and those for all tenants."""
    if isinstance(store, TypeCatalog):
        return await store.known_types(tenant)
    return KnownTypes.of(await store.workers(tenant))


@runtime_checkable
class UsageReporter(Protocol):
    """A store whose budgets are enforced elsewhere: the HTTP service."""

    async def tenant_usage(self, tenant: str) -> TenantUsage:
        """What a tenant keeps and may keep."""
        ...


@runtime_checkable
class Explainer(Protocol):
    """A store that explains a job itself, from facts that it does not hand out: the HTTP service."""

    async def explain(self, key: JobKey) -> Explanation:
        """Why a job is where it is. [TENANT-2]"""
        ...


@runtime_checkable
class FlowReader(Protocol):
    """A store that returns a flow with all its steps in one call: the HTTP service."""

    async def flow(self, tenant: str, id: str) -> answers.Flow | None:
        """The flow, or None. [TENANT-2]"""
        ...
