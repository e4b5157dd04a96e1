import sqlite3

import pytest

from holdfast.core.job import JobState
from holdfast.stores.memory.store import CAPABILITIES
from holdfast.testing import conformance
from holdfast.testing.conformance import certificate, rules
from holdfast.testing.conformance.expect import expect_equal


async def an_enqueued_job_is_ready(harness):
    await harness.queued("one")
    await harness.expect_state(harness.key("one"), JobState.READY)


async def two_is_three(harness):
    expect_equal(2, 3, "two")


@pytest.fixture
def suite(monkeypatch):
    """A suite of a few checks instead of the whole one."""

    def use(*checks):
        monkeypatch.setattr(certificate, "registered", lambda: list(checks))
        monkeypatch.setattr(conformance, "all_checks", lambda: list(checks))

    return use


GOOD = rules.Check("STATE-1", "an_enqueued_job_is_ready", an_enqueued_job_is_ready)
BAD = rules.Check("ENQ-2", "two_is_three", two_is_three)


def test_a_store_that_keeps_the_rules_gets_a_certificate(cli, suite, place):
    suite(GOOD)
    answer = cli("conformance", f"file:{place}/under-test")
    assert answer.code == 0
    assert answer.out.splitlines()[0].split() == ["RULE", "VERDICT", "CHECKS", "SECONDS", "PROMISE"]
    assert answer.out.splitlines()[1].split()[:3] == ["STATE-1", "held", "1"]
    assert "A job is in exactly one state" in answer.out
    assert "survives power loss" in answer.out
    assert "keeps the contract: 1 of 1 checks held." in answer.out
    assert answer.err == "Checking: 1 of 1\n"


def test_a_rule_that_is_not_held_is_shown_with_its_reason_and_fails(cli, suite):
    suite(GOOD, BAD)
    answer = cli("conformance", "memory:")
    assert answer.code == 1
    assert "ENQ-2 is not held: two is three" in answer.out
    assert "does NOT keep the contract: 1 of 2 checks held." in answer.out
    assert "durable" in CAPABILITIES.notes, "printing the notes must not take them from the store"


def test_a_certificate_for_programs(cli, suite):
    suite(GOOD, BAD)
    answer = cli("conformance", "memory:", "--json")
    assert answer.code == 1
    assert answer.err == ""
    document = answer.json
    assert set(document) == {"url", "held", "rules", "checks", "capabilities"}
    assert document["held"] is False
    assert [(rule["rule"], rule["held"]) for rule in document["rules"]] == [("STATE-1", True), ("ENQ-2", False)]
    assert set(document["checks"][1]) == {"rule", "check", "held", "seconds", "error", "skipped"}
    assert document["capabilities"]["durable"] is False


def test_an_unknown_store_cannot_be_certified(cli):
    answer = cli("conformance", "nothing:")
    assert answer.code == 2
    assert "no store is registered for nothing:" in answer.err


def test_doctor_finds_a_healthy_store_healthy(cli, url):
    answer = cli("doctor", url)
    assert answer.code == 0
    assert answer.out.splitlines()[0].split() == ["LEVEL", "SUBJECT", "FINDING", "CURE"]
    document = cli("doctor", url, "--json").json
    assert document["healthy"] is True
    assert set(document["findings"][0]) == {"level", "subject", "text", "cure"}


def test_a_warning_is_no_failure_and_has_a_cure(cli):
    answer = cli("doctor", "memory:")
    assert answer.code == 0
    assert "use file:DIR or a server" in answer.out


def test_a_store_that_does_not_open_is_a_bad_finding(cli, place):
    (place / "other").mkdir()
    with sqlite3.connect(place / "other" / "holdfast.db") as other:
        other.execute("CREATE TABLE other_data (x)")
    other.close()
    answer = cli("doctor", f"file:{place}/other", "--json")
    assert answer.code == 1
    assert answer.json["healthy"] is False
    (finding,) = answer.json["findings"]
    assert (finding["level"], finding["subject"]) == ("bad", "open")
    assert finding["cure"]
