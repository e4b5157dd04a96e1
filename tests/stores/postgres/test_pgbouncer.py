"""Behind pgbouncer in transaction mode, with `listen=0`. Only where the program is installed."""

import asyncio
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import asyncpg
import psycopg
import pytest

from holdfast import Queue, Worker, current_job, job
from holdfast.core.errors import StoreError
from holdfast.testing.processes import HOST, free_port, rights_of, wait_until
from tests.stores.load import running
from tests.stores.postgres.support import claim, complete, fill, new, opened

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed here")

SETTINGS = """[databases]
* = host={host} port={server}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
"""


class Bouncer:
    """A pgbouncer before a server."""

    def __init__(self, server, directory: Path) -> None:
        self.port = free_port()
        user = "nobody" if os.geteuid() == 0 else None
        directory.chmod(0o755)
        file = directory / "pgbouncer.ini"
        # `auth_type = any` wants to be told who logs in at the server.
        settings = SETTINGS.format(host=HOST, server=server.port, port=self.port).replace("* = ", "* = user=postgres ")
        file.write_text(settings)
        command = [PROGRAM, "-q", str(file)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **rights_of(user)
        )
        wait_until(self._answers, "pgbouncer")

    def _answers(self) -> bool:
        async def ask() -> bool:
            try:
                connection = await asyncpg.connect(self.url("postgres"), statement_cache_size=0)
            except (OSError, asyncpg.PostgresError):
                return False
            await connection.close()
            return True

        return asyncio.run(ask())

    def url(self, database, **options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@{HOST}:{self.port}/{database}{'?' if query else ''}{query}"

    def close(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def bouncer(postgres):
    place = Path("/tmp") / f"holdfast-bouncer-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    bouncer = Bouncer(postgres, place)
    yield bouncer
    bouncer.close()
    shutil.rmtree(place)


async def test_the_store_works_through_it(bouncer, database):
    async with opened(bouncer.url(database, listen=0)) as store:
        await fill(store, 300)
        jobs = [job for _ in range(3) for job in await claim(store, 100)]
        assert len({job.id for job in jobs}) == 300
        await complete(store, jobs)
        assert [job.state for job in await store.get([jobs[0].key])] == ["completed"]


async def test_many_starters_at_once_make_one_schema(bouncer, database):
    """The lock is held by a transaction: a lock of a session would stay with whatever connection it was taken on."""

    async def start():
        async with opened(bouncer.url(database, listen=0)):
            pass

    await asyncio.gather(*(start() for _ in range(8)))


async def test_a_worker_hears_nothing_and_looks_by_itself(bouncer, database):
    @job(queue="mail")
    async def double(n: int) -> int:
        return 2 * n

    async with Queue(bouncer.url(database, listen=0), tenant="acme") as queue, running(Worker(queue, jobs=[double])):
        assert await queue.enqueue_and_wait(double.message(1), timeout=20) == 2
        async with Queue(bouncer.url(database, listen=0), tenant="acme") as other:
            assert await other.enqueue_and_wait(double.message(2), timeout=20) == 4


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_transaction_through_it_can_be_joined(bouncer, database, driver):
    async with opened(bouncer.url(database, listen=0)) as store:
        if driver == "asyncpg":
            connection = await asyncpg.connect(bouncer.url(database), statement_cache_size=0)
            async with connection.transaction():
                await store.enqueue([new("a")], connection=connection)
            await connection.close()
        else:
            connecting = psycopg.AsyncConnection.connect(bouncer.url(database), prepare_threshold=None)
            async with await connecting as connection:
                await store.enqueue([new("a")], connection=connection)
        assert [job.id for job in await claim(store, 10)] == ["a"]


async def test_a_job_can_be_completed_through_it(bouncer, database):
    @job(queue="mail")
    async def pay() -> str:
        connection = await asyncpg.connect(bouncer.url(database), statement_cache_size=0)
        async with connection.transaction():
            await current_job().complete_in(connection, "paid")
        await connection.close()
        return "not this"

    async with Queue(bouncer.url(database, listen=0), tenant="acme") as queue, running(Worker(queue, jobs=[pay])):
        assert await queue.enqueue_and_wait(pay.message(), timeout=20) == "paid"


async def test_the_doctor_sees_it(bouncer, database):
    async with opened(bouncer.url(database, listen=0)) as store:
        found = {finding.subject: finding for finding in await store.doctor()}
    assert (found["pooler"].level, "pooler answers" in found["pooler"].text) == ("ok", True)
    assert "ALTER ROLE" in found["timeouts"].cure


async def test_without_listen_0_it_is_told_what_to_add(bouncer, database):
    with pytest.raises(StoreError, match="listen=0"):
        async with opened(bouncer.url(database)):
            pass
