"""The fields that the record of a job and the context of its handler share."""

from __future__ import annotations

from holdfast.core.job import Job


class JobFields:
    """The fields of a job that never change."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def tenant(self) -> str:
        return self._job.tenant

    @property
    def queue(self) -> str:
        return self._job.queue

    @property
    def type(self) -> str:
        """The job type; "" for a payload without one."""
        return self._job.envelope.type

    @property
    def max_attempts(self) -> int:
        return self._job.envelope.max_attempts
