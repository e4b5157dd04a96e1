"""The conformance suite: one contract, checked rule by rule on any store.

    certificate = run("file:./scratch")
    print(certificate.held, certificate.broken)

A store of your own passes when `certify("yourscheme:...")` says that every rule held; under pytest, parametrize over
`checks()` and call `perform(check, spaces)`.
"""

from holdfast.testing.conformance import checks as _checks
from holdfast.testing.conformance.certificate import Certificate, Row, certify, perform, run
from holdfast.testing.conformance.expect import Broken
from holdfast.testing.conformance.rules import RULES, Check, registered
from holdfast.testing.conformance.spaces import Spaces

checks = registered
"""All checks, in the order of the rules."""

__all__ = ["RULES", "Broken", "Certificate", "Check", "Row", "Spaces", "certify", "checks", "perform", "run"]

del _checks
