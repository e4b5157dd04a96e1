"""The PostgreSQL store: jobs in a schema of your own database, durable, beside your own data.

The parts:

    store                           the `Store` contract
    enqueueing, finishing, claims   the operations with fast functions
    changes, enqueue, unit_of_work  the slower path: lock, judge by `core`, write
    transactions                    how changes run: retries, blocked batches, hints after a commit
    lanes, turns, quotas            the cache of a process: lane numbers, turns, counts for quotas
    rows, log, usage, requests      rows and arguments, and the structs they stand for
    reads, log_reads, event_log     reading jobs and events
    upkeep                          expired leases, retention, trimming
    notifications, listener         hints by NOTIFY and LISTEN
    handoff                         direct hand-off to waiting workers
    connection, errors              the client, and what the driver's errors mean
    joining, pools, address         the caller's transaction, the caller's pool, the store URL
    schema, migrations/             the tables, and the hot paths as functions
    sql, statements/                every other statement, by name
    doctor                          what the server's settings mean for the jobs on it
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.kinds import store_kind
from holdfast.opening import StoreUrl

if TYPE_CHECKING:
    from asyncpg import Pool  # pyright: ignore[reportMissingTypeStubs]

    from holdfast.stores.postgres.store import PostgresStore


@store_kind(install="holdfast[postgres]", create_option="migrate", space_option="schema")
def open_postgres(url: StoreUrl) -> PostgresStore:
    """`postgresql://USER@HOST:5432/DATABASE`; see `address` for the options."""
    from holdfast.stores.postgres import address
    from holdfast.stores.postgres.store import PostgresStore

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
    """A store in the database of an asyncpg pool, for `Queue(store=...)`.

    Address and credentials are the pool's; the store makes its own connections. The options are those of the URL.
    """
    from holdfast.stores.postgres import address
    from holdfast.stores.postgres.pools import PoolClient, shown_place, where_of
    from holdfast.stores.postgres.store import PostgresStore

    where = where_of(pool)
    flags = {"migrate": migrate, "listen": listen, "notify": notify}
    options = {"schema": schema, "connections": str(connections)} | {name: str(int(on)) for name, on in flags.items()}
    found = address.read(StoreUrl("postgresql://", "postgresql", "//", options))
    # The arguments of the pool identify the data.
    found = replace(found, dsn=repr(where), shown=shown_place(where))
    return PostgresStore(found, partial(PoolClient, where=where))
