"""What a store learns of an exception."""

import asyncio
import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidPayload, Permanent, RetryLater, UnknownCodec, UnknownJobType
from holdfast.core.job import DAY, Envelope, Job, JobState
from holdfast.worker import outcome
from holdfast.worker.active_job import ActiveJob


def throw(error):
    raise error


def raised(error):
    try:
        throw(error)
    except BaseException as caught:  # noqa: BLE001
        return caught


@given(st.text(st.characters(exclude_categories=[]), max_size=5000), st.integers(0, 3000))
def test_a_cleaned_text_can_be_stored_everywhere(text, limit):
    for clean in (outcome.clean, outcome.clean_end):
        kept = clean(text, limit) if limit else clean(text, 1)
        data = kept.encode()
        assert len(data) <= max(limit, 1)
        assert "\x00" not in kept


def test_the_beginning_of_a_message_and_the_end_of_a_traceback_are_kept():
    assert outcome.clean("abc" + "x" * 100, 3) == "abc"
    assert outcome.clean_end("x" * 100 + "abc", 3) == "abc"
    assert outcome.clean("äöü", 3) == "ä"
    assert outcome.clean_end("äöü", 3) == "ü"


def test_handlers_choose_the_outcome():
    assert outcome.raised(raised(ValueError("x"))).outcome == "retry"
    assert outcome.raised(raised(Permanent("x"))).outcome == "fail"
    later = outcome.raised(raised(RetryLater("x", delay=timedelta(seconds=1.5))))
    assert (later.outcome, later.delay_ms, later.error) == ("release", 1500, None)
    assert outcome.raised(raised(RetryLater("x", delay=-5))).delay_ms == 0


def test_a_job_that_another_worker_may_decode_is_released():
    unknown = outcome.unreadable(raised(UnknownJobType("x")))
    assert (unknown.outcome, unknown.reason) == ("release", "unknown_type")
    unknown = outcome.unreadable(raised(UnknownCodec("x")))
    assert (unknown.outcome, unknown.reason) == ("release", "unknown_version")
    assert outcome.unreadable(raised(InvalidPayload("x"))).outcome == "fail"


@pytest.mark.parametrize("age_s, delay_s", [(0, 1), (9, 1), (100, 10), (599, 59.9), (600, 60), (86_399, 60)])
@pytest.mark.parametrize("seen", [True, False])
def test_an_unknown_job_waits_a_tenth_of_its_age(age_s, delay_s, seen):
    finish = outcome.for_another(unknown_to_a_worker(age_s, seen=seen), outcome.unreadable(UnknownJobType("x")), DAY)
    assert (finish.outcome, finish.reason, finish.delay_ms) == ("release", "unknown_type", delay_s * 1000)


def test_a_job_that_is_unknown_for_a_day_fails():
    """The time counts from the first worker that did not know it: a job that no worker has claimed does not fail."""
    unknown = outcome.unreadable(UnknownJobType("x"))
    finish = outcome.for_another(unknown_to_a_worker(86_400, seen=True), unknown, DAY)
    assert (finish.outcome, finish.error.type) == ("fail", "UnknownJobType")
    assert outcome.for_another(unknown_to_a_worker(86_400, seen=False), unknown, DAY).outcome == "release"


def unknown_to_a_worker(age_s, *, seen):
    """A job that became visible this long ago, or with `seen` was released then by a worker that did not know it."""
    now = 10 * DAY
    job = Job("acme", "q", "x", 1, Envelope("x", b"{}"), JobState.LEASED, now - age_s * 1000, 0, claimed_at=now)
    if seen:
        job.visible_at, job.released_for, job.first_released_at = now, "unknown_type", now - age_s * 1000
    return ActiveJob(job, job.key, 1, 0.0, 0.0)


def test_a_cancellation_by_other_code_says_so():
    assert "not by the worker" in outcome.describe(raised(asyncio.CancelledError())).message


def test_a_deep_recursion_is_described():
    def deep(n):
        return deep(n + 1)

    try:
        deep(0)
    except RecursionError as error:
        described = outcome.describe(error)
    assert described.type == "RecursionError"
    assert len(described.traceback.encode()) <= outcome.TRACEBACK_LIMIT
    assert re.search("RecursionError", described.traceback)
