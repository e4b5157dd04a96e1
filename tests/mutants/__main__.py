"""Plant every bug in every store it applies to, and show which check caught it.

Exits with 1 if one survives, never ran or makes a script or statement break down, or if a store does not pass the suite
without any.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.mutants import Mutant, baseline, mutants, scratch, trial
from tests.mutants.planting import STORES


def main() -> int:
    """Run the selected trials, by default all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to try; all unless some are named")
    parser.add_argument("--store", action="append", choices=STORES, help="in this store only; can be repeated")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in mutants() if not arguments.names or mutant.name in arguments.names]
    unknown = set(arguments.names) - {mutant.name for mutant in chosen}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    stores = arguments.store or STORES
    started = time.perf_counter()
    with scratch() as url_of:
        good = [_try_store(store, url_of(store), fitting) for store in stores if (fitting := _fitting(store, chosen))]
    print(f"\n{time.perf_counter() - started:.1f} s")
    return 0 if all(good) else 1


def _fitting(store: str, chosen: list[Mutant]) -> list[Mutant]:
    return [mutant for mutant in chosen if store in mutant.stores]


def _try_store(store: str, url: str, fitting: list[Mutant]) -> bool:
    certificate = baseline(url)
    for row in certificate.broken:
        print(f"{store}: does not pass the suite as it is: {row.rule} {row.check}: {row.error}")
    # The checks that fail anyway prove nothing about a mutant.
    failing = {row.check for row in certificate.broken}
    width = max((len(mutant.name) for mutant in fitting), default=0)
    caught = 0
    for mutant in fitting:
        result = trial(mutant, store, url, failing)
        caught += result.held
        print(f"{mutant.name:{width}}  {store:8}  {result.seconds:5.2f} s  {result.verdict}", flush=True)
        if not result.held:
            print(f"{'':{width}}  {mutant.sentence}")
    print(f"{store}: {caught} of {len(fitting)} caught, {len(certificate.rows)} checks")
    return certificate.held and caught == len(fitting)


if __name__ == "__main__":
    sys.exit(main())
