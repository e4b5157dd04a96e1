"""`python -m bench.quick`: in about two minutes, one round beside the strongest of the peers. All: `bench.full`."""

from __future__ import annotations

from bench.run import HERE, Run, run

QUICK = Run(
    "python -m bench.quick",
    "Holdfast beside the strongest of its peers, once",
    rounds=1,
    parts=frozenset({"ours", "peers", "huey", "starts"}),
    output=HERE / "out" / "results-quick.json",
    peers=("dramatiq", "huey", "bullmq", "pgqueuer", "graphile"),
    on_all_cores=("dramatiq",),
)

if __name__ == "__main__":
    run(QUICK)
