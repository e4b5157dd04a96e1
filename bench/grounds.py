"""The servers that Holdfast and its peers are measured on."""

from __future__ import annotations

from rich.table import Table

from bench import limits, limits_postgres, peer_list, peer_list_postgres, postgres, tables_peers, valkey
from bench.beside import Ground
from bench.measure import FINISHED, Figures


def _alone_on_valkey(figures: Figures) -> Table:
    more = (("bytes of a finished job, with its events", figures.median(FINISHED, "valkey"), "{:,.0f}"),)
    return tables_peers.alone(figures, "Valkey", "valkey", limits.BATCH, more)


def _alone_on_postgres(figures: Figures) -> Table:
    commit = figures.median(limits_postgres.COMMIT, "PostgreSQL")
    more = (("one row, one commit, ms", commit, "{:.2f}"),)
    return tables_peers.alone(figures, "PostgreSQL", "postgres", limits_postgres.BATCH, more)


VALKEY = Ground(
    "Valkey",
    "valkey",
    valkey.Server,
    "without persistence",
    {
        "best in Python": peer_list.PYTHON,
        "BullMQ": (peer_list.BULLMQ,),
        "platformatic": (peer_list.PLATFORMATIC,),
    },
    limits.raw,
    _alone_on_valkey,
)
POSTGRES = Ground(
    "PostgreSQL",
    "postgres",
    postgres.Server,
    "with fsync and synchronous_commit on",
    {
        "best in Python": peer_list_postgres.PYTHON,
        "graphile-worker": (peer_list_postgres.GRAPHILE,),
        "pg-boss": (peer_list_postgres.PGBOSS,),
    },
    limits_postgres.raw,
    _alone_on_postgres,
    prefetch=2000,
)
GROUNDS = {"valkey": VALKEY, "postgres": POSTGRES}
