"""The file's layout."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3

from holdfast.core import codes
from holdfast.core.job import JobState
from holdfast.stores.file import database, rows
from holdfast.stores.file.sql import SCHEMA
from tests.stores.file.support import Child, complete, key, look, new, opened, wish


async def test_a_new_database_has_the_application_id_and_the_schema_version(directory):
    async with opened(directory):
        pass
    assert look(directory, "PRAGMA application_id") == [(0x486F6C64,)]
    assert look(directory, "PRAGMA user_version") == [(database.SCHEMA_VERSION,)]
    assert look(directory, "PRAGMA page_size") == [(4096,)]
    assert look(directory, "PRAGMA journal_mode") == [("wal",)]


def test_a_change_of_the_schema_raises_its_version():
    """Code that expects other tables refuses a database of another version. Comments are not part of the tables."""
    tables = " ".join(re.sub(r"--[^\n]*", "", SCHEMA).split())
    assert (database.SCHEMA_VERSION, hashlib.sha256(tables.encode()).hexdigest()[:16]) == (6, "05e8ff5d366a30bf")


async def test_a_database_has_the_tables_of_the_schema(directory):
    async with opened(directory):
        pass
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(SCHEMA)
        wanted = fresh.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    assert look(directory, "SELECT type, name, sql FROM sqlite_master ORDER BY name") == wanted


async def test_a_database_of_another_process_of_this_version_opens_with_its_data(directory):
    with Child("die_at", directory=directory, point="file.before_commit", step="enqueue") as child:
        held = child.says()
        child.dies()
    for _ in range(2):  # First with the log of the dead process beside it, then without.
        async with opened(directory) as store:
            jobs = await store.get([key(f"before-{n}") for n in range(4)])
            assert [job.state for job in jobs] == ["leased", "leased", "ready", "ready"]
            assert {job.id: job.token for job in jobs[:2]} == held
    async with opened(directory) as store:
        job = (await store.claim(wish(1))).jobs[0]
        assert (await store.finish([complete(job)]))[0].state == "completed"
        await store.enqueue([new("more")])


def test_the_numbers_of_the_states_are_part_of_the_file():
    assert codes.STATE_CODES == {
        JobState.BLOCKED: 0, JobState.SCHEDULED: 1, JobState.READY: 2, JobState.RETRYING: 3,
        JobState.LEASED: 4, JobState.COMPLETED: 5, JobState.FAILED: 6, JobState.CANCELED: 7,
    }  # fmt: skip


def test_the_columns_of_a_job_are_those_of_its_table():
    table = SCHEMA.partition("CREATE TABLE jobs (")[2].partition("\n);")[0]
    columns = re.findall(r"^ +(\w+)", table, flags=re.MULTILINE)
    assert ", ".join(columns) == rows.JOB_COLUMNS
