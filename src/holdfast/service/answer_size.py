"""Keeps the answers of claims and lists under 8 MiB. A store limits the number of jobs, not their bytes.

A call asks the store for as many jobs as fit if each has the largest allowed size. If the tenant's last answer had only
smaller jobs, it asks for more: as many as fit if each has the size of the largest of those. Most jobs are small, so one
call is usually enough. Memory for the largest possible jobs is reserved before each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast.core.job import PAYLOAD_LIMIT, RESULT_LIMIT, Job
from holdfast.service.shares import Hold

ANSWER_BYTES = 8 * 1024 * 1024
"""The most bytes of payloads, results and errors in an answer. One job more may exceed it."""
STEP = 100
"""The most jobs in one call to the store."""
PIECE_BYTES, MIN_STEP = 1024 * 1024, 2
"""A page is read in calls of about this many bytes, but at least this many jobs. Other requests run in between."""

Kind = Literal["claim", "page"]
LargestJobs = dict[Kind, int]
"""The largest job, in bytes, of a tenant's last claim and of its last page."""
MAX_BYTES: LargestJobs = {"claim": PAYLOAD_LIMIT, "page": PAYLOAD_LIMIT + RESULT_LIMIT}
"""The most bytes that one job adds to an answer, without its errors."""


class AnswerSize:
    """How many jobs to ask the store for next, for one answer."""

    def __init__(self, largest: LargestJobs, kind: Kind, wanted: int, hold: Hold) -> None:
        self._largest = largest
        self._kind: Kind = kind
        self._max_bytes = MAX_BYTES[kind]
        self._wanted = wanted
        self._hold = hold
        self._size = 0
        self._is_certain = True

    def waiting(self) -> int:
        """The number for a claim that waits: as many as certainly fit. It reserves no memory while it waits."""
        return min(self._wanted, ANSWER_BYTES // self._max_bytes)

    def next(self) -> int:
        """The number for the next call; 0: the answer is full. Reserves memory for it."""
        left = ANSWER_BYTES - self._size
        likely = max(1, min(self._largest.get(self._kind, self._max_bytes), self._max_bytes))
        certain = left // self._max_bytes
        step = min(self._wanted, max(certain, min(STEP, left // likely, self._hold.room() // self._max_bytes)))
        if self._kind == "page" and self._kind in self._largest:
            step = min(step, max(MIN_STEP, PIECE_BYTES // likely))
        self._is_certain = step <= certain
        self._hold.resize(self._size + step * self._max_bytes)
        return step

    def add(self, jobs: Sequence[Job]) -> bool:
        """Count the jobs of a call. Returns whether they fit into the answer."""
        sizes = [_size(job) for job in jobs]
        if sizes:
            self._largest[self._kind] = max(sizes)
        self._size += sum(sizes)
        self._wanted -= len(sizes)
        self._hold.resize(self._size)
        return self._is_certain or self._size <= ANSWER_BYTES

    def drop(self, jobs: Sequence[Job]) -> None:
        """Undo the last `add`."""
        self._size -= sum(map(_size, jobs))
        self._wanted += len(jobs)
        self._hold.resize(self._size)


def count_that_fit(jobs: Sequence[Job]) -> int:
    """How many of the first jobs fit into an answer, at least one."""
    size = 0
    for count, job in enumerate(jobs):
        size += _size(job)
        if size > ANSWER_BYTES:
            return max(1, count)
    return len(jobs)


def _size(job: Job) -> int:
    size = len(job.envelope.payload)
    if job.result is not None:
        size += len(job.result.data)
    if job.errors:
        size += sum(len(error.message) + len(error.traceback) for error in job.errors)
    return size
