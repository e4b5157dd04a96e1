"""The PostgreSQL store: jobs in a schema of your own database, durable, beside your own data.

The parts:

    address     a store URL, taken apart
    link, trouble, joining      connections, what errors mean, the caller's own transaction
    schema, migrations/         the tables, and the hot paths as functions next to the data
    sql, queries.sql            every other statement, by name
    lanes, turns                what a process knows of lanes, and whose turn it is
    rows, log                   rows and the structs they stand for
    unit, changes, enqueue, claims, quotas, upkeep, reads       the operations
    ears        hints by NOTIFY
    doctor      what the server's settings mean for the jobs on it
    store       the `Store` face
"""

from __future__ import annotations

from holdfast.store import StoreUrl
from holdfast.stores.postgres import address
from holdfast.stores.postgres.store import PostgresStore


def open_postgres(url: StoreUrl) -> PostgresStore:
    """`postgresql://USER@HOST:5432/DATABASE`; see `address` for what can be written."""
    return PostgresStore(address.read(url))


__all__ = ["PostgresStore", "open_postgres"]
