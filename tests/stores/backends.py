"""What differs between the servers that tests of stores run on, one class for each kind of server."""

import asyncpg

from holdfast.stores.redis.scripts import SCRIPTS
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.servers import ValkeyServer
from tests.stores import load
from tests.stores.postgres import support

LISTENING_WORKERS = """
pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE datname = current_database() AND locktype = 'advisory' AND mode = 'ExclusiveLock' AND objsubid = 1
"""


class ValkeyBackend:
    judge = staticmethod(load.judge)
    """One shard has one order of events for all its jobs."""
    new_server = ValkeyServer

    def __init__(self, server: ValkeyServer, prefix: str) -> None:
        self.server, self.prefix = server, prefix

    def load_scripts(self) -> None:
        """Load all scripts, so that the first reply of a call is never that the server does not know one."""
        for script in SCRIPTS.values():
            self.server.command("SCRIPT", "LOAD", script.text)

    async def waiters(self) -> int:
        """How many workers are registered for jobs."""
        places = self.server.command("KEYS", f"{self.prefix}:*:o:*")
        return len({channel for place in places for channel in self.server.command("HKEYS", place)})

    async def inboxes(self) -> int:
        """How many workers can be sent jobs."""
        return len(self.server.command("PUBSUB", "CHANNELS", f"{self.prefix}:inbox:*"))

    async def hang_up(self) -> int:
        """Cut the connections that workers are sent jobs on, at the server's end; how many there were."""
        return self.server.command("CLIENT", "KILL", "TYPE", "pubsub")

    def listens(self, what: str) -> bool:
        """Whether a store listens for this."""
        return self.server.command("PUBSUB", "NUMSUB", f"{self.prefix}:{what}")[1] >= 1

    def similar_urls(self) -> list[str]:
        """Places on the server whose names are alike."""
        names = (f"{self.prefix}{more}" for more in ("", "x", "-0", ".c"))
        return [self.server.url(prefix=name, test_clock=1) for name in names]

    @staticmethod
    async def enqueue(store, item):
        """Enqueue one item; another enqueue of the same id is never in the way."""
        return await store.enqueue([item])


class PostgresBackend:
    judge = staticmethod(support.judge)
    """The order of events holds for each job."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server, self.database = server, database

    @staticmethod
    def new_server() -> PostgresServer:
        return PostgresServer(durable=False)

    def load_scripts(self) -> None:
        """Statements need no loading."""

    async def ask(self, sql: str):
        connection = await asyncpg.connect(self.server.url(self.database))
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    async def waiters(self) -> int:
        """How many workers are registered for jobs."""
        return await self.ask("SELECT count(*) FROM holdfast.waiters WHERE expires_at > 0")

    async def inboxes(self) -> int:
        """How many workers can be sent jobs."""
        return await self.ask(f"SELECT count(*) FROM {LISTENING_WORKERS}")

    async def hang_up(self) -> int:
        """Cut the connections that workers are sent jobs on, at the server's end; how many there were."""
        pids = f"(SELECT DISTINCT pid FROM {LISTENING_WORKERS}) x"
        return await self.ask(f"SELECT count(pg_terminate_backend(pid)) FROM {pids}")

    def listens(self, _: str) -> bool:
        """Whether a store listens at all."""
        mine = f"datname = '{self.database}'"
        return bool(self.server.sql(f"SELECT 1 FROM pg_stat_activity WHERE {mine} AND query LIKE 'LISTEN%'"))

    def similar_urls(self) -> list[str]:
        """Places on the server whose names are alike."""
        names = ["a", "A", "a-b", "a_b", "1", "x" * 60, "x" * 59]
        return [self.server.url(self.database, schema=name, test_clock=1) for name in names]

    @staticmethod
    async def enqueue(store, item):
        """Enqueue one item; `StoreBusy` says that another enqueue of the same id is in the way: try again."""
        return await support.patiently(store, item)
