"""Proof: what the store promises, and what was found when that was checked."""

import uuid

import msgspec
import pytest

from holdfast.cli.checks import _document
from holdfast.cli.serve import proof_directory
from holdfast.core.errors import InvalidOption
from holdfast.store import Finding
from holdfast.testing.conformance import RULES, Certificate, Row
from tests.dashboard.making import HOSTILE, check_plain, chrome, fits
from tests.dashboard.support import by_token, operator_token, served, site, texts, token

pytestmark = pytest.mark.asyncio

AUDIT = {
    "events": 1234, "accepted": 500, "waiting": 7, "total": 1, "rules": ["STATE-1", "LEASE-1"],
    "counts": {"LEASE-1": 1}, "notes": ["a note"],
    "violations": [{"rule": "LEASE-1", "explanation": "two ends", "tenant": "rival", "queue": "q", "job_id": "j"}],
}  # fmt: skip


def _write(directory, name, document):
    (directory / name).write_bytes(msgspec.json.encode(document, enc_hook=str))


def _certificate(store, broken=()):
    rows = [Row(rule, "a_check", rule not in broken, 0.1) for rule in RULES]
    return _document(Certificate("redis://:secret@host:6379/0", store.capabilities, rows))


@pytest.fixture
def directory(tmp_path):
    return tmp_path


async def test_the_promises_are_in_plain_words_and_the_commands_are_there(opened):
    shown = texts(await opened.browser().get("/proof?tenant=acme"))
    assert "Jobs are lost with the process." in shown
    assert "holdfast conformance URL --json > proof/conformance.json" in shown
    assert "holdfast dashboard --proof proof" in shown


async def test_the_last_certificate_and_the_last_audit_are_shown(directory):
    async with site(f"memory:{uuid.uuid4().hex}", proof=directory) as found:
        browser = found.browser()
        shown = " ".join(texts(await browser.get("/proof?tenant=acme")))
        assert "has no conformance.json" in shown
        assert "has no audit.json" in shown
        _write(directory, "conformance.json", _certificate(found.store))
        _write(directory, "audit.json", {**AUDIT, "total": 0, "violations": []})
        shown = " ".join(texts(await browser.get("/proof?tenant=acme")))
        assert "It keeps the contract." in shown
        assert f"{len(RULES)} of {len(RULES)} rules held" in shown
        assert "0 violations of 2 rules over 1,234 events." in shown
        assert "secret" not in shown
        _write(directory, "conformance.json", _certificate(found.store, broken=["LEASE-1"]))
        _write(directory, "audit.json", AUDIT)
        shown = " ".join(texts(await browser.get("/proof?tenant=acme")))
        assert "It does NOT keep the contract." in shown
        assert "1 violation of" in shown
        assert "two ends" in shown


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b'{"url": 1}', b"\xff\xfe", b"<html>"])
async def test_a_file_that_is_something_else_is_named(directory, bad):
    (directory / "conformance.json").write_bytes(bad)
    (directory / "audit.json").write_bytes(bad)
    async with site(f"memory:{uuid.uuid4().hex}", proof=directory) as found:
        shown = " ".join(texts(await found.browser().get("/proof?tenant=acme")))
        assert "conformance.json is not what the command writes" in shown
        assert "audit.json is not what the command writes" in shown


async def test_a_tenants_token_sees_no_audit_no_doctor_and_no_place(directory, monkeypatch):
    async with site(f"memory:{uuid.uuid4().hex}", by_token, proof=directory) as found:
        _write(directory, "conformance.json", _certificate(found.store))
        _write(directory, "audit.json", AUDIT)
        asked = []

        async def doctor():
            asked.append(1)
            return [Finding("warn", "disk", "nearly full", "buy one")]

        monkeypatch.setattr(found.store, "doctor", doctor)
        browser = await found.logged_in(token())
        answer = await browser.get("/proof?doctor=1")
        assert "It keeps the contract." in texts(answer)
        for hidden in ("rival", "two ends", "Doctor", "nearly full", str(directory), "redis://"):
            assert hidden not in answer.text
        assert (await browser.get("/proof?tenant=rival")).status_code == 404
        assert not asked
        browser = await found.logged_in(operator_token(("operator",)))
        assert "Run the checks" in texts(await browser.get("/proof?tenant=acme"))
        assert not asked
        assert {"nearly full", "buy one", "warn"} <= set(texts(await browser.get("/proof?tenant=acme&doctor=1")))


async def test_the_directory_is_named_by_the_option_or_the_environment(directory, monkeypatch):
    monkeypatch.delenv("HOLDFAST_PROOF", raising=False)
    assert proof_directory(None) is None
    assert proof_directory(directory) == directory
    monkeypatch.setenv("HOLDFAST_PROOF", str(directory))
    assert proof_directory(None) == directory
    for given in (directory / "nowhere", None):
        monkeypatch.setenv("HOLDFAST_PROOF", str(directory / "nowhere"))
        with pytest.raises(InvalidOption, match="is no directory"):
            proof_directory(given)


async def test_hostile_findings_stay_text(directory):
    async with site(f"memory:{uuid.uuid4().hex}", proof=directory) as found:
        lines = [{"rule": text, "explanation": text, "tenant": text, "job_id": text} for text in HOSTILE]
        _write(directory, "audit.json", {**AUDIT, "violations": lines, "notes": list(HOSTILE)})
        rules = [{"rule": text, "held": False} for text in HOSTILE]
        _write(directory, "conformance.json", {"url": HOSTILE[0], "held": False, "rules": rules})
        shown = check_plain(await found.browser().get("/proof?tenant=acme"))
        for text in HOSTILE:
            assert text in shown


async def test_a_person_runs_the_doctor(directory):
    async with (
        site(f"memory:{uuid.uuid4().hex}", proof=directory) as found,
        served(found) as base,
        chrome(base, size="phone") as page,
    ):
        _write(directory, "conformance.json", _certificate(found.store))
        await page.goto("/proof?tenant=acme")
        await page.get_by_text("Rule by rule").click()
        assert await page.get_by_text("ENQ-1", exact=True).is_visible()
        await page.get_by_role("link", name="Run the checks").click()
        await page.get_by_role("link", name="Run again").wait_for()
        assert await fits(page)
