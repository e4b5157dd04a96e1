"""Weighted turns, on virtual times alone. [TENANT-4]"""

from collections import Counter
from heapq import heapify

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import fairness
from holdfast.core.errors import InvalidOption
from holdfast.core.fairness import STRIDE, WEIGHT_MAX, WEIGHT_MIN

WEIGHTS = st.floats(WEIGHT_MIN, WEIGHT_MAX)


def serve(lanes, limit, costs, stock=None):
    """The tenants in the order of their turns; `stock` is the number of jobs of each, unlimited by default."""
    served = []

    def take(tenant):
        if stock is not None:
            if not stock[tenant]:
                return False
            stock[tenant] -= 1
        served.append(tenant)
        return True

    heapify(lanes)
    assert fairness.turns(lanes, limit, take, costs.__getitem__) == len(served)
    return served


def test_equal_weights_alternate_and_ties_go_by_name():
    lanes = [(0, "c"), (0, "a"), (0, "b")]
    assert serve(lanes, 7, dict.fromkeys("abc", STRIDE)) == list("abcabca")
    assert sorted(lanes) == [(2 * STRIDE, "b"), (2 * STRIDE, "c"), (3 * STRIDE, "a")]


@given(st.dictionaries(st.sampled_from("abcdef"), WEIGHTS, min_size=1), st.integers(0, 400))
def test_no_tenant_is_more_than_one_turn_ahead_of_its_weight(weights, limit):
    costs = {tenant: fairness.cost(weight) for tenant, weight in weights.items()}
    turns = Counter(serve([(0, tenant) for tenant in weights], limit, costs))
    assert turns.total() == limit
    for ahead in weights:
        for behind in weights:
            assert (turns[ahead] - 1) * costs[ahead] <= turns[behind] * costs[behind]


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5)), st.integers(0, 40))
def test_an_exhausted_lane_leaves_and_the_others_give_all_their_jobs(stock, limit):
    left = dict(stock)
    lanes = [(0, tenant) for tenant in stock]
    served = serve(lanes, limit, dict.fromkeys(stock, STRIDE), left)
    assert len(served) == min(limit, sum(stock.values()))
    assert all(Counter(served)[tenant] <= stock[tenant] for tenant in stock)
    assert {tenant for tenant in left if left[tenant]} <= {tenant for _, tenant in lanes}


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_newcomer_enters_at_the_minimum_and_never_before_its_own_time(own, floor):
    assert fairness.entry(own, floor) == max(own, floor)


def test_a_late_lane_waits_for_one_turn_and_does_not_catch_up():
    costs = dict.fromkeys("ab", STRIDE)
    lanes = [(0, "a")]
    serve(lanes, 1000, costs)
    lanes.append((fairness.entry(0, lanes[0][0]), "b"))
    assert serve(lanes, 6, costs) == list("ababab")


@given(WEIGHTS, WEIGHTS)
def test_more_weight_never_costs_more(one, other):
    low, high = sorted((one, other))
    assert 1 <= fairness.cost(high) <= fairness.cost(low)
    assert fairness.cost(one) == pytest.approx(STRIDE / one, abs=0.5)


@pytest.mark.parametrize("weight", [WEIGHT_MIN, 1, 2.5, WEIGHT_MAX])
def test_a_weight_in_range_is_accepted(weight):
    assert fairness.check_weight(weight) == weight


@pytest.mark.parametrize("weight", [0, -1, 0.009, 100.1, float("nan"), float("inf")])
def test_a_weight_out_of_range_is_refused(weight):
    with pytest.raises(InvalidOption, match="weight"):
        fairness.check_weight(weight)
