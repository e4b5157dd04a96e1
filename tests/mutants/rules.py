"""Bugs in the rules that all stores share: leases, cancel, attempts, retries."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core import lease, lifecycle, retry
from holdfast.core.errors import LeaseExpired
from holdfast.core.events import Event
from holdfast.core.job import Backoff, Finish, Finished, Job, JobKey, JobState
from tests.mutants.planting import CORE, FACES, Bug, Planted, mutant

# Leases -------------------------------------------------------------------------------------------------------


@mutant("LEASE-1", "TENANT-2", stores=CORE)
def token_not_checked(bug: Bug) -> None:
    """An acknowledgement needs only the address of a running job."""

    def check_live(original: Planted, job: Job | None, key: JobKey, token: int, now: int) -> Any:
        return original(job, key, job.token if job is not None else token, now)

    bug.around(lease, "check_live", check_live)


@mutant("LEASE-1", stores=CORE)
def expired_lease_accepted(bug: Bug) -> None:
    """An acknowledgement past the deadline is accepted until the lease is reaped."""

    def check_live(original: Planted, job: Job | None, key: JobKey, token: int, now: int) -> Any:
        late = job is not None and job.state is JobState.LEASED and now >= job.deadline
        return original(job, key, token, job.deadline - 1 if job is not None and late else now)

    bug.around(lease, "check_live", check_live)


@mutant("LEASE-1", stores=CORE)
def lease_lives_a_moment_too_long(bug: Bug) -> None:
    """An acknowledgement is accepted at the exact deadline."""

    def check_live(original: Planted, job: Job | None, key: JobKey, token: int, now: int) -> Any:
        return original(job, key, token, now - 1)

    bug.around(lease, "check_live", check_live)


@mutant("LEASE-1", stores=CORE, seen_by="a_call_under_an_ended_lease_enqueues_nothing")
def late_leader_starts_jobs(bug: Bug) -> None:
    """An enqueue or a replay under a lease does not check whether the lease is over."""

    def check_under(*_: Any) -> None:
        return None

    bug.around(lease, "check_under", check_under)


@mutant("KEEP-1", stores=CORE, seen_by="a_call_for_an_earlier_life_of_an_id_does_not_change_the_next")
def earlier_life_means_any_life(bug: Bug) -> None:
    """A cancel or a purge of an earlier life of an id applies to the next one."""

    def is_life(*_: Any) -> bool:
        return True

    bug.around(lifecycle, "is_life", is_life)


@mutant("LEASE-1", stores=CORE)
def repeated_ack_makes_a_second_event(bug: Bug) -> None:
    """A repeated acknowledgement is applied again."""

    def check(original: Planted, job: Job | None, key: JobKey, token: int, outcome: str, now: int) -> Any:
        answer = original(job, key, token, outcome, now)
        if job is None or not isinstance(answer, Finished):
            return answer
        job.state = JobState.LEASED
        return None

    bug.around(lease, "check", check)


@mutant("LEASE-1", stores=CORE)
def repeated_ack_is_refused(bug: Bug) -> None:
    """A repeated acknowledgement gets LeaseLost."""

    def check(_: Planted, job: Job | None, key: JobKey, token: int, __: str, now: int) -> Any:
        return lease.check_live(job, key, token, now)

    bug.around(lease, "check", check)


@mutant("LEASE-2")
def extend_shortens_the_deadline(bug: Bug) -> None:
    """Extending by less than what is left shortens the lease."""

    def extend(original: Planted, job: Job, lease_ms: int, now: int) -> Event:
        job.deadline = 0
        return original(job, lease_ms, now)

    bug.around(lifecycle, "extend", extend)


@mutant("LEASE-2", stores=CORE)
def extend_revives_an_expired_lease(bug: Bug) -> None:
    """An expired lease can be extended until it is reaped; other acknowledgements are refused."""
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


@mutant("CANCEL-1", "LEASE-1", stores=CORE)
def cancel_loses_to_ack(bug: Bug) -> None:
    """A handler that missed the cancel can still complete its job."""

    def check(original: Planted, job: Job | None, key: JobKey, token: int, outcome: str, now: int) -> Any:
        if job is not None and job.state is JobState.CANCELED and token == job.token and not job.spent:
            job.state = JobState.LEASED
            return None
        return original(job, key, token, outcome, now)

    bug.around(lease, "check", check)


@mutant("CANCEL-2", stores=FACES)
def only_waiting_is_ignored(bug: Bug) -> None:
    """A cancel with `only_waiting` ends running jobs."""

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


@mutant("RETRY-1", stores=CORE)
def attempt_counted_on_retry(bug: Bug) -> None:
    """A failed attempt counts when it is leased and again when it fails."""

    def retried(original: Planted, job: Job, *args: Any) -> Event:
        event = original(job, *args)
        job.attempts += 1
        return event

    bug.around(lifecycle, "_retry", retried)


@mutant("RETRY-1", stores=CORE)
def max_attempts_ignored(bug: Bug) -> None:
    """A job that always fails is retried forever."""

    def retried(original: Planted, job: Job, *args: Any) -> Event:
        envelope, job.envelope = job.envelope, replace(job.envelope, max_attempts=1000)
        event = original(job, *args)
        job.envelope = envelope
        return event

    bug.around(lifecycle, "_retry", retried)


@mutant("RETRY-2", stores=CORE)
def a_job_that_kills_its_worker_never_dies(bug: Bug) -> None:
    """An expired lease is followed by another one, however many there were."""

    def expire(original: Planted, job: Job, *args: Any) -> Event:
        envelope, job.envelope = job.envelope, replace(job.envelope, max_attempts=1000)
        event = original(job, *args)
        job.envelope = envelope
        return event

    bug.around(lifecycle, "expire", expire)


@mutant("RETRY-2", stores=CORE)
def expired_lease_gives_the_attempt_back(bug: Bug) -> None:
    """An expired lease does not count as an attempt."""

    def expire(original: Planted, job: Job, *args: Any) -> Event:
        event = original(job, *args)
        job.attempts -= 1
        return event

    bug.around(lifecycle, "expire", expire)


@mutant("RETRY-3", stores=CORE)
def backoff_ignores_the_cap(bug: Bug) -> None:
    """The wait grows without bound."""

    def delay_ms(original: Planted, backoff: Backoff, attempt: int, random: float) -> int:
        return original(replace(backoff, cap_ms=10**12), attempt, random)

    bug.around(retry, "delay_ms", delay_ms)


@mutant("RETRY-3", stores=CORE)
def jitter_differs(bug: Bug) -> None:
    """Equal inputs give another delay than on the other stores."""

    def delay_ms(original: Planted, backoff: Backoff, attempt: int, random: float) -> int:
        return original(backoff, attempt, 1.0 - random)

    bug.around(retry, "delay_ms", delay_ms)


@mutant("RETRY-3", stores=CORE)
def reaper_ignores_the_stored_policy(bug: Bug) -> None:
    """After an expired lease the default policy is used, not the message's own."""

    def expire(original: Planted, job: Job, *args: Any) -> Event:
        envelope, job.envelope = job.envelope, replace(job.envelope, backoff=Backoff())
        event = original(job, *args)
        job.envelope = envelope
        return event

    bug.around(lifecycle, "expire", expire)


@mutant("RETRY-4", stores=CORE)
def error_history_unbounded(bug: Bug) -> None:
    """Every error of every attempt is kept."""
    bug.constant(lifecycle, "ERRORS_KEPT", 1_000_000, used_by=(lifecycle, "_remember"))


@mutant("RETRY-4", stores=CORE)
def permanent_errors_are_retried(bug: Bug) -> None:
    """A permanent failure is retried."""

    def finish(original: Planted, job: Job, item: Any, *args: Any) -> Event:
        return original(job, replace(item, outcome="retry") if item.outcome == "fail" else item, *args)

    bug.around(lifecycle, "finish", finish)


@mutant("RETRY-5", stores=CORE)
def release_keeps_the_attempt(bug: Bug) -> None:
    """A released job has lost an attempt."""

    def release(original: Planted, job: Job, *args: Any) -> Event:
        event = original(job, *args)
        job.attempts += 1
        return event

    bug.around(lifecycle, "_release", release)


@mutant("RETRY-5", stores=CORE, seen_by="a_release_can_return_all_earlier_attempts")
def release_forgives_nothing(bug: Bug) -> None:
    """A release that should give back all attempts gives back only its own."""

    def release(original: Planted, job: Job, item: Finish, now: int) -> Event:
        return original(job, replace(item, forgive=False), now)

    bug.around(lifecycle, "_release", release)


@mutant("RETRY-6", stores=CORE)
def reason_of_a_release_is_always_new(bug: Bug) -> None:
    """A job that no worker knows does not show since when."""

    def release(original: Planted, job: Job, *args: Any) -> Event:
        job.released_for = ""
        return original(job, *args)

    bug.around(lifecycle, "_release", release)


@mutant("RETRY-6", stores=CORE)
def reason_of_a_release_outlives_a_retry(bug: Bug) -> None:
    """A job that has run since then still counts as unknown to all workers."""

    def retry_(original: Planted, job: Job, *args: Any) -> Event:
        known = (job.released_for, job.first_released_at)
        event = original(job, *args)
        job.released_for, job.first_released_at = known
        return event

    bug.around(lifecycle, "_retry", retry_)


@mutant("DEAD-1", "STATE-3", stores=CORE)
def replay_keeps_attempts(bug: Bug) -> None:
    """A replayed job has no attempts left."""

    def replay(original: Planted, job: Job, *rest: Any) -> Event:
        attempts = job.attempts
        event = original(job, *rest)
        job.attempts = attempts
        return event

    bug.around(lifecycle, "replay", replay)
