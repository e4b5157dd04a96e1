"""Bugs in the rules that all stores share: leases, attempts, retries, dedup, the moves of a job."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from holdfast.core import dedup, lease, lifecycle, retry
from holdfast.core.errors import LeaseExpired
from holdfast.core.events import Event
from holdfast.core.job import Backoff, Duplicate, Finished, Job, JobKey, JobState, NewJob
from holdfast.testing.mutants.planting import Bug, Planted, mutant

# Leases -------------------------------------------------------------------------------------------------------


@mutant("LEASE-1", "TENANT-2")
def token_not_checked(bug: Bug) -> None:
    """Whoever knows the address of a running job can acknowledge it."""

    def check_live(original: Planted, job: Job | None, key: JobKey, token: int, now: int) -> Any:
        return original(job, key, job.token if job is not None else token, now)

    bug.around(lease, "check_live", check_live)


@mutant("LEASE-1")
def expired_lease_accepted(bug: Bug) -> None:
    """An acknowledgement past the deadline goes through as long as nobody has reaped the lease."""

    def check_live(original: Planted, job: Job | None, key: JobKey, token: int, now: int) -> Any:
        late = job is not None and job.state is JobState.LEASED and now >= job.deadline
        return original(job, key, token, job.deadline - 1 if job is not None and late else now)

    bug.around(lease, "check_live", check_live)


@mutant("LEASE-1")
def lease_lives_a_moment_too_long(bug: Bug) -> None:
    """At the very deadline an acknowledgement is still accepted."""

    def check_live(original: Planted, job: Job | None, key: JobKey, token: int, now: int) -> Any:
        return original(job, key, token, now - 1)

    bug.around(lease, "check_live", check_live)


@mutant("LEASE-1")
def repeated_ack_makes_a_second_event(bug: Bug) -> None:
    """An acknowledgement that is sent again is carried out again."""

    def check(original: Planted, job: Job | None, key: JobKey, token: int, outcome: str, now: int) -> Any:
        answer = original(job, key, token, outcome, now)
        if job is None or not isinstance(answer, Finished):
            return answer
        job.state = JobState.LEASED
        return None

    bug.around(lease, "check", check)


@mutant("LEASE-1")
def repeated_ack_is_refused(bug: Bug) -> None:
    """Who did not hear the answer and asks again is told that the lease is lost."""

    def check(_: Planted, job: Job | None, key: JobKey, token: int, __: str, now: int) -> Any:
        return lease.check_live(job, key, token, now)

    bug.around(lease, "check", check)


@mutant("LEASE-2")
def extend_shortens_the_deadline(bug: Bug) -> None:
    """Extending by less than is left takes time away."""

    def extend(original: Planted, job: Job, lease_ms: int, now: int) -> Event:
        job.deadline = 0
        return original(job, lease_ms, now)

    bug.around(lifecycle, "extend", extend)


@mutant("LEASE-2")
def extend_revives_an_expired_lease(bug: Bug) -> None:
    """A lease that ran out can be extended until somebody reaps it; other acknowledgements are refused."""
    finishing: list[bool] = []

    def check(original: Planted, *args: Any) -> Any:
        finishing.append(True)
        try:
            return original(*args)
        finally:
            finishing.pop()

    def check_live(original: Planted, job: Job | None, *args: Any) -> Any:
        refusal = original(job, *args)
        late = isinstance(refusal, LeaseExpired) and job is not None and job.state is JobState.LEASED
        return None if late and not finishing else refusal

    bug.around(lease, "check", check)
    bug.around(lease, "check_live", check_live)


@mutant("CANCEL-1", "LEASE-1")
def cancel_loses_to_ack(bug: Bug) -> None:
    """A handler that did not hear of the cancel completes its job all the same."""

    def check(original: Planted, job: Job | None, key: JobKey, token: int, outcome: str, now: int) -> Any:
        if job is not None and job.state is JobState.CANCELED and token == job.token and not job.spent:
            job.state = JobState.LEASED
            return None
        return original(job, key, token, outcome, now)

    bug.around(lease, "check", check)


@mutant("CANCEL-2")
def only_waiting_is_ignored(bug: Bug) -> None:
    """A cancel that asked to leave running jobs alone ends them."""

    async def cancel(original: Planted, store: Any, items: Any) -> Any:
        return await original(store, [replace(item, only_waiting=False) for item in items])

    bug.answer("cancel", cancel)


# Attempts and retries -----------------------------------------------------------------------------------------


@mutant("RETRY-1", "CLAIM-1")
def attempt_counted_twice(bug: Bug) -> None:
    """Each lease costs two attempts."""

    def claim(original: Planted, job: Job, *args: Any) -> Event:
        job.attempts += 1
        return original(job, *args)

    bug.around(lifecycle, "claim", claim)


@mutant("RETRY-1")
def attempt_counted_on_retry(bug: Bug) -> None:
    """A failed attempt counts when it is leased and again when it fails."""

    def retried(original: Planted, job: Job, *args: Any) -> Event:
        event = original(job, *args)
        job.attempts += 1
        return event

    bug.around(lifecycle, "_retry", retried)


@mutant("RETRY-1")
def max_attempts_ignored(bug: Bug) -> None:
    """A job that always fails is retried for ever."""

    def retried(original: Planted, job: Job, *args: Any) -> Event:
        envelope, job.envelope = job.envelope, replace(job.envelope, max_attempts=1000)
        event = original(job, *args)
        job.envelope = envelope
        return event

    bug.around(lifecycle, "_retry", retried)


@mutant("RETRY-2")
def a_job_that_kills_its_worker_never_dies(bug: Bug) -> None:
    """An expired lease is followed by another one, however many there were."""

    def expire(original: Planted, job: Job, *args: Any) -> Event:
        envelope, job.envelope = job.envelope, replace(job.envelope, max_attempts=1000)
        event = original(job, *args)
        job.envelope = envelope
        return event

    bug.around(lifecycle, "expire", expire)


@mutant("RETRY-2")
def expired_lease_gives_the_attempt_back(bug: Bug) -> None:
    """A lease that ran out counts for nothing."""

    def expire(original: Planted, job: Job, *args: Any) -> Event:
        event = original(job, *args)
        job.attempts -= 1
        return event

    bug.around(lifecycle, "expire", expire)


@mutant("RETRY-3")
def backoff_ignores_the_cap(bug: Bug) -> None:
    """The wait grows without bound."""

    def delay_ms(original: Planted, backoff: Backoff, attempt: int, random: float) -> int:
        return original(replace(backoff, cap_ms=10**12), attempt, random)

    bug.around(retry, "delay_ms", delay_ms)


@mutant("RETRY-3")
def jitter_differs(bug: Bug) -> None:
    """Equal inputs give another delay than on the other stores."""

    def delay_ms(original: Planted, backoff: Backoff, attempt: int, random: float) -> int:
        return original(backoff, attempt, 1.0 - random)

    bug.around(retry, "delay_ms", delay_ms)


@mutant("RETRY-3")
def reaper_ignores_the_stored_policy(bug: Bug) -> None:
    """After an expired lease the default policy is used, not the message's own."""

    def expire(original: Planted, job: Job, *args: Any) -> Event:
        envelope, job.envelope = job.envelope, replace(job.envelope, backoff=Backoff())
        event = original(job, *args)
        job.envelope = envelope
        return event

    bug.around(lifecycle, "expire", expire)


@mutant("RETRY-4")
def error_history_unbounded(bug: Bug) -> None:
    """Every error of every attempt is kept."""
    bug.constant(lifecycle, "ERRORS_KEPT", 1_000_000, used_by=(lifecycle, "_remember"))


@mutant("RETRY-4")
def permanent_errors_are_retried(bug: Bug) -> None:
    """A failure for good is taken for a failed attempt."""

    def finish(original: Planted, job: Job, item: Any, *args: Any) -> Event:
        return original(job, replace(item, outcome="retry") if item.outcome == "fail" else item, *args)

    bug.around(lifecycle, "finish", finish)


@mutant("RETRY-5")
def release_keeps_the_attempt(bug: Bug) -> None:
    """A job that was given back has an attempt less."""

    def release(original: Planted, job: Job, *args: Any) -> Event:
        event = original(job, *args)
        job.attempts += 1
        return event

    bug.around(lifecycle, "_release", release)


@mutant("DEAD-1", "STATE-3")
def replay_keeps_attempts(bug: Bug) -> None:
    """A replayed job has no attempts left."""

    def replay(original: Planted, job: Job, now: int) -> Event:
        attempts = job.attempts
        event = original(job, now)
        job.attempts = attempts
        return event

    bug.around(lifecycle, "replay", replay)


# Enqueue ------------------------------------------------------------------------------------------------------


@mutant("ENQ-2")
def duplicate_id_accepted(bug: Bug) -> None:
    """A second enqueue of a waiting id takes the place of the first."""

    def by_id(original: Planted, existing: Job | None, new: NewJob, now: int) -> Any:
        answer = original(existing, new, now)
        return None if isinstance(answer, Duplicate) and answer.state is JobState.READY else answer

    bug.around(dedup, "by_id", by_id)


@mutant("ENQ-2")
def canceled_id_is_taken_for_ever(bug: Bug) -> None:
    """An id that was canceled cannot be enqueued afresh."""

    def by_id(original: Planted, existing: Job | None, new: NewJob, now: int) -> Any:
        if existing is not None and existing.state is JobState.CANCELED and not lifecycle.forgotten(existing, now):
            return Duplicate(existing.id, existing.state)
        return original(existing, new, now)

    bug.around(dedup, "by_id", by_id)


@mutant("ENQ-8")
def request_id_ignored(bug: Bug) -> None:
    """The same request again is a duplicate of itself."""

    def by_id(original: Planted, existing: Job | None, new: NewJob, now: int) -> Any:
        return original(existing, replace(new, envelope=replace(new.envelope, request_id="")), now)

    bug.around(dedup, "by_id", by_id)


@mutant("ENQ-5")
def delayed_job_visible_early(bug: Bug) -> None:
    """A delayed job shows a millisecond before its time."""

    def enqueue(original: Planted, new: NewJob, *args: Any) -> Any:
        run_at = None if new.run_at is None else new.run_at - 1
        return original(replace(new, delay_ms=max(0, new.delay_ms - 1), run_at=run_at), *args)

    bug.around(lifecycle, "enqueue", enqueue)


@mutant("TIME-1", "ENQ-5")
def producers_clock_decides(bug: Bug) -> None:
    """A delay is counted from the clock of the process, not from the store's."""

    def enqueue(original: Planted, new: NewJob, *args: Any) -> Any:
        if new.run_at is None and new.delay_ms:
            new = replace(new, run_at=time.time_ns() // 1_000_000 + new.delay_ms)
        return original(new, *args)

    bug.around(lifecycle, "enqueue", enqueue)


@mutant("STATE-1")
def a_due_job_still_shows_as_scheduled(bug: Bug) -> None:
    """Readers see the state as it was written, although its time has come."""

    def shown(_: Planted, job: Job, __: int) -> JobState:
        return job.state

    bug.around(lifecycle, "shown", shown)


# Idempotency keys ---------------------------------------------------------------------------------------------


@mutant("ENQ-3")
def key_never_released(bug: Bug) -> None:
    """A key stays with its job when that has ended."""

    def drop(original: Planted, store: Any, job: Job, *rest: Any) -> None:
        if rest[-1] != "until_terminal":
            original(store, job, *rest)

    def by_key(original: Planted, binding: dedup.Binding | None, holder: Job | None, now: int) -> Any:
        if binding is not None and binding.policy == "until_terminal":
            binding = dedup.Binding(binding.job_id, "forever")
        return original(binding, holder, now)

    _around_dropping(bug, drop)
    bug.around(dedup, "by_key", by_key)


@mutant("ENQ-3")
def key_released_too_early(bug: Bug) -> None:
    """A key that is held until the job ends is free as soon as it starts."""

    def drop(original: Planted, store: Any, job: Job, *rest: Any) -> None:
        original(store, job, *rest)
        original(store, job, *rest[:-1], "until_terminal")

    _around_dropping(bug, drop)


def _around_dropping(bug: Bug, drop: Planted) -> None:
    if bug.store == "memory":
        bug.around(bug.memory.MemoryStore, "_drop_binding", drop)
    else:
        bug.around(bug.file("transaction").Transaction, "drop_key", drop)


@mutant("ENQ-3")
def key_scoped_without_type(bug: Bug) -> None:
    """Jobs of two types that use the same key are taken for one."""

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

    if bug.store == "memory":
        bug.around(bug.memory, "_scope", scope)
    else:
        transaction = bug.file("transaction").Transaction
        bug.around(transaction, "binding", of_envelope)
        bug.around(transaction, "bind", of_envelope)
        bug.around(transaction, "drop_key", of_job)


@mutant("ENQ-3")
def key_is_looked_at_before_the_id(bug: Bug) -> None:
    """An enqueue of an id that is there answers with the job that holds its key."""

    def decide(original: Planted, new: NewJob, existing: Job | None, binding: Any, holder: Job | None, now: int) -> Any:
        answer = dedup.by_key(binding, holder, now)
        return answer if answer is not None else original(new, existing, binding, holder, now)

    bug.around(dedup, "decide", decide)


@mutant("ENQ-3", "DEAD-1")
def replay_leaves_its_key(bug: Bug) -> None:
    """A replayed job runs again without holding its key."""

    async def replay(original: Planted, store: Any, keys: Any) -> Any:
        jobs = await store.get(keys)
        answers = await original(store, keys)
        for job in jobs:
            if job is not None and job.envelope.idempotency is not None:
                await _drop_key(bug, store, job)
        return answers

    bug.answer("replay", replay)


async def _drop_key(bug: Bug, store: Any, job: Job) -> None:
    if bug.store == "memory":
        store._drop_binding(job, "until_terminal")  # noqa: SLF001 - inside the store, where the bug is
        return

    def change(transaction: Any) -> None:
        transaction.drop_key(job, transaction.find_lane(job.tenant, job.queue), "until_terminal")

    await store._opened.change(change)  # noqa: SLF001
