"""The delay before the next attempt. [RETRY-3]"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidOption
from holdfast.core.job import DAY, Backoff
from holdfast.core.retry import check_backoff, delay_ms, spread

BACKOFFS = st.builds(
    Backoff,
    st.integers(0, 30 * DAY),
    st.floats(1, 100),
    st.integers(0, 365 * DAY),
    st.sampled_from(["none", "equal", "full"]),
)
RANDOM = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    "attempt, delay", [(1, 5000), (2, 10_000), (3, 20_000), (6, 160_000), (7, 300_000), (99, 300_000)]
)
def test_the_default_doubles_from_five_seconds_to_five_minutes(attempt, delay):
    assert delay_ms(Backoff(jitter="none"), attempt, 0.5) == delay
    assert delay_ms(Backoff(), attempt, 0.0) == 0
    assert delay_ms(Backoff(), attempt, 0.5) == delay // 2
    assert delay_ms(Backoff(jitter="equal"), attempt, 0.0) == delay // 2
    assert delay_ms(Backoff(jitter="equal"), attempt, 0.5) == delay * 3 // 4


@given(BACKOFFS, st.integers(1, 100), RANDOM)
def test_no_delay_is_longer_than_the_cap_or_than_without_jitter(backoff, attempt, random):
    whole = delay_ms(Backoff(backoff.base_ms, backoff.factor, backoff.cap_ms, "none"), attempt, random)
    delay = delay_ms(backoff, attempt, random)
    assert type(delay) is int
    assert 0 <= delay <= whole <= backoff.cap_ms
    if backoff.jitter == "equal":
        assert delay >= whole // 2


@given(BACKOFFS, st.integers(1, 99), RANDOM)
def test_with_the_same_random_number_a_later_attempt_never_waits_less(backoff, attempt, random):
    assert delay_ms(backoff, attempt, random) <= delay_ms(backoff, attempt + 1, random)


@given(RANDOM, st.integers(1, 2**53))
def test_a_number_spread_over_a_batch_is_random_again(random, token):
    assert 0 <= spread(random, token) < 1
    assert spread(random, token) == spread(random, token)


def test_one_number_is_spread_over_a_batch():
    numbers = sorted(spread(0.3, token) for token in range(1000, 1100))
    gaps = [b - a for a, b in pairwise(numbers)]
    assert max(gaps) < 0.03


@pytest.mark.parametrize("backoff", [Backoff(), Backoff(0, 1, 0, "none"), Backoff(30 * DAY, 100, 365 * DAY, "equal")])
def test_a_policy_in_range_is_accepted(backoff):
    assert check_backoff(backoff) is backoff


@pytest.mark.parametrize(
    "backoff, option",
    [
        (Backoff(-1), "retry.base"),
        (Backoff(30 * DAY + 1), "retry.base"),
        (Backoff(factor=0.99), "retry.factor"),
        (Backoff(factor=100.1), "retry.factor"),
        (Backoff(factor=float("nan")), "retry.factor"),
        (Backoff(cap_ms=-1), "retry.cap"),
        (Backoff(cap_ms=365 * DAY + 1), "retry.cap"),
        (Backoff(jitter="some"), "retry.jitter"),
    ],
)
def test_a_policy_out_of_range_is_refused_by_name(backoff, option):
    with pytest.raises(InvalidOption) as refusal:
        check_backoff(backoff)
    assert refusal.value.option == option
