"""The client: a small pool of connections, statements by name, and Holdfast's errors instead of the driver's.

`repeat` says whether a statement may be sent again after a lost connection. A transaction that the server rolled back
because of a deadlock is always tried again. One connection of the pool is kept for renewals and heartbeats, so that a
worker whose other connections are all busy does not lose its leases. [LEASE-4]
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from holdfast.core import failpoint
from holdfast.core.errors import StoreBusy, StoreError, StoreMismatch, StoreUnavailable
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.errors import DRIVER_ERRORS, is_conflict, is_lost, is_stale, is_stale_lane, translate
from holdfast.stores.postgres.rows import Row
from holdfast.stores.postgres.sql import Statements, statements

A = TypeVar("A")
TRIES = 6
"""How often to try a change that conflicts with others."""
PAUSE_S = 0.05
LOCK_MS = 1500
"""How long a batch waits for an open transaction, before it is split to find the blocked job.

Longer than the server takes to notice a deadlock, which is tried again.
"""
PATIENT_LOCK_MS = 5000
"""How long a single change waits for a lock, even behind many others."""
IDLE_MS = 15_000
"""The server ends a transaction that is idle for this long: its process has frozen."""

# Every statement is planned once and uses indexes, whatever the statistics say. The hot functions set this themselves
# (see migrations/).
_SETTINGS = {
    "application_name": "holdfast", "lock_timeout": str(LOCK_MS), "idle_in_transaction_session_timeout": str(IDLE_MS),
    "default_transaction_isolation": "read committed", "jit": "off", "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
}  # fmt: skip

Connection = Any  # asyncpg's connection has no types.


class OnData(Protocol):
    """Receives the identity of a connection's data. `stale`: a statement has found cached facts to be wrong."""

    def __call__(self, data_id: str, *, stale: bool = False) -> None: ...


class PostgresSession(Protocol):
    """Runs named statements: on a connection of the pool, or on a caller's."""

    async def rows(self, name: str, *args: Any) -> list[Row]: ...
    async def value(self, name: str, *args: Any) -> Any: ...


class AsyncpgSession:
    """A connection of asyncpg. Runs named statements."""

    def __init__(self, connection: Connection, sql: Statements, timeout_s: float | None = None) -> None:
        self.connection = connection
        self._sql = sql
        self._timeout_s = timeout_s

    async def rows(self, name: str, *args: Any) -> list[Row]:
        return await self.connection.fetch(self._sql[name], *args, timeout=self._timeout_s)

    async def value(self, name: str, *args: Any) -> Any:
        return await self.connection.fetchval(self._sql[name], *args, timeout=self._timeout_s)

    async def execute(self, text: str) -> None:
        """Run this SQL."""
        await self.connection.execute(text, timeout=self._timeout_s)


class PostgresClient:
    """The connections of one handle, for one event loop. Connects when first used."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self.sql = statements(address.schema)
        self._idle: list[Connection] = []
        self._count = 0
        self._age = 0
        self._closed = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()
        self.on_data: OnData | None = None
        """Called for each new connection, and when a statement finds other data than before."""

    @property
    def shown(self) -> str:
        """The server's address for people."""
        return self.address.shown

    async def rows(self, name: str, *args: Any, repeat: bool = False, urgent: bool = False) -> list[Row]:
        """The rows of one statement, a transaction of its own. Raises StoreUnavailable or StoreBusy."""
        failpoint.hit("postgres.before_commit")
        found = await self._run(lambda session: session.rows(name, *args), repeat=repeat, urgent=urgent)
        failpoint.hit("postgres.after_commit")
        return found

    async def value(self, name: str, *args: Any, repeat: bool = False, urgent: bool = False) -> Any:
        """The first column of the first row of one statement."""
        failpoint.hit("postgres.before_commit")
        found = await self._run(lambda session: session.value(name, *args), repeat=repeat, urgent=urgent)
        failpoint.hit("postgres.after_commit")
        return found

    async def change(
        self,
        work: Callable[[PostgresSession], Awaitable[A]],
        *,
        repeat: bool = False,
        urgent: bool = False,
        lock_ms: int = PATIENT_LOCK_MS,
    ) -> A:
        """Do `work` in a transaction, and again from its beginning after a conflict."""

        async def whole(session: AsyncpgSession) -> A:
            await session.execute(f"BEGIN; SET LOCAL lock_timeout = {lock_ms}")
            try:
                answer = await work(session)
                failpoint.hit("postgres.before_commit")
                await session.execute("COMMIT")
            except asyncpg.PostgresError as error:
                if not is_lost(error):
                    await session.execute("ROLLBACK")
                raise
            failpoint.hit("postgres.after_commit")
            return answer

        return await self._run(whole, repeat=repeat, urgent=urgent)

    async def _run(self, work: Callable[[AsyncpgSession], Awaitable[A]], *, repeat: bool, urgent: bool) -> A:
        tries = 0
        while True:
            tries += 1
            try:
                return await self._once(work, urgent=urgent)
            except DRIVER_ERRORS as error:
                again = is_conflict(error) or (repeat and is_lost(error))
                if is_lost(error) or isinstance(error, TimeoutError):
                    self.drop_idle()
                if not again or tries >= TRIES or self._closed:
                    raise self._translated(error) from error
                pause_s = PAUSE_S * random.random() * min(tries, 3)  # noqa: S311 - no secret
            await asyncio.sleep(pause_s)

    async def _once(self, work: Callable[[AsyncpgSession], Awaitable[A]], *, urgent: bool) -> A:
        connection = await self._take(urgent=urgent)
        age = self._age
        try:
            try:
                answer = await work(AsyncpgSession(connection, self.sql, self.address.timeout_s))
            except asyncpg.PostgresError as error:
                if is_stale(error):
                    await self._check_data(connection, stale=is_stale_lane(error))
                raise
        except asyncpg.PostgresError as error:
            self._give(connection, keep=not is_lost(error) and not _in_transaction(connection), age=age)
            raise
        except BaseException:
            # Also when canceled: the state of the connection is unknown.
            self._give(connection, keep=False, age=age)
            raise
        self._give(connection, keep=True, age=age)
        return answer

    def _translated(self, error: BaseException) -> StoreError:
        found = translate(error, self.shown, self.address.timeout_s)
        if isinstance(found, StoreMismatch) and self.on_data is not None:
            # The schema existed when the store was opened.
            return StoreUnavailable(f"{found}, unless it is being restored: then try again")
        return found

    # The pool -------------------------------------------------------------------------------------------------

    async def connect(self) -> Connection:
        """A connection outside of the pool. The caller closes it."""
        connection = await self._connect()
        if self.on_data is not None:
            try:
                await self._check_data(connection)
            except BaseException as error:
                connection.terminate()
                if isinstance(error, DRIVER_ERRORS):
                    raise self._translated(error) from error
                raise
        return connection

    async def check_data(self) -> None:
        """Read the identity of the data, and pass it to `on_data`."""
        await self._run(lambda session: self._check_data(session.connection), repeat=True, urgent=False)

    async def _check_data(self, connection: Connection, *, stale: bool = False) -> None:
        """Read the identity of the data that this connection leads to. Begins a new generation if there is none."""
        data_id = await connection.fetchval(self.sql["data_id"], timeout=self.address.timeout_s)
        if data_id is None:
            raise StoreUnavailable(f"{self.shown} has no data, as while it is restored; try again")
        if data_id.endswith(" "):  # There is no generation. The cache of the primary's data must be kept.
            raise StoreUnavailable(f"{self.shown} is a replica, which takes no changes; connect to its primary")
        if self.on_data is not None:
            self.on_data(data_id, stale=stale)

    async def _connect(self) -> Connection:
        return await self._connect_to(self.address.dsn)

    async def _connect_to(self, *args: Any, **named: Any) -> Connection:
        # Behind pgbouncer neither prepared statements nor settings stay with a connection.
        pooled = not self.address.listen
        try:
            return await cast("Any", asyncpg).connect(
                *args,
                **named,
                timeout=self.address.connect_timeout_s,
                statement_cache_size=0 if pooled else 256,
                max_cached_statement_lifetime=0,
                server_settings={} if pooled else _SETTINGS,
            )
        except DRIVER_ERRORS as error:
            raise translate(error, self.shown, self.address.connect_timeout_s) from error

    async def _take(self, *, urgent: bool) -> Connection:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        end = asyncio.get_running_loop().time() + self.address.wait_s
        while True:
            while self._idle:
                if not urgent and self._busy >= self.address.connections - 1:
                    break
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._count -= 1
            if self._count < self.address.connections and (urgent or self._busy < self.address.connections - 1):
                self._count += 1
                try:
                    return await self.connect()
                except BaseException:
                    self._count -= 1
                    self._wake()
                    raise
            await self._wait(end, urgent=urgent)

    @property
    def _busy(self) -> int:
        return self._count - len(self._idle)

    async def _wait(self, end: float, *, urgent: bool) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (urgent, future)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout_at(end):
                await future
        except TimeoutError:
            count = self.address.connections
            reason = f"all {count} connections to {self.shown} were in use for {self.address.wait_s} s"
            raise StoreBusy(f"{reason}; raise `connections` in its URL") from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif future.done() and not future.cancelled() and self._idle:
                self._wake()
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _give(self, connection: Connection, *, keep: bool, age: int) -> None:
        if keep and age == self._age and not self._closed and not connection.is_closed():
            self._idle.append(connection)
        else:
            self._count -= 1
            connection.terminate()
        self._wake()

    def _wake(self) -> None:
        """Wake waiting calls, urgent ones first."""
        for entry in sorted(self._waiting, key=lambda entry: not entry[0])[:2]:
            self._waiting.remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)

    def drop_idle(self) -> None:
        """Close idle connections after one was found dead: others may be dead too."""
        self._age += 1
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        for connection in idle:
            connection.terminate()

    async def close(self) -> None:
        """Close every connection. Calls in flight fail. Calling it twice is harmless."""
        self._closed = True
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        for _, future in list(self._waiting):
            if not future.done():
                future.set_result(None)
        try:
            for connection in idle:
                with contextlib.suppress(*DRIVER_ERRORS):
                    await connection.close(timeout=2)
        finally:
            for connection in idle:
                connection.terminate()  # Only one that is still open: this call was canceled.


def _in_transaction(connection: Connection) -> bool:
    return connection.is_closed() or connection.is_in_transaction()
