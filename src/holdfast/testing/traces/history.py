"""What the log of every store must show: each job changes its state only as the contract allows.

Invariants verified:
    every event is a transition that exists from the job's state                    [STATE-1, STATE-2, STATE-3]
    a lease begins while no other is live, with a token that was never used         [CLAIM-1, LEASE-5]
    attempts count leases; a release returns one, a replay all                      [RETRY-1, RETRY-5]
    no job is retried after its last attempt; none runs out of attempts before it   [RETRY-1, RETRY-4]
    the holder ends a lease only before its deadline, the store only at or after it [LEASE-1, LEASE-3]
    the events of a life are numbered 1, 2, 3, ..., and its record has the last number     [EVENT-1]
    time does not go back
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.events import Event
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState
from holdfast.testing.conformance.expect import Broken, expect, expect_equal

GONE, WAITS, LEASED, COMPLETED, FAILED, CANCELED = "gone", "waits", "leased", "completed", "failed", "canceled"
ENDED = (COMPLETED, FAILED, CANCELED)

MOVES: dict[str, tuple[tuple[str, ...], str]] = {
    # An ended job may be forgotten without an event: then its id starts a new life. [KEEP-1]
    "enqueued": ((GONE, *ENDED), WAITS),
    "claimed": ((WAITS,), LEASED),
    "extended": ((LEASED,), LEASED),
    "progressed": ((LEASED,), LEASED),
    "retried": ((LEASED,), WAITS),
    "released": ((LEASED,), WAITS),
    "expired": ((LEASED,), WAITS),
    "completed": ((LEASED,), COMPLETED),
    "failed": ((LEASED,), FAILED),
    "canceled": ((WAITS, LEASED), CANCELED),
    "replayed": ((FAILED,), WAITS),
    "purged": (ENDED, GONE),
}


class Life(Struct):
    """One job, according to its events."""

    state: str = GONE
    attempts: int = 0
    max_attempts: int = 0
    token: int = 0
    highest: int = 0
    deadline: int = 0
    visible_at: int = 0
    events: int = 0


class History:
    """The jobs of a log, from its first event on. `extensions`: the log has the events of extensions and progress."""

    def __init__(self, *, extensions: bool) -> None:
        self._extensions = extensions
        self.jobs: dict[JobKey, Life] = {}
        self._granted: set[int] = set()
        self._at = 0

    def add(self, event: Event) -> None:
        """Check the next event of the log. Raises Broken."""
        key = JobKey(event.tenant, event.queue, event.job_id)
        life = self.jobs.setdefault(key, Life())
        expect(event.at >= self._at, f"{event} is older than the event before it [EVENT-2]")
        self._at = event.at
        before, after = MOVES[event.kind]
        expect(life.state in before, f"{event} of a job that {_is(life)} [STATE-1]")
        was_leased = life.state == LEASED
        life.state = after
        if event.kind == "enqueued":
            self._enqueued(event, life)
        elif event.kind == "claimed":
            self._claimed(event, life)
        elif event.kind == "replayed":
            life.attempts = 0
            life.visible_at = event.data["visible_at"]
        elif was_leased:
            self._under_lease(event, life)
        expect_equal(event.token, life.token, f"token of {event} [LEASE-1]")
        life.events += 1
        expect_equal(event.number, life.events, f"number of {event} [EVENT-1]")
        # The event of a release still counts the attempt that it returns.
        expect_equal(event.attempt, life.attempts + (event.kind == "released"), f"attempt of {event} [RETRY-1]")

    def _enqueued(self, event: Event, life: Life) -> None:
        life.attempts = life.token = life.deadline = life.events = 0
        life.max_attempts = event.data["max_attempts"]
        life.visible_at = event.data["visible_at"]

    def _claimed(self, event: Event, life: Life) -> None:
        expect(event.token not in self._granted, f"the token of {event} was granted before [CLAIM-1]")
        expect(event.token > life.highest, f"the token of {event} is not above {life.highest} [LEASE-5]")
        expect_equal(event.data["visible_at"], life.visible_at, f"visible_at of {event}")
        expect(life.visible_at <= event.at, f"{event} before the job was visible [CLAIM-2]")
        self._granted.add(event.token)
        life.token = life.highest = event.token
        life.attempts += 1
        life.deadline = event.data["deadline"]
        expect(life.deadline > event.at, f"{event} with a deadline that has passed [CLAIM-1]")
        expect(life.attempts <= life.max_attempts, f"{event} is one attempt too many [RETRY-1]")

    def _under_lease(self, event: Event, life: Life) -> None:
        reason = event.data.get("reason")
        ran_out = event.kind == "expired" or reason == "lease_expired"
        if ran_out or (self._extensions and event.kind != "canceled"):
            expect((event.at >= life.deadline) == ran_out, f"{event} with the deadline {life.deadline} [LEASE-1]")
        if event.kind in ("retried", "expired"):
            expect(life.attempts < life.max_attempts, f"{event} after its last attempt [RETRY-1]")
        if reason in ("lease_expired", "max_attempts"):
            expect_equal(life.attempts, life.max_attempts, f"attempts of {event} [RETRY-1]")
        if event.kind == "extended":
            expect(event.data["deadline"] >= life.deadline, f"{event} shortens the lease [LEASE-2]")
            life.deadline = event.data["deadline"]
        if event.kind in ("retried", "released", "expired"):
            life.visible_at = event.data["visible_at"]
        if event.kind == "released":
            life.attempts -= 1

    def check(self, key: JobKey, job: Job | None) -> None:
        """Nothing changes without an event: the record agrees with the log. Raises Broken. [EVENT-1]"""
        life = self.jobs.get(key, Life())
        if job is None:
            expect(life.state in (GONE, *ENDED), f"{key} has no record, although by the log it {_is(life)} [KEEP-1]")
            return
        expect_equal(life.state, _kind(job), f"state of {key} by the log, and by its record [EVENT-1]")
        expect_equal((life.attempts, life.token), (job.attempts, job.token), f"attempts and token of {key} [EVENT-1]")
        expect_equal(
            life.events, job.events, f"last number of the events of {key} by the log, and by its record [EVENT-1]"
        )


def _kind(job: Job) -> str:
    if job.state in WAITING:
        return WAITS
    if job.state is JobState.LEASED or job.state in TERMINAL:
        return job.state.value
    raise Broken(f"{job.key} is in the state {job.state!r} [STATE-1]")


class PurgeNumbers:
    """Checks that the purges of a tenant are numbered 1, 2, 3, ... in each of its counts. [EVENT-1]"""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def add(self, event: Event) -> None:
        """Check the next event of the log of all tenants. Raises Broken."""
        if event.kind == "purged":
            series, number = event.data["series"], event.data["purge"]
            last = self._last.get(event.tenant, (0, 0))
            expect_equal(number, last[1] + 1 if series == last[0] else 1, f"number of {event} after {last} [EVENT-1]")
            self._last[event.tenant] = series, number


def _is(life: Life) -> str:
    return life.state if life.state == WAITS else f"is {life.state}"
