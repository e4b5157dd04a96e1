"""Proof: what this store promises, and what was found when its promises were checked.

The operator names a directory (`--proof`) with what the commands of `COMMANDS` wrote there. Operators also see the last
audit, whose findings are about all tenants, and can run the store's doctor.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core.errors import HoldfastError
from holdfast.dashboard.page import WebPage
from holdfast.dashboard.view import View
from holdfast.store import Capabilities, Finding

CERTIFICATE, AUDIT, REPORT = "conformance.json", "audit.json", "report.html"
SHOWN = 20

PROMISES = {
    "durable": ("A job that was accepted survives the end of a process.", "Jobs are lost with the process."),
    "survives_power_loss": ("It survives a power cut, if the disk honours fsync.", "A power cut can lose jobs."),
    "many_processes": ("Several processes can share the store.", "One process at a time uses the store."),
    "many_hosts": ("Several hosts can share the store.", "The store is for one host."),
    "transactional_enqueue": (
        "A job can be enqueued in the caller's own transaction.",
        "An enqueue cannot join the caller's transaction.",
    ),
    "exact_turns": (
        "Turns between tenants are exact over the whole store.",
        "Turns between tenants are exact within a shard only.",
    ),
    "exact_quota": ("A quota is never exceeded.", "A quota can be exceeded for a moment."),
}
"""Each capability in plain words: if the store has it, and if not."""


class HeldRule(Struct, frozen=True):
    """One rule of the contract, as a certificate has it."""

    rule: str
    held: bool
    seconds: float = 0.0


class CertificateFile(Struct, frozen=True):
    """What `holdfast conformance --json` writes."""

    url: str
    held: bool
    rules: list[HeldRule]
    checks: list[dict[str, Any]] = []


class FoundViolation(Struct, frozen=True):
    """One broken rule in an audit."""

    rule: str
    explanation: str = ""
    tenant: str = ""
    queue: str = ""
    job_id: str = ""


class AuditFile(Struct, frozen=True):
    """What `holdfast pipeline audit --json` writes."""

    events: int
    accepted: int
    waiting: int
    total: int
    rules: list[str] = []
    counts: dict[str, int] = {}
    violations: list[FoundViolation] = []
    notes: list[str] = []


class ProofFile(Struct, frozen=True):
    """A file that was read. `problem`: why it cannot be shown."""

    written_at: int
    content: Any = None
    problem: str = ""


async def read(view: View) -> dict[str, Any]:
    """The capabilities, and the files if the operator named a directory."""
    directory, operator = view.source.proof, view.viewer.is_operator
    return {
        "promises": promises(view.store.capabilities),
        "directory": str(directory or "") if operator else "",
        "has_directory": directory is not None,
        "certificate": await _file(directory, CERTIFICATE, CertificateFile),
        "audit": await _file(directory, AUDIT, AuditFile) if operator else None,
        "report": await asyncio.to_thread(_report, directory) if operator else None,
        "findings": await _doctor(view) if operator and view.text("doctor") else None,
        "commands": _commands(view, directory),
    }


def promises(capabilities: Capabilities) -> list[tuple[bool, str, str]]:
    """Each promise: whether it is made, in which words, and what there is to add."""
    notes = dict(capabilities.notes)
    found = [
        (getattr(capabilities, name), words[0 if getattr(capabilities, name) else 1], notes.pop(name, ""))
        for name, words in PROMISES.items()
    ]
    return [*found, *((True, f"{name.replace('_', ' ').capitalize()}:", text) for name, text in notes.items())]


async def _doctor(view: View) -> tuple[list[Finding], float]:
    """The findings, and how many seconds they took."""
    began = time.monotonic()
    try:
        found = list(await view.store.doctor())
    except HoldfastError as error:
        found = [Finding("bad", "doctor", str(error))]
    return found, time.monotonic() - began


async def _file(directory: Path | None, name: str, type: type[Struct]) -> ProofFile | None:
    return None if directory is None else await asyncio.to_thread(_read, directory / name, type)


def _read(path: Path, type: type[Struct]) -> ProofFile | None:
    """A file as JSON of this kind; None if there is none."""
    try:
        found, data = path.stat(), path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        return ProofFile(0, problem=f"{path.name} cannot be read: {error.strerror}.")
    written_at = int(found.st_mtime * 1000)
    try:
        return ProofFile(written_at, msgspec.json.decode(data, type=type))
    except msgspec.MsgspecError as error:
        return ProofFile(written_at, problem=f"{path.name} is not what the command writes: {error}.")


def _report(directory: Path | None) -> ProofFile | None:
    path = None if directory is None else directory / REPORT
    if path is None or not path.is_file():
        return None
    return ProofFile(int(path.stat().st_mtime * 1000), str(path))


def _commands(view: View, directory: Path | None) -> list[tuple[str, str]]:
    if not view.viewer.is_operator:
        return []
    place = "proof" if directory is None else str(directory)
    return [
        (
            "Check every rule of the contract on the store, beside its data",
            _to(place, CERTIFICATE, "conformance URL --json"),
        ),
        ("Keep the log in a lake", "holdfast pipeline ingest --store URL --lake LAKE"),
        ("Check the history against the contract", _to(place, AUDIT, "pipeline audit --lake LAKE --json")),
        ("Draw a report of it", f"holdfast pipeline report --lake LAKE --out {place}/{REPORT}"),
        ("Check the deployment", "holdfast doctor URL"),
        *([] if directory else [("Show their results here", f"holdfast dashboard --proof {place}")]),
    ]


def _to(place: str, name: str, words: str) -> str:
    return f"holdfast {words} > {place}/{name}"


PAGE = WebPage("/proof", "Proof", "proof.html", read=read, nav="Proof", key="p")
