"""Bugs in what an enqueue answers: ids, requests, delays, idempotency keys."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from holdfast.core import dedup, lifecycle
from holdfast.core.job import Duplicate, Job, JobState, NewJob
from tests.mutants.planting import CORE, FACES, Bug, Planted, mutant

# Enqueue ------------------------------------------------------------------------------------------------------


@mutant("ENQ-2", stores=CORE)
def duplicate_id_accepted(bug: Bug) -> None:
    """A second enqueue of a waiting id replaces the first job."""

    def by_id(original: Planted, existing: Job | None, new: NewJob, now: int) -> Any:
        answer = original(existing, new, now)
        return None if isinstance(answer, Duplicate) and answer.state is JobState.READY else answer

    bug.around(dedup, "by_id", by_id)


@mutant("ENQ-2", stores=CORE)
def canceled_id_is_taken_for_ever(bug: Bug) -> None:
    """A canceled id cannot be enqueued again."""

    def by_id(original: Planted, existing: Job | None, new: NewJob, now: int) -> Any:
        if existing is not None and existing.state is JobState.CANCELED and not lifecycle.forgotten(existing, now):
            return Duplicate(existing.id, existing.state)
        return original(existing, new, now)

    bug.around(dedup, "by_id", by_id)


@mutant("ENQ-8", stores=CORE)
def request_id_ignored(bug: Bug) -> None:
    """The same request again is a duplicate of itself."""

    def by_id(original: Planted, existing: Job | None, new: NewJob, now: int) -> Any:
        return original(existing, replace(new, envelope=replace(new.envelope, request_id="")), now)

    bug.around(dedup, "by_id", by_id)


@mutant("ENQ-5")
def delayed_job_visible_early(bug: Bug) -> None:
    """A delayed job is visible a millisecond before its time."""

    def enqueue(original: Planted, new: NewJob, *args: Any) -> Any:
        run_at = None if new.run_at is None else new.run_at - 1
        return original(replace(new, delay_ms=max(0, new.delay_ms - 1), run_at=run_at), *args)

    bug.around(lifecycle, "enqueue", enqueue)


@mutant("TIME-1", "ENQ-5")
def producers_clock_decides(bug: Bug) -> None:
    """A delay counts from the clock of this process, not the store's."""

    def enqueue(original: Planted, new: NewJob, *args: Any) -> Any:
        if new.run_at is None and new.delay_ms:
            new = replace(new, run_at=time.time_ns() // 1_000_000 + new.delay_ms)
        return original(new, *args)

    bug.around(lifecycle, "enqueue", enqueue)


@mutant("STATE-1", stores=FACES)
def a_due_job_still_shows_as_scheduled(bug: Bug) -> None:
    """Readers see the stored state of a job that has become due."""

    def shown(_: Planted, job: Job, __: int) -> JobState:
        return job.state

    bug.around(lifecycle, "shown", shown)


# Idempotency keys ---------------------------------------------------------------------------------------------


@mutant("ENQ-3")
def key_never_released(bug: Bug) -> None:
    """An ended job keeps its key."""

    def is_released(original: Planted, job: Job) -> bool:
        return original(job) and not dedup.retakes_key(job)

    def by_key(original: Planted, binding: dedup.Binding | None, holder: Job | None, now: int) -> Any:
        if binding is not None and binding.policy == "until_terminal":
            binding = dedup.Binding(binding.job_id, "forever")
        return original(binding, holder, now)

    bug.around(dedup, "is_released", is_released)
    bug.around(dedup, "by_key", by_key)


@mutant("ENQ-3")
def key_released_too_early(bug: Bug) -> None:
    """A key that is held until the job ends is free as soon as it starts."""

    def is_released(original: Planted, job: Job) -> bool:
        return original(job) or (dedup.retakes_key(job) and job.state is JobState.LEASED)

    bug.around(dedup, "is_released", is_released)


@mutant("ENQ-3")
def key_scoped_without_type(bug: Bug) -> None:
    """Jobs of two types with the same key are taken for one job."""

    def without(envelope: Any) -> Any:
        return replace(envelope, type="")

    def scope(original: Planted, tenant: str, queue: str, envelope: Any) -> Any:
        return original(tenant, queue, without(envelope))

    def of_envelope(original: Planted, store: Any, envelope: Any, *rest: Any) -> Any:
        return original(store, without(envelope), *rest)

    def of_job(original: Planted, store: Any, job: Job, *rest: Any) -> Any:
        plain = job.snapshot()
        plain.envelope = without(job.envelope)
        return original(store, plain, *rest)

    bug.at("memory").around(dedup, "scope_of", scope)
    transaction = bug.file("transaction").Transaction
    bug.at("file").around(transaction, "binding", of_envelope)
    bug.at("file").around(transaction, "bind", of_envelope)
    bug.at("file").around(transaction, "drop_key", of_job)


@mutant("ENQ-3", stores=CORE)
def key_is_looked_at_before_the_id(bug: Bug) -> None:
    """An enqueue of an existing id answers with the job that holds its key."""

    def decide(original: Planted, new: NewJob, existing: Job | None, binding: Any, holder: Job | None, now: int) -> Any:
        answer = dedup.by_key(binding, holder, now)
        return answer if answer is not None else original(new, existing, binding, holder, now)

    bug.around(dedup, "decide", decide)


@mutant("ENQ-3", "DEAD-1")
def replay_leaves_its_key(bug: Bug) -> None:
    """A replayed job runs again without holding its key."""

    async def replay(original: Planted, store: Any, keys: Any, **more: Any) -> Any:
        jobs = await store.get(keys)
        answers = await original(store, keys, **more)
        for job in jobs:
            if job is not None and job.envelope.idempotency is not None:
                await _DROP_KEY[bug.store](store, job)
        return answers

    bug.answer("replay", replay)


async def _drop_key_in_memory(store: Any, job: Job) -> None:
    del store.tables.keys._bindings[dedup.scope_of(job.tenant, job.queue, job.envelope)]


async def _drop_key_in_a_file(store: Any, job: Job) -> None:
    def change(transaction: Any) -> None:
        transaction.drop_key(job, transaction.find_lane(job.tenant, job.queue))

    await store._opened.change(change)


_DROP_KEY = {"memory": _drop_key_in_memory, "file": _drop_key_in_a_file}
