"""On PostgreSQL: what the server could do at most."""

from __future__ import annotations

import time

from bench.measure import MOVED, SETTLED, Figures
from bench.postgres import Server

BATCH = 500
MOVES = 80
COMMITS = 100
COMMIT = "raw: one row, one commit, ms"

TABLES = "CREATE TABLE ready (id text PRIMARY KEY); CREATE TABLE leased (id text PRIMARY KEY)"
FILL = "INSERT INTO ready SELECT lpad(n::text, 26, '0') FROM generate_series(1, %s) AS n"
CLAIM = """
WITH taken AS MATERIALIZED (SELECT id FROM ready ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED),
     gone AS (DELETE FROM ready USING taken WHERE ready.id = taken.id RETURNING ready.id)
INSERT INTO leased SELECT id FROM gone RETURNING id
"""
ACKNOWLEDGE = "DELETE FROM leased WHERE id = ANY(%s)"


def raw(figures: Figures, server: Server) -> None:
    """Statements that only move ids between two tables, 500 at a time, on one connection: no jobs, no rules."""
    server.empty()
    server.client.execute(TABLES)
    for measure, settle in ((MOVED, False), (SETTLED, True)):
        server.client.execute("TRUNCATE ready, leased")
        server.client.execute(FILL, (BATCH * MOVES,))
        server.client.execute("ANALYZE ready")
        began = time.perf_counter()
        for _ in range(MOVES):
            ids = [row[0] for row in server.client.execute(CLAIM, (BATCH,), prepare=True)]
            if settle:
                server.client.execute(ACKNOWLEDGE, (ids,), prepare=True)
        figures.add(measure, "PostgreSQL", BATCH * MOVES / (time.perf_counter() - began))
    # What a change alone waits for at least: a request and its response make three of them.
    for n in range(COMMITS):
        began = time.perf_counter()
        server.client.execute("INSERT INTO leased VALUES (%s)", (f"commit {n}",), prepare=True)
        figures.add(COMMIT, "PostgreSQL", (time.perf_counter() - began) * 1000)
