"""The answer to a second enqueue of an id or a key. [ENQ-2, ENQ-3, ENQ-8]"""

import pytest

from holdfast.core import dedup
from holdfast.core.dedup import Binding
from holdfast.core.job import DAY, AlreadyCompleted, Duplicate, IdempotencyKey, JobState, Queued, Result
from tests.unit.core.making import KEY, NOW, job_in, new

HELD = [JobState.BLOCKED, JobState.SCHEDULED, JobState.READY, JobState.LEASED, JobState.RETRYING]
LATER = NOW + 100 * DAY
TERMINAL_BOUND = Binding("holder", "until_terminal")


def decide(item, existing=None, binding=None, holder=None, now=NOW):
    return dedup.decide(item, existing, binding, holder, now)


@pytest.mark.parametrize("state", HELD)
@pytest.mark.parametrize("replace_failed", [False, True])
def test_an_id_that_waits_or_runs_is_a_duplicate(state, replace_failed):
    assert decide(new(replace_failed=replace_failed), job_in(state)) == Duplicate(KEY.id, state)


def test_an_id_that_completed_answers_its_result():
    assert decide(new(), job_in(JobState.COMPLETED)) == AlreadyCompleted(KEY.id, Result(b"1"))


def test_a_failed_id_is_a_duplicate_unless_it_may_be_replaced():
    assert decide(new(), job_in(JobState.FAILED)) == Duplicate(KEY.id, JobState.FAILED)
    assert decide(new(replace_failed=True), job_in(JobState.FAILED)) is None


def test_a_canceled_unknown_or_forgotten_id_is_free():
    assert decide(new(), job_in(JobState.CANCELED)) is None
    assert decide(new()) is None
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED):
        assert decide(new(), job_in(state), now=LATER) is None


def test_the_answered_state_is_the_shown_state():
    job = job_in(JobState.SCHEDULED)
    assert decide(new(), job, now=job.visible_at) == Duplicate(KEY.id, JobState.READY)


@pytest.mark.parametrize("state", JobState)
def test_a_repeated_request_is_queued_in_every_state_of_the_job(state):
    job = job_in(state, request_id="r1")
    assert decide(new(request_id="r1"), job) == Queued(KEY.id, state)
    assert decide(new(request_id="r2"), job) == decide(new(), job) != Queued(KEY.id, state)


def test_an_empty_request_id_matches_no_other():
    assert decide(new(request_id=""), job_in(JobState.READY, request_id="")) == Duplicate(KEY.id, JobState.READY)


def test_a_request_is_known_while_its_job_has_a_record():
    job = job_in(JobState.COMPLETED, request_id="r1")
    assert decide(new(request_id="r1"), job, now=LATER) == Queued(KEY.id, JobState.COMPLETED)
    assert decide(new(request_id="r2"), job, now=LATER) is None


@pytest.mark.parametrize("policy", ["until_terminal", "until_started"])
@pytest.mark.parametrize("state", JobState)
def test_a_key_of_a_job_is_held_until_the_job_ends(policy, state):
    answer = dedup.by_key(Binding(KEY.id, policy), job_in(state), NOW)
    assert answer == (Duplicate(KEY.id, state) if state in HELD else None)


@pytest.mark.parametrize("policy", ["until_terminal", "until_started"])
def test_the_key_of_a_forgotten_job_is_free(policy):
    assert dedup.by_key(Binding(KEY.id, policy), None, NOW) is None
    assert dedup.by_key(Binding(KEY.id, policy), job_in(JobState.COMPLETED), LATER) is None


@pytest.mark.parametrize("binding", [Binding(KEY.id, "ttl", LATER + 1), Binding(KEY.id, "forever")])
def test_a_key_with_its_own_lifetime_outlives_its_job(binding):
    assert dedup.by_key(binding, job_in(JobState.COMPLETED), NOW) == AlreadyCompleted(KEY.id, Result(b"1"))
    for state in (JobState.FAILED, JobState.CANCELED, JobState.LEASED):
        assert dedup.by_key(binding, job_in(state), NOW) == Duplicate(KEY.id, state)
    assert dedup.by_key(binding, job_in(JobState.COMPLETED), LATER) == Duplicate(KEY.id, None)
    assert dedup.by_key(binding, None, NOW) == Duplicate(KEY.id, None)


def test_a_key_with_a_time_to_live_is_free_when_it_expires():
    job = job_in(JobState.LEASED)
    binding = Binding(KEY.id, "ttl", NOW + 5)
    assert dedup.by_key(binding, job, NOW + 4) == Duplicate(KEY.id, JobState.LEASED)
    assert dedup.by_key(binding, job, NOW + 5) is None
    assert dedup.by_key(None, job, NOW) is None


def test_the_id_is_judged_before_the_key():
    mine, other = job_in(JobState.READY), job_in(JobState.LEASED)
    other.id = "holder"
    assert decide(new(), mine, TERMINAL_BOUND, other) == Duplicate(KEY.id, JobState.READY)
    assert decide(new(), None, TERMINAL_BOUND, other) == Duplicate("holder", JobState.LEASED)
    assert decide(new(), job_in(JobState.CANCELED), TERMINAL_BOUND, other) == Duplicate("holder", JobState.LEASED)


def test_a_replacement_may_take_the_key_of_the_job_it_replaces():
    canceled = job_in(JobState.CANCELED)
    own = Binding(KEY.id, "forever")
    assert decide(new(), canceled, own, canceled) is None
    assert decide(new(), canceled, own, canceled, now=LATER) == Duplicate(KEY.id, None)


@pytest.mark.parametrize(
    "policy, expires_at", [("until_terminal", None), ("until_started", None), ("forever", None), ("ttl", NOW + 9)]
)
def test_an_accepted_enqueue_binds_its_key(policy, expires_at):
    assert dedup.bind(new(idempotency=IdempotencyKey("k", policy, 9)), NOW) == Binding(KEY.id, policy, expires_at)


def test_an_enqueue_without_a_key_binds_nothing():
    assert dedup.bind(new(), NOW) is None
