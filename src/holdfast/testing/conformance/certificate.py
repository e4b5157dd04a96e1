"""Runs the suite on a store and makes a certificate of the results."""

from __future__ import annotations

import asyncio
import time
import traceback
import uuid
from collections.abc import Callable, Iterable

from msgspec import Struct

from holdfast.core.errors import HoldfastError
from holdfast.opening import open_store
from holdfast.store import Capabilities
from holdfast.testing.conformance.expect import Broken, Skipped
from holdfast.testing.conformance.harness import Transaction, opened
from holdfast.testing.conformance.rules import Check, registered
from holdfast.testing.conformance.spaces import Locate, Spaces

CHECK_TIMEOUT_S = 100.0


class Row(Struct, frozen=True):
    """The result of one check. A `skipped` check counts as held: the store does not have what it checks."""

    rule: str
    check: str
    held: bool
    seconds: float
    error: str = ""
    skipped: str = ""


class Certificate(Struct, frozen=True):
    """The results of all checks on a store. `capabilities` says where stores may differ."""

    url: str
    capabilities: Capabilities
    rows: list[Row]

    @property
    def held(self) -> bool:
        """Whether every check held."""
        return bool(self.rows) and all(row.held for row in self.rows)

    @property
    def broken(self) -> list[Row]:
        """The checks that did not hold."""
        return [row for row in self.rows if not row.held]


OnResult = Callable[[Row], None]


def run(url: str, on_result: OnResult | None = None) -> Certificate:
    """Run the whole suite against the store at `url`, in an event loop of its own.

    The suite works in spaces of its own beside the URL and does not touch existing data. `on_result` is called
    after each check.
    """
    return asyncio.run(certify(url, on_result=on_result))


async def certify(
    url: str,
    checks: Iterable[Check] | None = None,
    *,
    on_result: OnResult | None = None,
    locate: Locate | None = None,
    transaction: Transaction | None = None,
    stop_at_first: bool = False,
) -> Certificate:
    """Run checks, by default all, against the store at `url`, one after the other."""
    spaces = Spaces(url, locate)
    rows: list[Row] = []
    try:
        store = await open_store(spaces.url("main", test_clock="1"))
        capabilities = store.capabilities
        try:
            for check in registered() if checks is None else checks:
                rows.append(row := await try_check(check, spaces, transaction))
                if on_result is not None:
                    on_result(row)
                if stop_at_first and not row.held:
                    break
        finally:
            await store.close()
    finally:
        await spaces.remove()
    return Certificate(url, capabilities, rows)


async def try_check(check: Check, spaces: Spaces, transaction: Transaction | None = None) -> Row:
    """Run one check and return its result."""
    started = time.perf_counter()
    try:
        await perform(check, spaces, transaction)
    except Skipped as reason:
        return Row(check.rule, check.name, True, time.perf_counter() - started, skipped=str(reason))
    except Exception as error:  # noqa: BLE001 - whatever a store under test raises is a finding
        return Row(check.rule, check.name, False, time.perf_counter() - started, _text(error))
    return Row(check.rule, check.name, True, time.perf_counter() - started)


async def perform(check: Check, spaces: Spaces, transaction: Transaction | None = None) -> None:
    """Run one check. Raises Broken if the store breaks the rule, Skipped if it does not apply, or its error."""
    limit = asyncio.timeout(CHECK_TIMEOUT_S)
    try:
        async with limit, opened(spaces, uuid.uuid4().hex[:10], transaction) as harness:
            await check.body(harness)
    except TimeoutError:
        if not limit.expired():
            raise
        raise Broken(f"the check had not ended after {CHECK_TIMEOUT_S:g} s") from None


def _text(error: Exception) -> str:
    if isinstance(error, Broken):
        return str(error)
    if isinstance(error, HoldfastError):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error)).strip()
