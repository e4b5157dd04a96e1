"""Opening: migrations as an operator runs them, a pool that is there already, a replica."""

import asyncio
import json
import sys

import asyncpg
import pytest

from holdfast import InvalidOption, Queue, StoreBusy, StoreMismatch, job
from holdfast.cli import main
from holdfast.opening import make_store, open_store
from holdfast.stores.postgres import from_pool, schema
from holdfast.stores.postgres.sql import migrations
from holdfast.testing.conformance import all_checks, certificate
from tests.stores.postgres.support import claim, fill, new, opened

NAMES = [name for _, name, _ in migrations()]


@pytest.fixture
def database(empty_database):
    return empty_database


async def run(*args):
    """Run the command as a process: exit code, output, complaints."""
    command = [sys.executable, "-m", "holdfast", *args]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_says_what_it_did(postgres, database):
    url = postgres.url(database)
    assert await run("migrate", url) == (0, "".join(f"applied {name}\n" for name in NAMES), "")
    again = "Nothing to migrate: the schema is up to date.\n"
    assert await run("migrate", url) == (0, again, "")
    code, out, _ = await run("migrate", url, "--json")
    assert (code, json.loads(out)["steps"]) == (0, [])
    async with opened(postgres.url(database, migrate=0)) as store:
        await fill(store, 1)


async def test_several_commands_at_once_take_each_step_once(postgres, database):
    answers = await asyncio.gather(*(run("migrate", postgres.url(database)) for _ in range(4)))
    assert {code for code, _, _ in answers} == {0}
    said = [line for _, out, _ in answers for line in out.splitlines() if line.startswith("applied")]
    assert sorted(said) == sorted(f"applied {name}" for name in NAMES)


async def test_in_production_opening_a_store_does_not_migrate_it(postgres, database):
    store = make_store(postgres.url(database, migrate=0))
    with pytest.raises(StoreMismatch, match="is not there; run `holdfast migrate URL`"):
        await store.open()
    assert postgres.sql("SELECT FROM pg_namespace WHERE nspname = 'holdfast'", database) == []


async def test_commands_of_an_operator_create_no_schema(postgres, database):
    """A mistyped database is no empty queue."""
    code, _, err = await run("stats", "--store", postgres.url(database), "--tenant", "acme")
    assert (code, "migrate" in err) == (1, True)
    code, _, _ = await run("doctor", postgres.url(database))
    assert code == 1
    assert postgres.sql("SELECT FROM pg_namespace WHERE nspname = 'holdfast'", database) == []


async def test_a_newer_schema_is_refused_by_the_command_too(postgres, database):
    url = postgres.url(database)
    await run("migrate", url)
    postgres.sql("INSERT INTO holdfast.migrations VALUES (9999, 'from the future')", database)
    code, out, err = await run("migrate", url)
    assert (code, out) == (1, "")
    assert "newer than this Holdfast" in err
    assert "upgrade Holdfast here first" in err


async def test_the_process_that_blocks_a_migration_is_named(postgres, database, monkeypatch):
    monkeypatch.setattr(schema, "WAIT_MS", 100)
    other = await asyncpg.connect(postgres.url(database), server_settings={"application_name": "another starter"})
    async with other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", schema.LOCK, "holdfast")
        with pytest.raises(StoreBusy, match=f"another migration.*pid {other.get_server_pid()} \\(another starter\\)"):
            await make_store(postgres.url(database)).migrate()
    await other.close()
    assert await make_store(postgres.url(database)).migrate() == len(NAMES)


async def test_a_migration_does_not_wait_long_for_a_table_in_use_and_changes_nothing(postgres, database, monkeypatch):
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
    monkeypatch.setattr(schema, "STEP_WAIT_MS", 100)
    step = (9998, "9998_next.sql", "CREATE TABLE {s}.half (x int); ALTER TABLE {s}.jobs ADD COLUMN x int;")
    monkeypatch.setattr(schema, "migrations", lambda: [*migrations(), step])
    other = await asyncpg.connect(postgres.url(database))
    async with other.transaction():
        await other.fetch("SELECT * FROM holdfast.jobs")
        with pytest.raises(StoreBusy, match=f"in use \\(pid {other.get_server_pid()}\\).*pg_terminate_backend"):
            await make_store(postgres.url(database)).migrate()
    await other.close()
    assert postgres.sql("SELECT to_regclass('holdfast.half') IS NULL", database) == [["t"]]
    assert await make_store(postgres.url(database)).migrate() == 1


@pytest.mark.parametrize("url", ["memory:", "file:{}/data"])
async def test_other_stores_have_nothing_to_migrate(url, tmp_path):
    code, out, err = await run("migrate", url.format(tmp_path))
    assert (code, err) == (0, "")
    assert "Nothing to migrate" in out
    assert not (tmp_path / "data").exists()


async def test_the_exit_code_tells_usage_from_failure(postgres):
    assert (await run("migrate", postgres.url("nowhere")))[0] == 1
    assert (await run("migrate", postgres.url(bananas=1)))[0] == 2
    assert (await run("migrate"))[0] == 2


def test_the_conformance_command_provides_a_transaction_to_join(postgres, database, monkeypatch, capsys):
    """[ENQ-7]"""
    name = "an_enqueue_joins_the_callers_transaction_or_says_it_cannot"
    checks = [check for check in all_checks() if check.name == name]
    monkeypatch.setattr(certificate, "registered", lambda: checks)
    with pytest.raises(SystemExit) as end:
        main(["conformance", postgres.url(database)])
    assert not end.value.code, capsys.readouterr()
    assert "1 of 1 checks held" in capsys.readouterr().out


# A pool that is there already -----------------------------------------------------------------------------------


@job(queue="mail")
async def send() -> None: ...


async def test_a_store_can_use_a_given_pool(postgres, database):
    """By its address and credentials: the pool is neither used nor closed, and its transactions can be joined."""
    async with (
        asyncpg.create_pool(postgres.url(database), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        store = from_pool(pool, schema="shop")
        async with Queue(store=store, tenant="acme") as queue:
            async with connection.transaction():
                await queue.enqueue(send.message(), id="a", connection=connection)
            assert (await queue.get("a", queue="mail")).id == "a"
            sibling = await store.sibling()
            assert len(await claim(sibling, 10)) == 1
            await sibling.close()
        await store.close()
        assert await connection.fetchval("SELECT count(*) FROM shop.jobs") == 1


async def test_a_store_can_use_a_pool_made_of_parts(postgres, database):
    pool = asyncpg.create_pool(host="127.0.0.1", port=postgres.port, user="postgres", database=database, min_size=0)
    async with pool:
        store = from_pool(pool, migrate=False)
        with pytest.raises(StoreMismatch, match="migrate"):
            await store.open()
        await from_pool(pool).migrate()
        await store.open()
        await store.enqueue([new("a")])
        assert store.address.shown == f"postgresql://127.0.0.1:{postgres.port}/{database}"
        await store.close()


async def test_an_object_that_is_not_a_pool_is_refused():
    with pytest.raises(InvalidOption, match="is not an asyncpg pool"):
        from_pool(object())
    pool = asyncpg.create_pool("postgresql://acme:secret@db.example/shop?sslmode=require")
    with pytest.raises(InvalidOption, match="schema"):
        from_pool(pool, schema="pg_catalog")
    assert from_pool(pool).address.shown == "postgresql://acme@db.example/shop"


async def test_options_are_checked(postgres):
    for options in ({"notify": 2}, {"listen": "yes"}, {"connections": 1}, {"schema": "a b"}):
        with pytest.raises(InvalidOption):
            await open_store(postgres.url(**options))
