"""When schedules are due."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import InvalidName, InvalidOption
from holdfast.schedules.ticks import check_name, last_tick, next_tick, timing

BERLIN, SANTIAGO = "Europe/Berlin", "America/Santiago"


def ms(text):
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def shown(tick):
    return datetime.fromtimestamp(tick / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")


def ticks(expression, zone, after, count):
    when, at, found = timing(expression, None, zone), ms(after), []
    for _ in range(count):
        at = next_tick(when, 0, at)
        found.append(at)
    return found


# expression, time zone, after, what comes then
DAYS = {
    "an hour that is skipped": (
        "30 2 * * *", BERLIN, "2026-03-28T00:00Z", ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"],
    ),
    "two times in a skipped hour are one": (
        "0,30 2,3 * * *", BERLIN, "2026-03-29T00:00Z", ["2026-03-29T01:00Z", "2026-03-29T01:30Z", "2026-03-30T00:00Z"],
    ),
    "an hour that comes twice": (
        "30 2 * * *", BERLIN, "2026-10-24T00:00Z", ["2026-10-24T00:30Z", "2026-10-25T00:30Z", "2026-10-26T01:30Z"],
    ),
    "asked for in the second of two hours": ("45 2 * * *", BERLIN, "2026-10-25T01:30Z", ["2026-10-26T01:45Z"]),
    "every half hour, by the hours that pass": (
        "*/30 * * * *", BERLIN, "2026-10-25T00:10Z", ["2026-10-25T00:30Z", "2026-10-25T01:00Z", "2026-10-25T01:30Z"],
    ),
    "a midnight that is skipped": (
        "0 0 * * *", SANTIAGO, "2026-09-05T00:00Z", ["2026-09-05T04:00Z", "2026-09-06T04:00Z", "2026-09-07T03:00Z"],
    ),
    "a day in four years": ("0 0 29 2 *", "UTC", "2026-01-01T00:00Z", ["2028-02-29T00:00Z", "2032-02-29T00:00Z"]),
    "the last day of a month": ("0 12 L * *", "UTC", "2026-02-01T00:00Z", ["2026-02-28T12:00Z", "2026-03-31T12:00Z"]),
}  # fmt: skip


@pytest.mark.parametrize("case", DAYS)
def test_cron_expressions_tick_as_in_cron(case):
    expression, zone, after, expected = DAYS[case]
    assert [shown(tick) for tick in ticks(expression, zone, after, len(expected))] == expected


EXPRESSIONS = ["30 2 * * *", "*/7 * * * *", "0,30 1-3 * * *", "15 */5 * * *", "0 0 1 * *", "5 4 * * sun", "0 0 29 2 *"]
INSTANTS = st.one_of(
    st.integers(ms("2026-01-01T00:00Z"), ms("2027-01-01T00:00Z")),
    *(st.integers(ms(day) - 8_000_000, ms(day) + 8_000_000) for day in ("2026-03-29T01:00Z", "2026-10-25T01:00Z")),
)


@given(expression=st.sampled_from(EXPRESSIONS), zone=st.sampled_from(["UTC", BERLIN, SANTIAGO]), at=INSTANTS)
def test_the_ticks_do_not_depend_on_the_time_of_the_question(expression, zone, at):
    when = timing(expression, None, zone)
    before, after = last_tick(when, 0, at), next_tick(when, 0, at)
    assert before <= at < after
    assert next_tick(when, 0, before) == after
    assert last_tick(when, 0, after) == after
    assert last_tick(when, 0, after - 1) == before


def test_an_interval_counts_from_its_beginning():
    when, anchor = timing(None, timedelta(minutes=10)), ms("2026-01-01T00:03Z")
    assert last_tick(when, anchor, anchor + 599_999) is None
    assert next_tick(when, anchor, anchor) == anchor + 600_000
    assert next_tick(when, anchor, anchor + 600_000) == anchor + 1_200_000
    assert last_tick(when, anchor, anchor + 1_199_999) == anchor + 600_000
    assert next_tick(when, anchor, 0) == anchor + 600_000


BAD = {
    "the machine's own zone": ({"cron": "* * * * *", "timezone": "localtime"}, "is not a known time zone"),
    "spaces without end": ({"cron": "* * * * *" + " " * 200}, "209 characters, 200"),
    "nothing": ({}, "one of them"),
    "both": ({"cron": "* * * * *", "every": 60}, "one of them"),
    "a minute that is none": ({"cron": "61 * * * *"}, "minute"),
    "a nickname": ({"cron": "@daily"}, "five fields"),
    "six fields": ({"cron": "0 * * * * *"}, "five fields"),
    "not a word": ({"cron": 5}, "strings"),
    "very long": ({"cron": "1," * 2000 + "1 * * * *"}, "five fields"),
    "a number of many digits": ({"cron": "1" * 180 + " * * * *"}, "minute"),
    "a day that is none": ({"cron": "0 0 30 2 *"}, "day-of-month"),
    "never": ({"cron": "0 0 */30 2 1#5"}, "is never due"),
    "a zone that is none": ({"cron": "* * * * *", "timezone": "Mars/Base"}, "write a name such as 'Europe/Berlin'"),
    "a zone that is a path": ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "is not a known time zone"),
    "a zone that is a folder": ({"cron": "* * * * *", "timezone": "Europe"}, "is not a known time zone"),
    "a zone with NUL": ({"cron": "* * * * *", "timezone": "a\0"}, "is not a known time zone"),
    "no zone": ({"cron": "* * * * *", "timezone": ""}, "is not a known time zone"),
    "too often": ({"every": 0.5}, "shorter than a second"),
    "not a time": ({"every": "1h"}, "neither a timedelta"),
    "every in a zone": ({"every": 60, "timezone": BERLIN}, "is for cron"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_timing_is_refused_with_what_to_write(case):
    said, reason = BAD[case]
    with pytest.raises(InvalidOption, match=reason):
        timing(said.get("cron"), said.get("every"), said.get("timezone", "UTC"))


def test_a_name_leaves_room_for_the_tick_after_it():
    assert check_name("n" * 170) == "n" * 170
    with pytest.raises(InvalidName, match="up to 170"):
        check_name("é" * 86)
    with pytest.raises(InvalidName, match="schedule"):
        check_name("a\nb")


def test_without_the_library_intervals_work_and_cron_says_what_to_install():
    program = """
import sys
sys.modules["cronsim"] = None
from holdfast.schedules.ticks import next_tick, timing
print(next_tick(timing(None, 60), 0, 0))
try:
    timing("* * * * *", None)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "60000\ncron: needs cronsim; install it with: pip install 'holdfast[schedules]'\n"
