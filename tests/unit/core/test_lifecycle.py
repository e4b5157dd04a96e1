"""The one transition table: which transitions exist, and what each does to the record. [STATE, EVENT-1, RETRY]"""

import pytest
from msgspec.structs import asdict

from holdfast.core import lifecycle
from holdfast.core.events import fingerprint
from holdfast.core.job import DAY, HOUR, TERMINAL, AttemptError, JobState, Progress, Report, Result
from holdfast.core.lifecycle import TABLE, Retention
from tests.unit.core.making import BOOM, KEY, LEASE, NOW, finish, job_in, new

B, S, R, L = JobState.BLOCKED, JobState.SCHEDULED, JobState.READY, JobState.LEASED
T, C, F, X = JobState.RETRYING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELED

TRANSITIONS = {
    "claim": (lambda job: lifecycle.claim(job, 8, NOW + 9, "w2", NOW), {S: L, R: L, T: L}),
    "complete": (lambda job: lifecycle.finish(job, finish("complete"), NOW), {L: C}),
    "fail": (lambda job: lifecycle.finish(job, finish("fail"), NOW), {L: F}),
    "retry": (lambda job: lifecycle.finish(job, finish("retry"), NOW), {L: T}),
    "release": (lambda job: lifecycle.finish(job, finish("release"), NOW), {L: R}),
    "release later": (lambda job: lifecycle.finish(job, finish("release", delay_ms=5), NOW), {L: S}),
    "expire": (lambda job: lifecycle.expire(job, 0.0, NOW), {L: T}),
    "cancel": (lambda job: lifecycle.cancel(job, NOW), {S: X, R: X, T: X, L: X}),
    "replay": (lambda job: lifecycle.replay(job, NOW), {F: R}),
}


@pytest.mark.parametrize("verb", TRANSITIONS)
@pytest.mark.parametrize("state", JobState)
def test_only_transitions_in_the_table_are_possible(verb, state):
    make, legal = TRANSITIONS[verb]
    job = job_in(state)
    if state not in legal:
        with pytest.raises(AssertionError, match="no transition"):
            make(job)
        assert job.state is state
        return
    event = make(job)
    assert job.state is legal[state]
    assert (event.tenant, event.queue, event.job_id, event.type) == (*KEY, "mail")
    assert event.at == NOW
    assert (state, job.state) in TABLE[verb.split()[0]]


def test_only_a_replay_leaves_a_terminal_state():
    leaving = {verb for verb, transitions in TABLE.items() for before, _ in transitions if before in TERMINAL}
    assert leaving == {"replay"}
    assert TABLE["replay"] == {(F, R)}


@pytest.mark.parametrize(
    "delay_ms, run_at, state, visible_at",
    [
        (0, None, R, NOW),
        (1, None, S, NOW + 1),
        (500 * 365 * DAY, None, S, NOW + 500 * 365 * DAY),
        (0, NOW, R, NOW),
        (0, NOW - HOUR, R, NOW),
        (0, NOW + 1, S, NOW + 1),
        (5000, NOW + 1, S, NOW + 1),
    ],
)
def test_a_new_job_is_ready_or_scheduled(delay_ms, run_at, state, visible_at):
    job, event = lifecycle.enqueue(new(delay_ms, run_at, priority=7, max_attempts=3, result_ttl_ms=9), 42, NOW)
    assert (job.key, job.seq, job.state, job.visible_at, job.enqueued_at) == (KEY, 42, state, visible_at, NOW)
    assert (job.attempts, job.token, job.result_ttl_ms, job.expires_at) == (0, 0, 9, None)
    assert (event.kind, event.attempt, event.token) == ("enqueued", 0, 0)
    assert event.data == {"priority": 7, "max_attempts": 3, "visible_at": visible_at}


@pytest.mark.parametrize("state", [S, T])
def test_a_waiting_job_shows_as_ready_from_its_time_on(state):
    job = job_in(state)
    assert lifecycle.shown(job, job.visible_at - 1) is state
    assert lifecycle.shown(job, job.visible_at) is R
    assert job.state is state


@pytest.mark.parametrize("state", [B, R, L, C, F, X])
def test_time_changes_nothing_else_about_how_a_job_shows(state):
    assert lifecycle.shown(job_in(state), NOW + 1000 * DAY) is state


def test_a_lease_grants_a_token_counts_an_attempt_and_clears_the_last_run():
    job = job_in(T)
    job.progress = Progress(0.5)
    event = lifecycle.claim(job, 9, NOW + LEASE, "w2", NOW + 1)
    assert (job.attempts, job.token, job.deadline, job.worker_id) == (2, 9, NOW + LEASE, "w2")
    assert (job.claimed_at, job.spent, job.spent_state, job.progress) == (NOW + 1, "", "", None)
    assert (event.kind, event.attempt, event.token, event.worker_id) == ("claimed", 2, 9, "w2")
    assert event.data == {"visible_at": job.visible_at, "deadline": NOW + LEASE}


def test_a_completion_keeps_the_result_for_its_ttl():
    job = job_in(L, result_ttl_ms=5000)
    event = lifecycle.finish(job, finish("complete", result=Result(b"42")), NOW + 1)
    assert (job.result, job.finished_at, job.expires_at, job.deadline) == (Result(b"42"), NOW + 1, NOW + 5001, 0)
    assert (job.spent, job.spent_state) == ("complete", "completed")
    assert (event.kind, event.data) == ("completed", {})


@pytest.mark.parametrize(
    "outcome, timed_out, attempts, reason",
    [
        ("fail", False, 4, "permanent"),
        ("fail", True, 4, "timeout"),
        ("retry", False, 1, "max_attempts"),
        ("retry", True, 1, "timeout"),
    ],
)
def test_a_failed_job_has_a_reason(outcome, timed_out, attempts, reason):
    job = job_in(L, max_attempts=attempts)
    event = lifecycle.finish(job, finish(outcome, timed_out=timed_out), NOW, Retention(failed_ms=100))
    assert (job.state, job.reason, job.expires_at) == (F, reason, NOW + 100)
    assert job.errors == [AttemptError("Boom", "it broke", "trace", 1, NOW)]
    assert event.kind == "failed"
    error = {"type": "Boom", "message": "it broke", "fingerprint": fingerprint(BOOM)}
    assert event.data == {"reason": reason, "error": error}


def test_a_retry_waits_by_the_policy_or_by_an_explicit_delay():
    for delay_ms, waits in ((None, 1000), (0, 0), (77, 77)):
        job = job_in(L)
        event = lifecycle.finish(job, finish("retry", delay_ms=delay_ms), NOW + 5)
        assert (job.state, job.visible_at, job.deadline) == (T, NOW + 5 + waits, 0)
        assert (event.kind, event.data["visible_at"]) == ("retried", NOW + 5 + waits)
        assert (job.finished_at, job.expires_at) == (None, None)


def test_a_release_returns_the_attempt_and_leaves_no_error():
    job = job_in(L)
    event = lifecycle.finish(job, finish("release"), NOW + 5)
    assert (job.state, job.attempts, job.errors, job.visible_at) == (R, 0, [], NOW + 5)
    assert (job.token, job.spent, job.spent_state) == (7, "release", "ready")
    assert (event.kind, event.attempt, event.data) == ("released", 1, {"visible_at": NOW + 5})


@pytest.mark.parametrize("attempts, state, kind", [(2, T, "expired"), (1, F, "failed")])
def test_an_expired_lease_counts_as_an_attempt(attempts, state, kind):
    job = job_in(L, max_attempts=attempts)
    event = lifecycle.expire(job, 0.0, NOW + LEASE)
    assert (job.state, job.attempts, job.spent, event.kind) == (state, 1, "", kind)
    assert [(error.type, error.attempt, error.at) for error in job.errors] == [("LeaseExpired", 1, NOW + LEASE)]
    assert "worker-1" in job.errors[0].message
    if state is F:
        assert job.reason == event.data["reason"] == "lease_expired"
    else:
        assert job.visible_at == event.data["visible_at"] == NOW + LEASE + 1000


def test_the_last_ten_errors_are_kept():
    job = job_in(R, max_attempts=100)
    for number in range(1, 14):
        lifecycle.claim(job, number, NOW + LEASE, "w", NOW)
        before = job.errors
        lifecycle.finish(job, finish("retry", number, error=AttemptError("Boom", str(number)), delay_ms=0), NOW)
        assert job.errors is not before  # An older copy of the record keeps its own list.
    assert [error.attempt for error in job.errors] == list(range(4, 14))


@pytest.mark.parametrize("outcome", ["fail", "retry"])
def test_a_failure_without_an_error_still_leaves_one(outcome):
    job = job_in(L)
    lifecycle.finish(job, finish(outcome, error=None), NOW)
    assert [(error.type, error.attempt, error.at) for error in job.errors] == [("Error", 1, NOW)]


def test_a_replay_starts_the_attempts_again_and_keeps_the_history():
    job = job_in(F)
    event = lifecycle.replay(job, NOW + 9)
    assert (job.state, job.attempts, job.replays, job.visible_at) == (R, 0, 1, NOW + 9)
    assert (job.finished_at, job.expires_at, job.reason, len(job.errors)) == (None, None, "", 1)
    assert (job.token, job.spent) == (7, "fail")  # The old token stays spent. [LEASE-1]
    assert (event.kind, event.data) == ("replayed", {"visible_at": NOW + 9, "replays": 1})


@pytest.mark.parametrize("state", [S, R, T, L])
def test_a_cancel_ends_the_job_and_its_lease(state):
    job = job_in(state)
    event = lifecycle.cancel(job, NOW + 1, Retention(canceled_ms=50))
    assert (job.finished_at, job.expires_at, job.deadline, job.result) == (NOW + 1, NOW + 51, 0, None)
    assert (event.kind, event.data) == ("canceled", {})


@pytest.mark.parametrize(
    "lease_ms, deadline", [(1000, NOW + LEASE), (LEASE, NOW + LEASE + 10), (HOUR, NOW + HOUR + 10)]
)
def test_extending_never_shortens(lease_ms, deadline):
    job = job_in(L)
    event = lifecycle.extend(job, lease_ms, NOW + 10, logged=True)
    assert (job.deadline, job.token, job.attempts, job.state) == (deadline, 7, 1, L)
    assert (event.kind, event.data) == ("extended", {"deadline": deadline})


def test_progress_changes_nothing_but_the_progress():
    job = job_in(L)
    before = asdict(job)
    event = lifecycle.report(job, Report(KEY, 7, Progress(0.25, "a quarter")), NOW, logged=True)
    assert asdict(job) == {**before, "progress": Progress(0.25, "a quarter"), "events": before["events"] + 1}
    assert (event.kind, event.data) == ("progressed", {"fraction": 0.25, "message": "a quarter"})


@pytest.mark.parametrize("state", JobState)
def test_only_ended_jobs_are_ever_forgotten(state):
    job = job_in(state, result_ttl_ms=1000)
    assert lifecycle.is_terminal(job) == (state in TERMINAL)
    assert lifecycle.forgotten(job, NOW + 10_000 * DAY) == (state in TERMINAL)
    if job.expires_at is not None:
        assert not lifecycle.forgotten(job, job.expires_at - 1)
        assert lifecycle.forgotten(job, job.expires_at)


def test_a_new_ttl_counts_from_now():
    job = job_in(C)
    lifecycle.set_result_ttl(job, 500, NOW + 100)
    assert (job.result_ttl_ms, job.expires_at) == (500, NOW + 600)
