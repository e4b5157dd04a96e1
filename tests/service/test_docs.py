"""The reference lists every route and every code, and nothing else."""

import re
from pathlib import Path

from holdfast.service.app import ROUTES
from holdfast.service.errors import STATUS
from holdfast.testing.conformance import all_checks
from tests.service.test_conformance import NOT_OVER_HTTP, WHOLE_RULES

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")


def test_every_route_is_in_the_reference_with_its_scope():
    rows = [line for line in REFERENCE.splitlines() if line.startswith("| `")]
    listed = {
        (method, path): row
        for row in rows
        for method, path in re.findall(r"`(GET|POST|PUT|DELETE) (/[^`]*)`", row.split("|")[1])
    }
    assert listed.keys() == {(route.method, route.path) for route in ROUTES}
    for route in ROUTES:
        assert not route.scope or f"`{route.scope}`" in listed[route.method, route.path]


def test_every_code_is_in_the_reference_with_its_status():
    rows = re.findall(r"^\| (\d{3}) \| (.*?) \|", REFERENCE, re.MULTILINE)
    assert {code: int(status) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)} == STATUS


def test_the_reference_lists_exactly_the_rules_that_differ_over_http():
    """The tests of the conformance suite over HTTP check that the list is right."""
    rows = re.findall(r"^\| ([A-Z]+-\d(?:, [A-Z]+-\d)*) \|", REFERENCE, re.MULTILINE)
    listed = {rule for row in rows for rule in row.split(", ")}
    assert listed == {check.rule for check in all_checks() if check.name in NOT_OVER_HTTP} | WHOLE_RULES.keys()
