"""Run traces from a shell: `python -m holdfast.testing.traces file:./scratch --seed 17 --traces 100`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter

from holdfast.testing.traces import Difference, check_trace


def main() -> int:
    """Run the traces. Returns 1 at the first difference."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.traces", description=__doc__)
    parser.add_argument("url", help="the store, for example file:./scratch; each trace makes a new space in it")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first trace")
    parser.add_argument("--steps", type=int, default=80, help="the number of steps in a trace")
    parser.add_argument("--traces", type=int, default=1, help="the number of traces, with consecutive seeds")
    asked = parser.parse_args()
    seen: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.traces):
        try:
            seen += asyncio.run(check_trace(asked.url, seed, asked.steps))
        except Difference as difference:
            print(difference, file=sys.stderr)
            return 1
    for kind, count in sorted(seen.items()):
        print(f"{count:8} {kind}")
    print(f"{asked.traces} traces, {asked.traces * asked.steps} steps, no difference")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
