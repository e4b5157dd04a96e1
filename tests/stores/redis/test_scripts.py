"""How scripts are put together from their parts."""

import re

import pytest

from holdfast.stores.redis.scripts import PARTS, SCRIPTS, read_parts

FUNCTION = re.compile(r"^local function (\w+)\(", re.MULTILINE)


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_has_every_function_of_the_parts_that_it_calls(name):
    """A part that is missing in its `uses:` line would fail only when the script runs."""
    functions = {function for part in PARTS for function in FUNCTION.findall(read_parts()[part])}
    text = SCRIPTS[name].text
    called = set(re.findall(r"(?<![\w.])(\w+)\(", text))
    defined = set(re.findall(r"local function (\w+)\(", text))
    assert not (called & functions) - defined
