"""A store from a caller's asyncpg pool: the address and the credentials come from the pool."""

from __future__ import annotations

from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from holdfast.core.errors import InvalidOption
from holdfast.stores.postgres.address import PostgresAddress, shown
from holdfast.stores.postgres.connection import Connection, PostgresClient

# The arguments with the address and the credentials. All others are about the pool's own connections.
_WHERE = (
    "host", "port", "user", "password", "passfile", "database", "ssl", "direct_tls", "target_session_attrs",
    "krbsrvname", "gsslib", "service", "servicefile",
)  # fmt: skip


class PoolClient(PostgresClient):
    """A client with the address and the credentials of a pool. The pool itself is neither used nor closed.

    The client makes its own connections: they have settings that would surprise other users of the pool, and a pool
    without free connections must not keep leases from being renewed. [LEASE-4]
    """

    def __init__(self, address: PostgresAddress, where: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__(address)
        self._where = where

    async def _connect(self) -> Connection:
        args, named = self._where
        return await self._connect_to(*args, **named)


def where_of(pool: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The connection arguments of the pool. Raises InvalidOption if it is not an asyncpg pool."""
    if not isinstance(pool, asyncpg.Pool):
        kind = f"{type(cast('object', pool)).__module__}.{type(cast('object', pool)).__name__}"
        raise InvalidOption("pool", f"{kind} is not an asyncpg pool; for other drivers pass the URL of the store")
    known: Any = pool
    args, named = known._connect_args, known._connect_kwargs  # noqa: SLF001 - it has no other way to tell
    return tuple(args[:1]), {name: value for name, value in named.items() if name in _WHERE and value is not None}


def shown_place(where: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
    """The server's address for people, without the password."""
    args, named = where
    if args and args[0]:
        return shown(str(args[0]))
    host, port = named.get("host") or "localhost", named.get("port") or 5432
    return f"postgresql://{host}:{port}/{named.get('database') or ''}"
