"""A pool of asyncpg's that somebody has already: the address and the credentials are taken from it."""

from __future__ import annotations

from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from holdfast.core.errors import InvalidOption
from holdfast.stores.postgres.address import Address, shown
from holdfast.stores.postgres.connection import Client, Connection

# What says where the server is and who we are. Anything else is about the pool's own connections.
_WHERE = (
    "host", "port", "user", "password", "passfile", "database", "ssl", "direct_tls", "target_session_attrs",
    "krbsrvname", "gsslib", "service", "servicefile",
)  # fmt: skip


class PoolClient(Client):
    """A client with the address and the credentials of a pool, which is itself neither used nor closed.

    The connections are our own: they have settings that a pool's users would be surprised by, and a pool that is
    empty must not keep leases from being renewed. [LEASE-4]
    """

    def __init__(self, address: Address, where: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__(address)
        self._where = where

    async def _connect(self) -> Connection:
        args, named = self._where
        return await self._connect_to(*args, **named)


def where_of(pool: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How the pool connects. Raises InvalidOption for something else than a pool of asyncpg's."""
    if not isinstance(pool, asyncpg.Pool):
        kind = f"{type(cast('object', pool)).__module__}.{type(cast('object', pool)).__name__}"
        raise InvalidOption("pool", f"{kind} is no pool of asyncpg's; for others pass the URL of the store")
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
