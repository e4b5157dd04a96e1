"""LEASE-1, line by line: the first that fits is the answer."""

import pytest

from holdfast.core import lease, lifecycle
from holdfast.core.errors import InvalidOption, JobCanceled, JobNotFound, LeaseExpired, LeaseLost
from holdfast.core.job import Finished, JobState
from tests.unit.core.making import KEY, LEASE, NOW, finish, job_in

VERBS = ["complete", "fail", "retry", "release", "extend"]
PAST = NOW + LEASE


def judge(job, verb, token=7, now=NOW):
    if verb == "extend":
        return lease.check_live(job, KEY, token, now)
    return lease.check(job, KEY, token, verb, now)


@pytest.mark.parametrize("verb", VERBS)
def test_the_holder_of_a_live_lease_may_acknowledge(verb):
    job = job_in(JobState.LEASED)
    assert judge(job, verb) is None
    assert judge(job, verb, now=PAST - 1) is None


@pytest.mark.parametrize("verb", VERBS)
def test_the_refusals_of_a_lease_have_an_order(verb):
    leased, canceled = job_in(JobState.LEASED), job_in(JobState.CANCELED)
    assert type(judge(None, verb)) is JobNotFound
    assert type(judge(None, verb, token=0)) is JobNotFound
    for job in (leased, canceled, job_in(JobState.COMPLETED), job_in(JobState.RETRYING)):
        for token in (6, 8, 0, -1):
            assert type(judge(job, verb, token=token, now=PAST)) is LeaseLost
    assert type(judge(canceled, verb, now=PAST)) is JobCanceled
    assert type(judge(leased, verb, now=PAST)) is LeaseExpired
    assert type(judge(leased, verb, now=PAST + 1)) is LeaseExpired


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", [JobState.SCHEDULED, JobState.READY, JobState.BLOCKED])
def test_a_job_that_was_never_leased_has_no_token(verb, state):
    for token in (0, -1, 1):
        assert type(judge(job_in(state), verb, token=token)) is LeaseLost


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_lease_that_was_reaped_stays_expired(verb, attempts):
    job = job_in(JobState.LEASED, max_attempts=attempts)
    lifecycle.expire(job, 0.0, PAST)
    assert type(judge(job, verb, now=PAST)) is LeaseExpired


@pytest.mark.parametrize("spent", ["complete", "fail", "retry", "release"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_used_token_repeats_only_its_own_outcome(spent, verb):
    job = job_in(JobState.LEASED)
    lifecycle.finish(job, finish(spent), NOW)
    led_to = job.state
    for now in (NOW, PAST):
        answer = judge(job, verb, now=now)
        assert answer == Finished(led_to) if verb == spent else type(answer) is LeaseLost


def test_the_first_answer_comes_before_canceled_and_survives_a_replay():
    job = job_in(JobState.LEASED)
    lifecycle.finish(job, finish("release"), NOW)
    lifecycle.cancel(job, NOW)
    assert judge(job, "release") == Finished(JobState.READY)
    assert type(judge(job, "complete")) is JobCanceled
    dead = job_in(JobState.FAILED)
    lifecycle.replay(dead, NOW)
    assert judge(dead, "fail") == Finished(JobState.FAILED)
    assert type(judge(dead, "complete")) is LeaseLost
    lifecycle.claim(dead, 8, PAST, "w", NOW)
    assert type(judge(dead, "fail")) is LeaseLost


def test_a_refusal_names_the_job():
    refusal = judge(job_in(JobState.LEASED), "complete", token=1)
    assert (refusal.queue, refusal.job_id) == (KEY.queue, KEY.id)


@pytest.mark.parametrize("lease_ms", [1000, 30_000, 12 * 3600 * 1000])
def test_a_lease_is_one_second_to_twelve_hours(lease_ms):
    assert lease.check_lease_ms(lease_ms) == lease_ms


@pytest.mark.parametrize("lease_ms", [0, -1, 999, 12 * 3600 * 1000 + 1])
def test_a_lease_outside_of_that_is_refused(lease_ms):
    with pytest.raises(InvalidOption, match="1 second to 12 hours"):
        lease.check_lease_ms(lease_ms)
