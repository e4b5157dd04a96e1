"""A trial: plant a bug, run the suite, and see which check notices first."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

from msgspec import Struct
from msgspec.structs import replace

from holdfast.kinds import kind_of
from holdfast.opening import make_store
from holdfast.testing.conformance import Certificate, Check, Row, Spaces, all_checks, certify, harness
from holdfast.testing.conformance import certificate as certificates
from holdfast.testing.conformance.harness import Transaction
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.servers import ValkeyServer
from tests.mutants.ordered import ORDERED
from tests.mutants.planting import CodeMoved, Mutant

_PATIENCE_S = 1.0
_CHECK_S = 20.0
_SHARDS = 4
_FAST = Path("/dev/shm")


class Trial(Struct, frozen=True):
    """The outcome of one planted bug in one store."""

    mutant: Mutant
    store: str
    caught: Row | None
    runs: int
    seconds: float = 0.0
    broken: str = ""
    """Why this is no trial: the code that the bug changes is gone, or what it was planted in breaks down."""

    @property
    def held(self) -> bool:
        """Whether the suite caught the bug: the planted code ran without breaking down, and a check failed."""
        return self.caught is not None and self.runs > 0 and not self.broken

    @property
    def verdict(self) -> str:
        """The check that failed, or why the trial proves nothing."""
        if self.broken:
            return f"BADLY PLANTED: {self.broken}"
        if self.runs == 0:
            return "NEVER RAN: the bug is planted where nothing comes by"
        if self.caught is None:
            return f"SURVIVED: no check of {', '.join(self.mutant.breaks)} or any other noticed"
        strayed = "" if self.caught.rule in self.mutant.breaks else f"  (nothing of {', '.join(self.mutant.breaks)})"
        return f"{self.caught.rule} {self.caught.check}{strayed}"


@contextmanager
def scratch() -> Generator[Callable[[str], str]]:
    """A function from a store's name to a URL. The data is removed at the end; a server starts at its first use."""
    with ExitStack() as stack:
        place = tempfile.TemporaryDirectory(prefix="holdfast-mutants-", dir=_FAST if _FAST.is_dir() else None)
        root = stack.enter_context(place)
        valkey = cache(lambda: stack.enter_context(ValkeyServer()))
        postgres = cache(lambda: stack.enter_context(_postgres()))
        # The name of a place is appended, so the option that names it comes last.
        urls: dict[str, Callable[[], str]] = {
            "memory": lambda: "memory:mutants-",
            "file": lambda: f"file:{root}",
            "redis": lambda: valkey().url(shards=1, prefix="redis"),
            "shards": lambda: valkey().url(shards=_SHARDS, prefix="shards"),
            "postgres": lambda: postgres().url(schema="m"),
            "fdb": lambda: "fdb:?simulation=mutants&prefix=m",
        }
        yield lambda store: urls[store]()


def _postgres() -> PostgresServer:
    """A server with its files in memory: every check makes a schema, which is many files."""
    return PostgresServer(durable=False, synchronous_commit=False, autovacuum=False)


def baseline(url: str) -> Certificate:
    """The suite's outcome for the store without a bug."""
    return asyncio.run(_certify(url))


def trial(mutant: Mutant, store: str, url: str, leave_out: Collection[str] = ()) -> Trial:
    """Run the checks of the rules that should break, then the others, until one fails."""
    chosen = [check for check in all_checks() if check.name not in leave_out]
    chosen += [check for check in ORDERED if check.name == mutant.seen_by]
    chosen.sort(key=lambda check: _order(mutant, check))
    started = time.perf_counter()
    with (
        mock.patch.object(harness, "PATIENCE_S", _PATIENCE_S),
        mock.patch.object(certificates, "CHECK_TIMEOUT_S", _CHECK_S),
    ):
        try:
            result = asyncio.run(_until_one_notices(mutant, store, url, chosen))
        except CodeMoved as error:
            result = Trial(mutant, store, None, 0, broken=str(error))
    return replace(result, seconds=time.perf_counter() - started)


async def _until_one_notices(mutant: Mutant, store: str, url: str, chosen: list[Check]) -> Trial:
    runs = 0
    for check in chosen:
        # Each in places of its own: what other checks left behind must not be taken for the bug.
        with mutant.planted(store) as bug:
            row = await _try(url, check)
        runs += bug.runs
        if bug.script_errors:
            return Trial(mutant, store, None, runs, broken=f"what it was planted in fails: {bug.script_errors[0]}")
        # The control: without the bug it holds.
        if not row.held and (await _try(url, check)).held:
            return Trial(mutant, store, row, runs)
    return Trial(mutant, store, None, runs)


async def _try(url: str, check: Check) -> Row:
    spaces = Spaces(url, _locate(url), exact=_joins_transactions(url))
    try:
        return await certificates.try_check(check, spaces, _transaction(url))
    finally:
        await spaces.remove()


async def _certify(url: str) -> Certificate:
    return await certify(url, locate=_locate(url), transaction=_transaction(url))


def _locate(url: str) -> Callable[[str, str], str] | None:
    return _beside if kind_of(url).place == "server" else None


def _beside(url: str, place: str) -> str:
    """A place on the server of `scratch`, which is removed as a whole."""
    return f"{url}-{place}"


def _transaction(url: str) -> Transaction | None:
    """A way to open a transaction of a caller's own, where the store can join one. [ENQ-7]"""
    if not _joins_transactions(url):
        return None
    begin: Transaction = getattr(make_store(url), "own_transaction")  # noqa: B009 - a store need not have it
    return begin


@cache
def _joins_transactions(url: str) -> bool:
    """It then also has exact quotas for enqueues that join none, and exact turns for one process."""
    return make_store(url).capabilities.transactional_enqueue


def _order(mutant: Mutant, check: Check) -> tuple[bool, int]:
    rule = mutant.breaks.index(check.rule) if check.rule in mutant.breaks else len(mutant.breaks)
    return check.name != mutant.seen_by, rule
