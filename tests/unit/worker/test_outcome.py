"""What a store is told about an exception."""

import asyncio
import re
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidPayload, Permanent, RetryLater, UnknownCodec, UnknownJobType
from holdfast.worker import outcome


def throw(error):
    raise error


def raised(error):
    try:
        throw(error)
    except BaseException as caught:  # noqa: BLE001
        return caught


@given(st.text(st.characters(exclude_categories=[]), max_size=5000), st.integers(0, 3000))
def test_a_cleaned_text_can_be_kept_by_any_store(text, limit):
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


def test_handlers_steer_what_happens_next():
    assert outcome.raised(raised(ValueError("x"))).outcome == "retry"
    assert outcome.raised(raised(Permanent("x"))).outcome == "fail"
    later = outcome.raised(raised(RetryLater("x", delay=timedelta(seconds=1.5))))
    assert (later.outcome, later.delay_ms, later.error) == ("release", 1500, None)
    assert outcome.raised(raised(RetryLater("x", delay=-5))).delay_ms == 0


def test_what_may_become_readable_is_tried_again():
    assert outcome.unreadable(raised(UnknownJobType("x"))).outcome == "retry"
    assert outcome.unreadable(raised(UnknownCodec("x"))).outcome == "retry"
    assert outcome.unreadable(raised(InvalidPayload("x"))).outcome == "fail"


def test_a_foreign_cancellation_says_so():
    assert "not by the worker" in outcome.describe(raised(asyncio.CancelledError())).message


def test_a_deep_recursion_fits():
    def deep(n):
        return deep(n + 1)

    try:
        deep(0)
    except RecursionError as error:
        described = outcome.describe(error)
    assert described.type == "RecursionError"
    assert len(described.traceback.encode()) <= outcome.TRACEBACK_LIMIT
    assert re.search("RecursionError", described.traceback)
