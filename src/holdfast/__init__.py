"""Holdfast: a reliable multi-tenant job queue. The public names, and nothing else."""

import importlib as _importlib
import typing as _typing

from holdfast.blobs import BlobRef
from holdfast.core.errors import (
    AccessRefused,
    EventsTrimmed,
    HoldfastError,
    InvalidName,
    InvalidOption,
    InvalidPayload,
    JobCanceled,
    JobFailed,
    JobNotFound,
    LeaseExpired,
    LeaseLost,
    NotReplayable,
    PartlyRefused,
    PayloadTooLarge,
    Permanent,
    QuotaExceeded,
    ResultExpired,
    ResultTooLarge,
    RetryLater,
    StoreBusy,
    StoreMismatch,
    StoreUnavailable,
    UnknownCodec,
    UnknownJobType,
    Unsupported,
    WaitTimeout,
)
from holdfast.core.explain import Cause, Explanation
from holdfast.core.job import JobState
from holdfast.flows.flow import Flow, FlowRecord
from holdfast.jobs.context import current_job
from holdfast.jobs.definition import JobDefinition, Message, RetryPolicy, job
from holdfast.queue.records import Event, JobRecord, Schedule
from holdfast.queue.ticket import Ticket
from holdfast.store import Capabilities

if _typing.TYPE_CHECKING:
    from holdfast.queue.queue import Queue
    from holdfast.worker import Worker

__all__ = [
    "AccessRefused",
    "BlobRef",
    "Capabilities",
    "Cause",
    "Event",
    "EventsTrimmed",
    "Explanation",
    "Flow",
    "FlowRecord",
    "HoldfastError",
    "InvalidName",
    "InvalidOption",
    "InvalidPayload",
    "JobCanceled",
    "JobDefinition",
    "JobFailed",
    "JobNotFound",
    "JobRecord",
    "JobState",
    "LeaseExpired",
    "LeaseLost",
    "Message",
    "NotReplayable",
    "PartlyRefused",
    "PayloadTooLarge",
    "Permanent",
    "Queue",
    "QuotaExceeded",
    "ResultExpired",
    "ResultTooLarge",
    "RetryLater",
    "RetryPolicy",
    "Schedule",
    "StoreBusy",
    "StoreMismatch",
    "StoreUnavailable",
    "Ticket",
    "UnknownCodec",
    "UnknownJobType",
    "Unsupported",
    "WaitTimeout",
    "Worker",
    "current_job",
    "job",
]


# Loaded at first use: they import asyncio, which takes longer than everything else.
_LATER = {"Queue": "holdfast.queue.queue", "Worker": "holdfast.worker"}


def __getattr__(name: str) -> _typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = globals()[name] = getattr(_importlib.import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
