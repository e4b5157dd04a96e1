"""The conformance suite: one check or more for every rule of the contract, for any store. SHIPPED.

    from holdfast.testing.conformance import run
    certificate = run("file:./data")          # works in spaces of its own beside that URL
    certificate.held, certificate.rows

A store's own tests are a few lines: `all_checks()` gives the checks, `perform(check, Spaces(url))` runs one.
"""

from __future__ import annotations

from holdfast.testing.conformance import checks as _checks
from holdfast.testing.conformance.certificate import Certificate, Row, certify, perform, run
from holdfast.testing.conformance.expect import Broken, Skipped, expect
from holdfast.testing.conformance.harness import Harness, Transaction
from holdfast.testing.conformance.rules import RULES, Check, registered, rule
from holdfast.testing.conformance.spaces import Locate, Spaces

__all__ = [
    "RULES",
    "Broken",
    "Certificate",
    "Check",
    "Harness",
    "Locate",
    "Row",
    "Skipped",
    "Spaces",
    "Transaction",
    "all_checks",
    "certify",
    "expect",
    "perform",
    "rule",
    "run",
]


def all_checks() -> list[Check]:
    """Every check of the suite, in the order of the rules."""
    assert _checks.__all__
    return registered()
