"""Checks of a store: conformance and doctor; and the version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from holdfast.cli.options import Blobs, Json, StoreUrl, blobs_url
from holdfast.cli.output import emit, progress, say, show, show_pairs
from holdfast.cli.session import existing, shown_url
from holdfast.core.errors import StoreError, StoreMismatch

if TYPE_CHECKING:
    from holdfast.store import Capabilities, Finding
    from holdfast.testing.conformance import Certificate, Row


def conformance(url: StoreUrl, *, json: Json = False) -> None:
    """Check whether a store keeps the contract, and print a certificate. Exits with 1 if a rule is broken.

    The suite uses namespaces of its own next to the URL's. It does not touch the data there.
    """
    import asyncio

    from holdfast.opening import make_store
    from holdfast.testing.conformance import all_checks, certify

    # A store that can join its caller's transaction needs one to join. [ENQ-7]
    transaction = getattr(make_store(url), "own_transaction", None)
    with progress("Checking", len(all_checks()), quiet=json) as done:
        certificate = asyncio.run(certify(url, on_result=lambda _: done(1), transaction=transaction))
    if json:
        emit(_document(certificate))
    else:
        _print(certificate)
    if not certificate.held:
        raise typer.Exit(1)


def doctor(url: StoreUrl, *, blobs: Blobs = None, json: Json = False) -> None:
    """Check a deployment: durability, damage, versions, space, access. Exits with 1 if a check fails."""
    from holdfast.store import Finding

    try:
        findings = [*_examined(url), *_examined_blobs(blobs_url(blobs))]
    except StoreError as error:
        cure = "check that the store runs and that it accepts this login"
        if isinstance(error, StoreMismatch):
            cure = "use another URL, or the options that the store was created with"
        findings = [Finding("bad", "open", str(error), cure)]
    healthy = all(finding.level != "bad" for finding in findings)
    if json:
        emit({"url": shown_url(url), "healthy": healthy, "findings": findings})
    else:
        show(["level", "subject", "finding", "cure"], ([f.level, f.subject, f.text, f.cure] for f in findings))
    if not healthy:
        raise typer.Exit(1)


def _examined(url: str) -> Sequence[Finding]:
    """The findings of the store's doctor. If it can, it runs before the store is opened, because opening may fail."""
    import asyncio

    from holdfast.opening import make_store

    async def ask() -> Sequence[Finding]:
        store = make_store(existing(url))
        try:
            if not getattr(store, "examines_closed", False):
                await store.open()
            return await store.doctor()
        finally:
            await store.close()

    return asyncio.run(ask())


def _examined_blobs(url: str | None) -> Sequence[Finding]:
    from holdfast.blobs import Blobs

    return [] if url is None else Blobs.open(url).doctor()


def version(*, json: Json = False) -> None:
    """Print the version."""
    from importlib.metadata import version as find

    number = find("holdfast")
    if json:
        emit({"version": number})
    else:
        say(f"holdfast {number}")


def _print(certificate: Certificate) -> None:
    from holdfast.testing.conformance import RULES

    rows = [
        [
            tag,
            "held" if all(row.held for row in checks) else "not held",
            str(len(checks)),
            f"{_seconds(checks):.2f}",
            RULES.get(tag, ""),
        ]
        for tag, checks in _by_rule(certificate.rows).items()
    ]
    show(["rule", "verdict", "checks", "seconds", "promise"], rows)
    for row in certificate.broken:
        say(f"\n{row.rule} is not held: {row.check.replace('_', ' ')}\n{row.error}", lines=True)
    say()
    show_pairs(_capabilities(certificate.capabilities))
    skipped = sum(bool(row.skipped) for row in certificate.rows)
    held = sum(row.held for row in certificate.rows) - skipped
    left_out = f" ({skipped} are for features that this store does not have)" if skipped else ""
    verdict = "keeps the contract" if certificate.held else "does NOT keep the contract"
    checked = len(certificate.rows) - skipped
    say(f"\n{shown_url(certificate.url)} {verdict}: {held} of {checked} checks held{left_out}.", lines=True)


def _capabilities(capabilities: Capabilities) -> Iterable[tuple[str, str]]:
    import msgspec

    fields: dict[str, Any] = msgspec.structs.asdict(capabilities)
    notes = dict(fields.pop("notes"))  # A copy: the store keeps its own.
    yield "store", str(fields.pop("name"))
    for name, value in fields.items():
        text = "yes" if value is True else "no" if value is False else str(value)
        extra = notes.pop(name, "")
        yield name.replace("_", " "), f"{text}: {extra}" if extra else text
    yield from ((name.replace("_", " "), text) for name, text in notes.items())


def _by_rule(rows: Sequence[Row]) -> dict[str, list[Row]]:
    rules: dict[str, list[Row]] = {}
    for row in rows:
        rules.setdefault(row.rule, []).append(row)
    return rules


def _seconds(rows: Sequence[Row]) -> float:
    return sum(row.seconds for row in rows)


def _document(certificate: Certificate) -> dict[str, Any]:
    return {
        "url": shown_url(certificate.url),
        "held": certificate.held,
        "rules": [
            {"rule": tag, "held": all(row.held for row in checks), "seconds": _seconds(checks)}
            for tag, checks in _by_rule(certificate.rows).items()
        ],
        "checks": certificate.rows,
        "capabilities": certificate.capabilities,
    }
