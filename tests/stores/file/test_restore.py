"""An older backup is restored in place, by SQLite's own means, while processes have the store open."""

import contextlib
import sqlite3

import pytest

from holdfast.core.errors import EventsTrimmed, JobNotFound, LeaseLost, StoreMismatch
from holdfast.core.job import Cancel, Finished, JobState, Purge, Queued
from holdfast.store import Reader
from tests.stores.file.support import complete, key, new, opened, wish


def copy(source, target):
    """Bring one database over another, page by page: `sqlite3 TARGET ".restore SOURCE"`."""
    with contextlib.closing(sqlite3.connect(source)) as of, contextlib.closing(sqlite3.connect(target)) as to:
        of.backup(to)


async def test_a_process_that_has_the_store_open_puts_no_jobs_into_another_tenants_queue(directory, tmp_path):
    async with opened(directory) as ours, opened(directory) as hers:
        await ours.enqueue([new("warm", queue="old")])
        copy(directory / "holdfast.db", tmp_path / "backup.db")
        await ours.enqueue([new("later", queue="salaries")])
        copy(tmp_path / "backup.db", directory / "holdfast.db")
        await hers.enqueue([new("hers", tenant="mallory", queue="hers")])
        assert await ours.enqueue([new("secret", queue="salaries")]) == [Queued("secret", JobState.READY)]
        (theirs,) = (await hers.claim(wish(tenant="mallory", queues=("hers",)))).jobs
        assert theirs.id == "hers"
        assert (await hers.claim(wish(tenant="mallory", queues=("hers", "salaries")))).jobs == []
        assert [job.id for job in (await ours.claim(wish(queues=("salaries",)))).jobs] == ["secret"]


async def test_a_lease_from_before_a_restore_completes_no_job_of_another_tenant(directory, tmp_path):
    """Another job may now have the number, the place and the token of this one."""
    async with opened(directory) as ours, opened(directory) as hers:
        copy(directory / "holdfast.db", tmp_path / "backup.db")
        for count in (1, 2):  # One alone and several go different ways.
            ids = [f"{count}-{n}" for n in range(count)]
            await ours.enqueue([new(id) for id in ids])
            held = (await ours.claim(wish())).jobs
            copy(tmp_path / "backup.db", directory / "holdfast.db")
            await hers.enqueue([new(id, tenant="mallory") for id in ids])
            theirs = (await hers.claim(wish(tenant="mallory"))).jobs
            # The same in all but the tenant: only what the statement compares keeps them apart.
            force(directory, held, theirs)
            answers = await ours.finish([complete(job) for job in held])
            assert [type(answer) for answer in answers] == [JobNotFound] * count
            found = await hers.get([key(id, tenant="mallory") for id in ids])
            assert [job.state for job in found] == [JobState.LEASED] * count
            copy(tmp_path / "backup.db", directory / "holdfast.db")


def force(directory, held, theirs):
    """Give jobs the numbers and tokens that other ones had: no clock would ever do that."""
    with contextlib.closing(sqlite3.connect(directory / "holdfast.db", isolation_level=None)) as db:
        for job, other in zip(held, theirs, strict=True):
            assert job.seq < other.seq
            db.execute("UPDATE jobs SET seq = ?, token = ? WHERE seq = ?", (job.seq, job.token, other.seq))


async def test_a_change_to_a_lost_life_does_not_affect_a_later_one(directory, tmp_path):
    async with opened(directory) as store, opened(directory) as other:
        copy(directory / "holdfast.db", tmp_path / "backup.db")
        await store.enqueue([new("a")])
        (lost,) = await store.get([key("a")])
        copy(tmp_path / "backup.db", directory / "holdfast.db")
        await other.enqueue([new("a")])
        (answer,) = await store.cancel([Cancel(key("a"), seq=lost.seq)])
        assert answer == "not_found"
        (found,) = await store.get([key("a")])
        assert found.state is JobState.READY
        (job,) = (await other.claim(wish())).jobs
        await other.finish([complete(job)])
        await store.purge([Purge(key("a"), seq=lost.seq)])
        (found,) = await store.get([key("a")])
        assert found.state is JobState.COMPLETED


async def test_no_token_is_granted_twice_and_a_stale_acknowledgement_is_refused(directory, tmp_path):
    async with opened(directory) as store, opened(directory) as other:
        await store.enqueue([new(f"j{n}") for n in range(20)])
        copy(directory / "holdfast.db", tmp_path / "backup.db")
        before = (await store.claim(wish(20))).jobs
        copy(tmp_path / "backup.db", directory / "holdfast.db")
        after = (await other.claim(wish(20, worker="other"))).jobs
        assert [job.id for job in after] == [job.id for job in before]
        assert not {job.token for job in before} & {job.token for job in after}
        answers = await store.finish([complete(job) for job in before])
        assert [type(answer) for answer in answers] == [LeaseLost] * 20
        answers = await other.finish([complete(job) for job in after])
        assert [type(answer) for answer in answers] == [Finished] * 20


@pytest.mark.parametrize("grown", [0, 1, 5])
async def test_a_reader_of_lost_events_gets_a_gap_whatever_the_length_of_the_log(directory, tmp_path, grown):
    """EVENT-2: the log has other events under the numbers that the reader has seen, or none yet, or more than those."""
    async with opened(directory) as store, opened(directory) as other:
        await store.enqueue([new("kept")])
        kept = await store.last_offset()
        copy(directory / "holdfast.db", tmp_path / "backup.db")
        await store.enqueue([new("lost-1"), new("lost-2")])
        seen = (await store.events(None, None, 10)).events
        log_range = (await store.split(kept, seen[-1].offset, 10))[0]
        copy(tmp_path / "backup.db", directory / "holdfast.db")
        for n in range(grown):
            await other.enqueue([new(f"new-{n}")])
        for offset in (seen[1].offset, seen[2].offset):
            with pytest.raises(EventsTrimmed) as gap:
                await store.events("acme", offset, 10)
            assert (gap.value.from_, gap.value.to) == (offset, "0")
            for refused in (
                store.set_reader(Reader(None, "audit", offset)),
                store.bounds(offset),
                store.bounds(kept, end=offset),
                store.split(kept, offset, 10),
                store.read(log_range, 10),
            ):
                with pytest.raises(EventsTrimmed):
                    await refused
        ids = ["kept", *(f"new-{n}" for n in range(grown))]
        assert [event.job_id for event in (await store.events(None, gap.value.to, 10)).events] == ids
        assert [event.job_id for event in (await store.events(None, kept, 10)).events] == ids[1:]
        assert await store.readers(None) == []


async def test_trimming_up_to_the_number_that_a_reader_has_seen_hides_no_gap(directory, tmp_path):
    async with opened(directory, "?keep_events=1") as store:
        copy(directory / "holdfast.db", tmp_path / "backup.db")
        await store.enqueue([new("lost")])
        seen = await store.last_offset()
        copy(tmp_path / "backup.db", directory / "holdfast.db")
        await store.enqueue([new("missed")])
        first = await store.last_offset()
        await store.enqueue([new("next")])
        await store.set_reader(Reader(None, "audit", first))
        assert (await store.prune(10)).events == 1
        with pytest.raises(EventsTrimmed) as gap:
            await store.events(None, seen, 10)
        assert (gap.value.from_, gap.value.to) == (seen, first)
        assert [event.job_id for event in (await store.events(None, first, 10)).events] == ["next"]
        assert await store.readers(None) == [Reader(None, "audit", first)]


@pytest.mark.parametrize("version", [1, 99])
async def test_a_process_that_has_the_store_open_does_not_read_a_backup_of_another_schema(directory, tmp_path, version):
    """Nor is it written to. After the right one is restored, the process continues."""
    async with opened(directory) as store:
        await store.enqueue([new("mine")])
        for name in ("right", "wrong"):
            copy(directory / "holdfast.db", tmp_path / name)
        with contextlib.closing(sqlite3.connect(tmp_path / "wrong", isolation_level=None)) as db:
            db.execute(f"PRAGMA user_version = {version}")
        await store.get([key("mine")])
        copy(tmp_path / "wrong", directory / "holdfast.db")
        for refused in (store.enqueue([new("lost")]), store.claim(wish()), store.get([key("mine")])):
            with pytest.raises(StoreMismatch, match=f"schema {version}"):
                await refused
        copy(tmp_path / "right", directory / "holdfast.db")
        assert [job.id for job in (await store.claim(wish())).jobs] == ["mine"]
