"""What `holdfast doctor postgresql://...` finds at real servers."""

import contextlib
import shutil
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path

import asyncpg
import pytest

from holdfast import StoreUnavailable
from holdfast.opening import make_store, parse_url
from holdfast.store import Reader
from holdfast.stores.postgres import doctor, schema, upkeep
from holdfast.stores.postgres.address import read
from holdfast.stores.postgres.connection import PostgresClient
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.processes import rights_of
from tests.eventually import eventually
from tests.stores.postgres.support import fill, opened

LEVELS = ("ok", "warn", "bad")


async def look(url, **options):
    """The findings by subject; of several the worst."""
    client = PostgresClient(read(parse_url(url)))
    try:
        found = await doctor.findings(client, **options)
    finally:
        await client.close()
    worst = {}
    for finding in sorted(found, key=lambda one: LEVELS.index(one.level)):
        worst[finding.subject] = finding
        assert finding.text
        assert bool(finding.cure) == (finding.level != "ok"), finding
    return worst


async def test_the_doctor_finds_nothing_wrong_with_a_healthy_server(durable):
    async with opened(durable.url()) as store:
        await fill(store, 10)
        found = await look(durable.url())
    subjects = (
        "store", "schema", "durability", "primary", "transactions", "timeouts", "connections", "pooler", "bloat",
        "size", "indexes", "partitions", "freezing", "clock",
    )  # fmt: skip
    assert {subject: finding.level for subject, finding in found.items()} == dict.fromkeys(subjects, "ok")
    assert found["store"].text.startswith("PostgreSQL 18")
    assert "7 are empty ahead" in found["partitions"].text


@pytest.mark.parametrize(
    "settings, level, says, durable",
    [
        ({}, "ok", "synchronous_commit on: flushed to the disk before it is acknowledged", True),
        ({"synchronous_commit": "local"}, "ok", "standbys are not waited for", True),
        ({"synchronous_commit": "remote_apply"}, "ok", "visible on synchronous standbys", True),
        ({"synchronous_commit": "off"}, "warn", "loses what was acknowledged in the last moments", False),
        ({"fsync": False}, "bad", "can lose every job", False),
        ({"full_page_writes": False}, "bad", "half-written pages", True),
    ],
)
async def test_durability_is_reported_as_configured(settings, level, says, durable):
    with PostgresServer(**settings) as server:
        finding = (await look(server.url()))["durability"]
        assert (finding.level, says in finding.text) == (level, True), finding
        async with opened(server.url()) as store:
            assert store.capabilities.survives_power_loss is durable


async def test_a_setting_of_our_role_counts(postgres, empty_database):
    postgres.sql("CREATE ROLE shop LOGIN SUPERUSER; ALTER ROLE shop SET synchronous_commit = off")
    try:
        url = postgres.url(empty_database).replace("postgres@", "shop@")
        async with opened(url) as store:
            assert not store.capabilities.survives_power_loss
        postgres.sql("ALTER ROLE shop SET statement_timeout = '500ms'")
        found = (await look(url))["timeouts"]
        assert (found.level, "500 ms" in found.text) == ("warn", True)
        assert 'ALTER ROLE "shop" SET statement_timeout = 0' in found.cure
        postgres.sql("ALTER ROLE shop SET default_transaction_read_only = on")
        assert (await look(url))["primary"].level == "bad"
    finally:
        postgres.sql("DROP OWNED BY shop CASCADE; DROP ROLE shop", empty_database)


async def test_a_role_without_the_right_to_look_gets_a_finding(postgres, empty_database):
    postgres.sql("CREATE ROLE plain LOGIN")
    other = await asyncpg.connect(postgres.url(empty_database))
    try:
        url = postgres.url(empty_database).replace("postgres@", "plain@")
        found = (await look(url))["transactions"]
        assert (found.level, found.cure) == ("warn", 'GRANT pg_monitor TO "plain"')
    finally:
        await other.close()
        postgres.sql("DROP ROLE plain")


async def test_an_open_transaction_is_found_with_its_pid(postgres, database, monkeypatch):
    monkeypatch.setattr(doctor, "LONG_S", 0)
    other = await asyncpg.connect(postgres.url(database), server_settings={"application_name": "report"})
    async with other.transaction():
        await other.fetchval("SELECT 1")
        found = (await look(postgres.url(database)))["transactions"]
    pid = other.get_server_pid()
    await other.close()
    assert (found.level, f"pid {pid}, postgres, report, idle in transaction" in found.text) == ("warn", True)
    assert f"pg_terminate_backend({pid})" in found.cure


async def test_a_prepared_transaction_is_found_with_its_name(monkeypatch):
    monkeypatch.setattr(doctor, "PREPARED_S", -1)
    with PostgresServer(durable=False, max_prepared_transactions=2) as server:
        server.sql("CREATE TABLE t (x int)")
        server.sql("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'left behind'")
        found = (await look(server.url()))["transactions"]
        assert (found.level, "'left behind'" in found.text) == ("warn", True)
        server.sql(found.cure.partition(": ")[2].partition(" or ")[0])
        assert (await look(server.url()))["transactions"].level == "ok"


async def test_dead_rows_are_noticed(postgres, database, monkeypatch):
    monkeypatch.setattr(doctor, "DEAD_WARN", 50)
    async with opened(postgres.url(database)) as store:
        await fill(store, 200)
        postgres.sql(
            "ALTER TABLE holdfast.jobs SET (autovacuum_enabled = off); DELETE FROM holdfast.jobs",
            database,
        )
        postgres.sql("SELECT pg_stat_force_next_flush()", database)
        found = await eventually(
            lambda: look(postgres.url(database)), lambda found: found["bloat"].level == "warn", every_s=0.2
        )
        assert "200 dead rows, vacuumed never" in found["bloat"].text
        postgres.sql(found["bloat"].cure.partition(", then ")[2], database)


async def test_an_invalid_index_is_bad_and_its_cure_works(postgres, database):
    async with opened(postgres.url(database)):
        spoil = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'holdfast.done_dead'::regclass"
        postgres.sql(spoil, database)
        found = (await look(postgres.url(database)))["indexes"]
        assert (found.level, "done_dead is not valid" in found.text) == ("bad", True)
        postgres.sql(found.cure, database)
        assert (await look(postgres.url(database)))["indexes"].level == "ok"


async def test_a_log_that_is_never_trimmed_is_noticed(postgres, database, monkeypatch):
    async with opened(postgres.url(database)) as store:
        await fill(store, 10)
        monkeypatch.setattr(doctor, "LARGE_PARTITION", 8192)
        found = (await look(postgres.url(database)))["partitions"]
    assert (found.level, "7 are empty ahead: it has 0.0 MiB, and no process trims" in found.text) == ("warn", True)


async def test_a_log_without_a_free_partition_is_noticed(postgres, database, monkeypatch):
    """A reader does not advance while events are added. When it is removed, the finding is ok again."""
    for module in (upkeep, doctor):
        monkeypatch.setattr(module, "PARTITION_BYTES", 20_000)  # One row is larger, with its indexes.
    async with opened(postgres.url(database, keep_events=0)) as store:
        await store.set_reader(Reader(None, "still", await store.last_offset()))
        for n in range(8):
            found = (await look(postgres.url(database)))["partitions"]
            assert (found.level, f"partition {n} of 8 is written to, {7 - n} are empty" in found.text) == ("ok", True)
            await fill(store, 1, start=n)
            await store.prune(100)
        found = (await look(postgres.url(database)))["partitions"]
        assert (found.level, "partition 7 of 8 is written to, 0 are empty" in found.text) == ("warn", True)
        await store.drop_reader(None, "still")
        await store.prune(100)
        found = (await look(postgres.url(database)))["partitions"]
        assert (found.level, "partition 0 of 8 is written to, 6 are empty" in found.text) == ("ok", True)


@pytest.mark.parametrize("number, today, level", [(120022, 2024, "bad"), (140011, 2026, "ok"), (140011, 2027, "warn")])
def test_unsupported_server_versions_are_named(number, today, level):
    server = {"number": number, "version": f"{number // 10000}.1"}
    assert doctor._version(server, "holdfast", date(today, 1, 1)).level == level


async def test_a_clock_that_is_off_is_noticed(postgres, database):
    found = (await look(postgres.url(database), clock=lambda: time.time() + 60))["clock"]
    assert (found.level, "60.0 s behind" in found.text) == ("warn", True)


async def test_the_room_for_connections_is_checked(postgres, database):
    assert (await look(postgres.url(database, connections=1000)))["connections"].level == "warn"


async def test_listen_0_without_a_pooler_is_noticed(postgres, database):
    found = await look(postgres.url(database, listen=0))
    assert found["pooler"].level == "warn"
    assert "ALTER ROLE" in found["timeouts"].cure


async def test_an_old_or_missing_schema_is_found_and_not_changed(postgres, empty_database, monkeypatch):
    url = postgres.url(empty_database)
    assert (await look(f"{url}?migrate=0"))["schema"].level == "bad"
    assert (await look(url))["schema"].level == "warn"
    async with opened(url):
        pass
    step = (9998, "9998_next.sql", "SELECT 1")
    newer = [*schema.migrations(), step]
    monkeypatch.setattr(doctor, "migrations", lambda: newer)
    found = (await look(f"{url}?migrate=0"))["schema"]
    assert (found.level, "of 9998" in found.text, "migrate" in found.cure) == ("bad", True, True)


# Replicas -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def standby_of(primary, place, **settings):
    """A replica that follows the primary."""
    directory = place / "standby"
    directory.mkdir()
    rights = rights_of(primary._user)
    if primary._user is not None:
        shutil.chown(directory, primary._user)
    flags = ["-D", str(directory / "data"), "-d", primary.url(), "-R", "-c", "fast"]
    command = [str(primary._bin / "pg_basebackup"), *flags]
    subprocess.run(command, check=True, capture_output=True, cwd=directory, **rights)
    # What pg_basebackup wrote there goes when the server writes its own settings.
    signs = f"{primary.url()}?application_name=standby"
    with PostgresServer(directory=directory, durable=False, primary_conninfo=signs, **settings) as server:
        yield server


@pytest.fixture
def pair():
    """A primary and a replica of it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-pair-") as place, PostgresServer(durable=False) as primary:
        Path(place).chmod(0o755)
        with standby_of(primary, Path(place)) as standby:
            yield primary, standby


async def test_no_decision_is_based_on_a_replica(pair):
    """The store does not open there; the doctor does, and says so."""
    primary, standby = pair
    async with opened(primary.url()) as store:
        await fill(store, 1)
    await eventually(lambda: standby.sql("SELECT to_regclass('holdfast.jobs')"), lambda rows: rows[0][0])
    with pytest.raises(StoreUnavailable, match=r"is a replica.*connect to its primary"):
        await make_store(standby.url()).open()
    found = await look(standby.url())
    assert (found["primary"].level, "replica" in found["primary"].text) == ("bad", True)
    assert found["schema"].level == "ok"
    standby.sql("SELECT pg_promote()")
    async with opened(standby.url()) as store:
        assert len(await store.tenants()) == 1


async def test_replication_is_reported_as_configured(pair):
    primary, standby = pair
    found = await eventually(lambda: look(primary.url()), lambda found: "replication" in found, every_s=0.1)
    assert (found["replication"].level, "asynchronous" in found["replication"].text) == ("ok", True)
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
    primary.sql("SELECT pg_reload_conf()")
    found = await eventually(
        lambda: look(primary.url()), lambda found: "synchronous: standby" in found["replication"].text, every_s=0.1
    )
    standby.stop()
    found = await eventually(
        lambda: look(primary.url()), lambda found: found["replication"].level == "bad", every_s=0.1
    )
    assert "every commit waits" in found["replication"].text


async def test_an_unused_replication_slot_is_noticed():
    with PostgresServer(durable=False) as server:
        server.sql("SELECT pg_create_physical_replication_slot('forgotten', true)")
        found = (await look(server.url()))["replication"]
        assert (found.level, "'forgotten'" in found.text) == ("warn", True)
        server.sql(found.cure.partition(", or ")[2])
        assert "replication" not in await look(server.url())
