"""`python -m bench.full`: everything beside every peer, in interleaved rounds, and into docs/benchmarks.md.

A store that is not measured (`--only`) keeps what the last run said of it. With another `--output` the page stays.
"""

from __future__ import annotations

from bench import report
from bench.run import HERE, PARTS, Run, run

FULL = Run(
    "python -m bench.full",
    "Holdfast beside all of its peers, in rounds, with charts",
    rounds=5,
    parts=frozenset(PARTS),
    output=HERE / "results.json",
)

if __name__ == "__main__":
    if (results := run(FULL)) == FULL.output:
        report.write(results)
