"""Bodies for operators: lists by time, changes by filter, workers, tenants and their settings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from holdfast.core.budgets import Budgets
from holdfast.protocol.answers import Answer
from holdfast.protocol.requests import Instant, JobType, Limit, QueueName, Request, States

TenantName = Annotated[str, Meta(extra_json_schema={"pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"})]

# Requests -------------------------------------------------------------------------------------------------


class JobsQuery(Request):
    """Selects jobs of all queues, or of one, by time. `until` is not included."""

    state: States | None = None
    type: JobType | None = None
    queue: QueueName | None = None
    error: str | None = None
    """The last error's type or fingerprint, or a part of its message."""
    id: str | None = None
    """The beginning of the id."""
    since: Instant | None = None
    until: Instant | None = None
    cursor: str | None = None
    limit: Limit = 100


class JobsWhere(Request):
    """Selects jobs, as in the list. Without fields it selects all."""

    type: JobType | None = None
    queue: QueueName | None = None
    error: str | None = None
    id: str | None = None
    since: Instant | None = None
    until: Instant | None = None


class CancelWhere(Request):
    """Cancels waiting jobs that match; with `running`, leased ones too. `cursor` continues an earlier step."""

    where: JobsWhere
    running: bool = False
    dry_run: bool = False
    cursor: str | None = None
    limit: Limit = 1000


class PutSettings(Request):
    """Settings of a tenant, or with `queue` of one of its queues. What is left out stays as it is."""

    queue: QueueName | None = None
    weight: Annotated[float, Meta(gt=0)] | None = None
    max_waiting: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    budgets: Budgets | None = None


# Answers --------------------------------------------------------------------------------------------------


class NamedJob(Answer):
    """A job."""

    queue: str
    id: str


class Step(Answer):
    """What one step of a change by filter did or, in a dry run, would do. Continue with `cursor` while there is one."""

    tenant: str
    count: int
    """How many jobs were changed; in a dry run, how many match: at least this many, if there is a cursor."""
    sample: list[NamedJob]
    """Some of the jobs that match."""
    refused: dict[str, int]
    """How many were not changed, by their answer."""
    cursor: str | None
    dry_run: bool


class LivingWorker(Answer):
    """A living worker. Without `tenant` it serves all: then a tenant does not learn where it is or what it holds."""

    id: str
    queues: list[str]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    tenant: str | None = None
    host: str | None = None
    pid: int | None = None
    held: int | None = None


class Workers(Answer):
    """A page. An empty page may have a cursor."""

    workers: list[LivingWorker]
    cursor: str | None


class Tenants(Answer):
    """A page of names. An empty page may have a cursor."""

    tenants: list[str]
    cursor: str | None


class Setting(Answer):
    """What is set for a tenant or, with `queue`, for one of its queues."""

    queue: str | None = None
    weight: float | None = None
    max_waiting: int | None = None
    budgets: Budgets | None = None


class AllSettings(Answer):
    """All that is set for a tenant."""

    tenant: str
    settings: list[Setting]
