"""A trial: plant a bug, run the suite, and see which check notices first."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from msgspec import Struct

from holdfast.testing.conformance import Certificate, Check, Row, all_checks, certify, harness
from holdfast.testing.mutants.planting import Mutant

_PATIENCE_S = 1.0
_FAST = Path("/dev/shm")  # noqa: S108 - in memory where there is such a thing: nothing here has to last


class Trial(Struct, frozen=True):
    """What came of one planted bug in one store."""

    mutant: Mutant
    store: str
    caught: Row | None
    runs: int
    seconds: float

    @property
    def held(self) -> bool:
        """Whether the suite did its work: the planted code ran, and a check failed."""
        return self.caught is not None and self.runs > 0

    @property
    def verdict(self) -> str:
        """The check that noticed, or what is wrong."""
        if self.runs == 0:
            return "NEVER RAN: the bug is planted where nothing comes by"
        if self.caught is None:
            return f"SURVIVED: no check of {', '.join(self.mutant.breaks)} or any other noticed"
        strayed = "" if self.caught.rule in self.mutant.breaks else f"  (nothing of {', '.join(self.mutant.breaks)})"
        return f"{self.caught.rule} {self.caught.check}{strayed}"


@contextmanager
def scratch() -> Generator[Callable[[str], str]]:
    """Gives the URL of a store by its scheme, at a place that is taken away afterwards."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-", dir=_FAST if _FAST.is_dir() else None) as place:
        yield lambda store: f"file:{place}" if store == "file" else f"{store}:mutants-"


def baseline(url: str) -> Certificate:
    """What the suite says of the store as it is."""
    return asyncio.run(certify(url))


def trial(mutant: Mutant, store: str, url: str, leave_out: Collection[str] = ()) -> Trial:
    """Run the checks of the rules that should break, then the others, until one notices."""
    chosen = [check for check in all_checks() if check.name not in leave_out]
    chosen.sort(key=lambda check: _order(mutant, check))
    started = time.perf_counter()
    with mock.patch.object(harness, "PATIENCE_S", _PATIENCE_S):
        caught, runs = asyncio.run(_first_to_notice(mutant, store, url, chosen))
    return Trial(mutant, store, caught, runs, time.perf_counter() - started)


async def _first_to_notice(mutant: Mutant, store: str, url: str, chosen: list[Check]) -> tuple[Row | None, int]:
    runs = 0
    for check in chosen:
        # Each in places of its own: what other checks left behind must not be taken for the bug.
        with mutant.planted(store) as bug:
            row = (await certify(url, [check])).rows[0]
        runs += bug.runs
        # The control: without the bug it holds.
        if not row.held and (await certify(url, [check])).held:
            return row, runs
    return None, runs


def _order(mutant: Mutant, check: Check) -> int:
    return mutant.breaks.index(check.rule) if check.rule in mutant.breaks else len(mutant.breaks)
