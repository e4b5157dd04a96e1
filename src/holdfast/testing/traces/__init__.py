"""Random traces: a store and the memory store take the same steps and must never differ.

`await check_trace("file:./scratch", seed=17, steps=80)` draws 80 steps from the seed. It takes each step on a new,
empty store at this URL and on a new memory store, both with a frozen clock. It compares all answers, records, lists,
counts and events. In addition, `history` checks the log against the contract. From a shell:

    python -m holdfast.testing.traces file:./scratch --seed 17 --steps 80

The parts:

    steps       what a step is, and how the next one is drawn
    sides       one store: translates steps into its values, and its answers back
    pair        both stores: take a step, compare
    history     what the log must show for every store
"""

from __future__ import annotations

from collections import Counter
from random import Random

from holdfast.testing.conformance.spaces import Locate, Spaces
from holdfast.testing.traces.history import History
from holdfast.testing.traces.pair import Difference, Pair
from holdfast.testing.traces.steps import MAKERS, TraceStep, World, draw

VARIANTS: tuple[dict[str, str], ...] = (
    {},
    {"events": "all"},
    {"keep_events": "5"},
    {"events": "all", "keep_events": "0", "keep_failed_s": "60", "keep_canceled_s": "30"},
)
"""The options of both stores. The seed chooses one variant."""


async def check_trace(url: str, seed: int, steps: int, locate: Locate | None = None) -> Counter[str]:
    """Run one trace and count the kinds of its answers. Raises Difference, which says how to run it again."""
    spaces = Spaces(url, locate)
    options = VARIANTS[seed % len(VARIANTS)]
    pair = await open_pair(spaces, **options)
    random = Random(seed)
    try:
        for _ in range(steps):
            await pair.perform(draw(random, pair.world))
        await pair.look()
    except Difference as difference:
        again = f"python -m holdfast.testing.traces '{url}' --seed {seed} --steps {steps}"
        raise Difference(f"trace with seed {seed}, options {options}, {difference}\n  again: {again}") from difference
    finally:
        await pair.close()
        await spaces.remove()
    return pair.seen


async def open_pair(spaces: Spaces, **options: str) -> Pair:
    """A new space of the store under test, and a new memory store, opened with the same options."""
    alike = {"test_clock": "frozen"} | options
    reference = Spaces("memory:reference")
    return await Pair.open(spaces.url("trace", **alike), reference.url("trace", **alike))


__all__ = [
    "MAKERS",
    "VARIANTS",
    "Difference",
    "History",
    "Pair",
    "TraceStep",
    "World",
    "check_trace",
    "draw",
    "open_pair",
]
