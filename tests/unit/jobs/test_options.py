from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast import InvalidName, InvalidOption
from holdfast.core.job import IdempotencyKey
from holdfast.core.times import moment
from holdfast.jobs.options import PLAIN, duration_ms, instant_ms, resolve


def test_options_left_out_are_not_set():
    assert resolve({}) is PLAIN
    assert resolve({"id": None, "delay": None, "idempotency_key": None}) is PLAIN


def test_options_are_resolved_to_whole_milliseconds():
    said = resolve({"delay": 1.5, "result_ttl": timedelta(minutes=1), "priority": 0, "max_attempts": 1, "id": "a"})
    assert (said.delay_ms, said.result_ttl_ms, said.priority, said.max_attempts, said.id) == (1500, 60_000, 0, 1, "a")
    assert resolve({"delay": timedelta(microseconds=1)}).delay_ms == 1


def test_run_at_is_an_instant_whatever_its_time_zone():
    at = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert resolve({"run_at": at}).run_at == instant_ms("run_at", at) == 1_893_492_000_000
    assert moment(1_893_492_000_000) == at
    assert moment(0).tzinfo is UTC


@pytest.mark.parametrize(
    "said, option",
    [
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001 - that is the mistake
        ({"run_at": "tomorrow"}, "run_at"),
        ({"delay": -1}, "delay"),
        ({"delay": timedelta(seconds=-1)}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": float("inf")}, "delay"),
        ({"delay": True}, "delay"),
        ({"delay": "1"}, "delay"),
        ({"delay": timedelta(days=365_001)}, "delay"),
        ({"result_ttl": -0.1}, "result_ttl"),
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 101}, "max_attempts"),
        ({"idempotency": "forever"}, "idempotency"),
        ({"idempotency_key": "k", "idempotency": "until_done"}, "idempotency"),
        ({"idempotency_key": "k", "idempotency": timedelta(0)}, "idempotency"),
    ],
)
def test_a_wrong_option_is_named(said, option):
    with pytest.raises(InvalidOption) as caught:
        resolve(said)
    assert caught.value.option == option


@pytest.mark.parametrize(
    "said",
    [{"id": ""}, {"id": "a\nb"}, {"id": "ü" * 101}, {"id": 5}, {"queue": "-a"}, {"queue": ""}, {"idempotency_key": ""}],
)
def test_a_wrong_name_is_refused(said):
    with pytest.raises(InvalidName):
        resolve(said)


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="'delya'"):
        resolve({"delya": 5})


@pytest.mark.parametrize(
    "policy, expected",
    [
        (None, IdempotencyKey("k", "until_terminal")),
        ("until_started", IdempotencyKey("k", "until_started")),
        ("forever", IdempotencyKey("k", "forever")),
        (timedelta(seconds=2), IdempotencyKey("k", "ttl", 2000)),
    ],
)
def test_idempotency_takes_a_policy_or_a_time_to_live(policy, expected):
    assert resolve({"idempotency_key": "k", "idempotency": policy}).idempotency == expected


@pytest.mark.parametrize("seconds, ms", [(4.035, 4035), (0.0001, 1), (1.0001, 1001), (0.07, 70), (30, 30_000)])
def test_seconds_are_rounded_up_to_whole_milliseconds(seconds, ms):
    assert duration_ms("delay", seconds) == ms


def test_a_delay_of_centuries_is_a_delay():
    assert duration_ms("delay", timedelta(days=300 * 365)) == 300 * 365 * 86_400_000
