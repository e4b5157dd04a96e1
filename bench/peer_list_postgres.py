"""The peers on PostgreSQL, each with the settings that showed it at its best here."""

from __future__ import annotations

import psycopg

from bench.peer import Peer


def _jobs_in(table: str, *conditions: str):
    """Jobs that are not finished. Whether any is left is asked often, and must cost little: condition by condition."""
    parts = [f"{table} WHERE {condition}" for condition in conditions] or [table]

    def left(client: psycopg.Connection) -> int:
        return sum(client.execute(f"SELECT count(*) FROM {part}").fetchone()[0] for part in parts)

    def is_empty(client: psycopg.Connection) -> bool:
        return all(client.execute(f"SELECT NOT EXISTS (SELECT FROM {part})").fetchone()[0] for part in parts)

    return {"left": left, "is_empty": is_empty, "has_tables": True}


_PGQ = ("python", "pgqueuer_app.py")

PGQUEUER = Peer(
    "PgQueuer",
    "pgqueuer",
    ("driver.py", "pgqueuer_app"),
    (*_PGQ, "1000"),
    settings="asyncpg pool of 10, uvloop, batches of 1,000; where it is waited for: of 1, a watcher without debounce",
    lacks="results (answered: the job has ended) and no tokens; a log of its jobs is kept",
    jobs=20_000,
    singles=300,
    together=500,
    idle_worker=(*_PGQ, "1"),
    **_jobs_in("pgqueuer"),
)
PROCRASTINATE = Peer(
    "Procrastinate",
    "procrastinate",
    ("driver.py", "procrastinate_app"),
    (
        "procrastinate",
        "--log-level",
        "error",
        "--app",
        "procrastinate_app.app",
        "worker",
        "--concurrency",
        "20",
        "--delete-jobs",
        "always",
    ),
    settings="psycopg with its C part, pool of 20, concurrency 20, finished jobs deleted at once",
    lacks="results, no notification of a job's end, and no events once it is deleted",
    jobs=500,
    singles=100,
    together=100,
    **_jobs_in("procrastinate_jobs"),
)
GRAPHILE = Peer(
    "graphile-worker",
    "graphile",
    ("graphile_driver.cjs",),
    ("node", "graphile_worker.cjs"),
    settings="concurrentJobs 24, maxPoolSize 25, localQueue.size 2000, completeJobBatchDelay 0, addJobs of 1,000",
    lacks="results, no notification of a job's end, no events and no tokens",
    jobs=30_000,
    singles=500,
    together=1_000,
    crowded={"BENCH_CONCURRENCY": "10", "BENCH_LOCAL_QUEUE": "0"},
    **_jobs_in("graphile_worker._private_jobs"),
)
PGBOSS = Peer(
    "pg-boss",
    "pgboss",
    ("pgboss_driver.cjs",),
    ("node", "pgboss_worker.cjs"),
    settings="batchSize 1000 (one call of the handler for a batch), localConcurrency 2, burstWhenBatchFull, notify on, "
    "polling every 0.5 s, insert of 1,000",
    lacks="notice that a job has ended, no results of single jobs in a batch, no tokens and no events",
    jobs=10_000,
    singles=500,
    together=1_000,
    recovers=True,
    # The first of these has an index of pg-boss's own.
    **_jobs_in("pgboss.job", "name = 'noop' AND NOT blocked AND state < 'active'", "state = 'active'"),
)
PYTHON = (PGQUEUER, PROCRASTINATE)
NODE = (GRAPHILE, PGBOSS)
PEERS = (*PYTHON, *NODE)
