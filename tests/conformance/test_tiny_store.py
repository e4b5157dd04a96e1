"""The example store of examples/tiny_store.py keeps the whole contract, in less than 300 lines."""

import asyncio
from pathlib import Path

import pytest

from holdfast import opening
from holdfast.store import Store
from holdfast.testing.conformance import Check, Skipped, Spaces, all_checks, perform
from tests.installed import installed

SOURCE = Path(__file__).parents[2] / "examples" / "tiny_store.py"


@pytest.fixture(scope="module")
def spaces():
    with installed("tiny_store", SOURCE.read_text(encoding="utf-8"), tiny="open_tiny"):
        yield Spaces("tiny:")


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: f"{check.rule}-{check.name}")
def test_the_tiny_store_keeps_each_rule(check: Check, spaces: Spaces) -> None:
    try:
        asyncio.run(perform(check, spaces))
    except Skipped as reason:
        pytest.skip(str(reason))


def test_the_tiny_store_has_every_method_of_the_contract(spaces):
    assert isinstance(opening.make_store("tiny:"), Store)


def test_the_tiny_store_has_less_than_300_lines():
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 300
