"""Holdfast: a reliable multi-tenant job queue. The public names, and nothing else."""

from __future__ import annotations

from holdfast.context import current_job
from holdfast.jobs import Message, RetryPolicy, job

__all__ = ["Message", "RetryPolicy", "current_job", "job"]
