"""The PostgreSQL store: jobs in a schema of your own database, durable, beside your own data.

The parts:

    address     a store URL, taken apart
    client, trouble, joining, pools       connections, what errors mean, the caller's own transaction, the caller's pool
    schema, migrations/         the tables, and the hot paths as functions next to the data
    sql, queries.sql            every other statement, by name
    lanes, turns                what a process knows of lanes, and whose turn it is
    rows, log                   rows and the structs they stand for
    unit, changes, enqueue, claims, quotas, upkeep, reads       the operations
    notifications, offers        hints by NOTIFY, and idle workers that are handed jobs
    doctor      what the server's settings mean for the jobs on it
    store       the `Store` face
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.opening import StoreUrl
from holdfast.stores.postgres import address
from holdfast.stores.postgres.pools import PoolClient, shown_place, where_of
from holdfast.stores.postgres.store import PostgresStore

if TYPE_CHECKING:
    from asyncpg import Pool  # pyright: ignore[reportMissingTypeStubs]


def open_postgres(url: StoreUrl) -> PostgresStore:
    """`postgresql://USER@HOST:5432/DATABASE`; see `address` for what can be written."""
    return PostgresStore(address.read(url))


def from_pool(
    pool: Pool,
    *,
    schema: str = "holdfast",
    migrate: bool = True,
    listen: bool = True,
    notify: bool = True,
    connections: int = 10,
) -> PostgresStore:
    """A store in the database that a pool of asyncpg's is connected to, for `Queue(store=...)`.

    Address and credentials are the pool's, the connections are our own. The options are those of the URL.
    """
    where = where_of(pool)
    flags = {"migrate": migrate, "listen": listen, "notify": notify}
    options = {"schema": schema, "connections": str(connections)} | {name: str(int(on)) for name, on in flags.items()}
    found = address.read(StoreUrl("postgresql://", "postgresql", "//", options))
    # What tells this place from others is how the pool gets there.
    found = replace(found, dsn=repr(where), shown=shown_place(where))
    return PostgresStore(found, partial(PoolClient, where=where))


__all__ = ["PostgresStore", "from_pool", "open_postgres"]
