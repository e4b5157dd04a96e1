from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.options import words
from holdfast.cli.session import shown_url
from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import duration, instant, time_or_age


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("30", 30),
        ("0", 0),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("10s", 10),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1w", 604800),
        ("1h30m", 5400),
        (" 1.5h ", 5400),
    ],
)
def test_durations_are_numbers_with_units(text, seconds):
    assert duration("delay", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "m", "10x", "1h 30m", "-5", "1e3", "inf", "10m!", "999999999999999d"])
def test_an_invalid_duration_is_refused_with_examples(text):
    with pytest.raises(InvalidOption, match=r"delay: .* write for example 30s, 10m"):
        duration("delay", text)


@given(st.text("0123456789.smhdw -x"))
def test_any_text_is_a_duration_or_refused(text):
    with suppress(InvalidOption):
        assert duration("delay", text) >= timedelta()


def test_an_instant_without_a_zone_is_local_time():
    assert instant("run_at", "2030-01-31T18:00Z") == datetime(2030, 1, 31, 18, tzinfo=UTC)
    assert instant("run_at", "2030-01-31T18:00+02:00") == datetime(2030, 1, 31, 16, tzinfo=UTC)
    assert instant("run_at", "2030-01-31T18:00") == datetime(2030, 1, 31, 18).astimezone()
    with pytest.raises(InvalidOption, match="is not a time"):
        instant("run_at", "tomorrow")


def test_an_option_takes_an_instant_or_an_age():
    assert time_or_age("before", "7d") == timedelta(days=7)
    assert time_or_age("before", "2030-01-31T18:00Z") == datetime(2030, 1, 31, 18, tzinfo=UTC)
    assert time_or_age("before", None) is None
    with pytest.raises(InvalidOption, match="neither a duration such as 7d nor a time"):
        time_or_age("before", "yesterday")


def test_names_are_separated_by_commas():
    assert words("queues", "a, b,c") == ["a", "b", "c"]
    assert words("queues", None) is None
    with pytest.raises(InvalidOption, match="empty name"):
        words("queues", "a,,b")


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("postgresql://me:secret@db:5432/jobs?shards=2", "postgresql://me:***@db:5432/jobs?shards=2"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://:se@cret@host", "redis://:***@host"),
        ("file:./data", "file:./data"),
    ],
)
def test_a_password_is_never_shown(url, shown):
    assert shown_url(url) == shown
