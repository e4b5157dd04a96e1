import pytest

from holdfast.core import failpoint
from holdfast.core.errors import InvalidOption
from holdfast.testing import failpoints


def test_an_unarmed_failpoint_does_nothing():
    failpoint.hit("some.step")
    with failpoints.armed("other.step"):
        failpoint.hit("some.step")


def test_an_armed_failpoint_acts_once_at_the_nth_hit():
    passed = []
    failpoints.arm("some.step", lambda: passed.append(1), nth=3)
    for _ in range(5):
        failpoint.hit("some.step")
    assert passed == [1]


def test_a_failpoint_can_raise():
    failpoints.arm_spec("some.step:raise:2")
    failpoint.hit("some.step")
    with pytest.raises(failpoints.FailpointError, match=r"some\.step"):
        failpoint.hit("some.step")
    failpoint.hit("some.step")


def test_an_unknown_action_is_refused():
    with pytest.raises(InvalidOption):
        failpoints.arm("some.step", "explode")
