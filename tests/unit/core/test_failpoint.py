"""Named steps do nothing until a test says otherwise."""

import pytest

from holdfast.core import failpoint


@pytest.fixture(autouse=True)
def _nothing_installed():
    failpoint.install(None)
    yield
    failpoint.install(None)


def test_a_failpoint_without_a_hook_does_nothing():
    failpoint.hit("worker.after_claim")


def test_an_installed_hook_is_called_at_every_step_until_it_ends():
    passed = []
    failpoint.install(passed.append)
    failpoint.hit("a")
    failpoint.hit("b")
    failpoint.install(None)
    failpoint.hit("c")
    assert passed == ["a", "b"]
