"""The suite, the rules and what the docs promise are one list."""

import re
from pathlib import Path

import pytest

from holdfast.testing.conformance import RULES, Check, all_checks, rule

GUARANTEES = Path(__file__).parents[2] / "docs" / "guarantees.md"


def test_the_docs_promise_exactly_the_rules_that_are_checked():
    families = "|".join(sorted({tag.split("-")[0] for tag in RULES}))
    promised = set(re.findall(rf"\b(?:{families})-\d+\b", GUARANTEES.read_text()))
    assert promised == set(RULES)


@pytest.mark.parametrize("tag", RULES)
def test_a_rule_has_a_check_and_a_sentence(tag):
    assert [check for check in all_checks() if check.rule == tag]
    assert RULES[tag].endswith(".")


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_a_check_has_a_docstring(check: Check):
    assert check.body.__doc__
    assert check.sentence == check.name.replace("_", " ")


def test_a_check_of_no_rule_and_a_second_check_of_one_name_are_refused():
    with pytest.raises(ValueError, match="LEASE-99"):
        rule("LEASE-99")
    taken = all_checks()[0]
    with pytest.raises(ValueError, match=taken.name):
        rule(taken.rule)(taken.body)
