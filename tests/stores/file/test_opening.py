"""Opening a directory: made where it is missing, refused where it is not ours, never half made."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from holdfast.core.errors import InvalidOption, StoreError, StoreMismatch, StoreUnavailable
from holdfast.opening import open_store
from holdfast.stores.file import database
from tests.stores.file.support import (
    Child,
    key,
    look,
    names_in,
    new,
    open_at,
    open_files,
    opened,
    quick_check,
    threads,
    wish,
)

# New directories -----------------------------------------------------------------------------------------------------


async def test_a_missing_directory_is_made_with_its_parents(tmp_path):
    async with opened(tmp_path / "a" / "b" / "c") as store:
        await store.enqueue([new("1")])
    assert quick_check(tmp_path / "a" / "b" / "c") == "ok"


async def test_a_relative_directory_and_an_absolute_url_are_the_same_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened("./here") as store:
        await store.enqueue([new("1")])
    async with opened(f"//{tmp_path}/here") as store:
        assert (await store.get([key("1")]))[0].id == "1"


async def test_opening_and_closing_twice_is_harmless(directory):
    store = await open_at(directory)
    await store.open()
    await store.enqueue([new("1")])
    await store.close()
    await store.close()
    await store.open()
    assert (await store.get([key("1")]))[0].id == "1"
    await store.close()


async def test_opening_at_the_same_time_opens_once(directory):
    store = await open_at(directory)
    await store.close()
    await asyncio.gather(*(store.open() for _ in range(5)))
    opened_by = threads()
    await store.close()
    assert opened_by == ["holdfast-file-writer"]
    assert threads() == []


async def test_a_store_that_is_not_open_says_so(directory):
    store = await open_at(directory)
    await store.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.enqueue([new("1")])
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.now()


async def test_an_empty_file_is_a_new_store(directory):
    directory.mkdir()
    (directory / "holdfast.db").touch()
    async with opened(directory) as store:
        await store.enqueue([new("1")])
    assert quick_check(directory) == "ok"


async def test_a_process_that_died_while_creating_leaves_nothing_in_the_way(directory):
    with Child("die_while_creating", directory=directory) as child:
        child.dies()
    assert (directory / "holdfast.new").exists()
    assert not (directory / "holdfast.db").exists()
    (directory / "holdfast.new-journal").write_bytes(b"half a journal")
    (directory / "holdfast.new").write_bytes(b"half a database")
    async with opened(directory) as store:
        await store.enqueue([new("1")])
    assert not list(directory.glob("holdfast.new*"))
    assert quick_check(directory) == "ok"


async def test_the_log_of_a_deleted_database_is_not_replayed_into_a_new_one(directory):
    with Child("die_at", directory=directory, point="file.after_commit", step="enqueue") as child:
        child.dies()
    assert (directory / "holdfast.db-wal").stat().st_size > 0
    (directory / "holdfast.db").unlink()
    async with opened(directory) as store:
        assert await store.get([key("before-0")]) == [None]
        await store.enqueue([new("1")])
    assert quick_check(directory) == "ok"


def test_many_processes_that_open_a_new_directory_at_once_share_it(directory):
    names = "abcd"
    children = [Child("open_and_close", directory=directory, name=name, times=15) for name in names]
    for child in children:
        assert child.says() == "ready"
    for child in children:
        child.go_on()
    for child in children:
        with child:
            assert child.says() == "done"
            child.ends()
    assert look(directory, "SELECT count(*) FROM jobs") == [(60,)]
    assert quick_check(directory) == "ok"


# What is not ours, or damaged ----------------------------------------------------------------------------------------


def _foreign(path):
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA application_id = 7")
        db.execute("CREATE TABLE precious (data)")
    db.close()


def _foreign_without_id(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE precious (data)")
    db.close()


def _foreign_wal(path):
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE precious (data)")
    db.close()


def _text(path):
    path.write_text("Dear diary, " * 100)


def _short_text(path):
    path.write_text("todo")


def _a_header_alone(path):
    database.prepare(path.parent, frozen_at=None)
    path.write_bytes(path.read_bytes()[:100])


def _truncated(path):
    database.prepare(path.parent, frozen_at=None)
    path.write_bytes(path.read_bytes()[:-4096])


def _newer(path):
    database.prepare(path.parent, frozen_at=None)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {database.SCHEMA_VERSION + 1}")
    db.close()


def _older(path):
    database.prepare(path.parent, frozen_at=None)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {database.SCHEMA_VERSION - 1}")
    db.close()


@pytest.mark.parametrize(
    "make, message",
    [
        (_foreign, "another program"),
        (_foreign_without_id, "another program"),
        (_foreign_wal, "another program"),
        (_text, "not a SQLite file"),
        (_short_text, "not a SQLite file"),
        (_a_header_alone, "shorter than its header"),
        (_truncated, "shorter than its header"),
        (_newer, "newer Holdfast"),
        (_older, "earlier Holdfast.*use a new directory"),
    ],
)
async def test_a_foreign_file_is_refused_and_left_unchanged(directory, make, message):
    directory.mkdir()
    path = directory / "holdfast.db"
    make(path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(StoreMismatch, match=message) as caught:
        await open_at(directory)
    assert str(path) in str(caught.value)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert names_in(directory) == ["holdfast.db", "lock"]


async def test_a_newer_schema_that_is_still_in_the_log_is_refused(directory):
    async with opened(directory) as store:
        await store.enqueue([new("1")])
        # Another program of a later version has changed it and not moved the change into the file yet.
        db = sqlite3.connect(directory / "holdfast.db")
        db.execute(f"PRAGMA user_version = {database.SCHEMA_VERSION + 1}")
        db.close()
        with pytest.raises(StoreMismatch, match="newer Holdfast"):
            await open_at(directory)


async def test_a_file_that_its_log_completes_does_not_count_as_damaged(directory):
    # A process that dies while it moves the log into the file leaves a new header before the pages that it counts.
    path, log = directory / "holdfast.db", directory / "holdfast.db-wal"
    async with opened(directory) as store:
        await store.enqueue([new(f"{n}", b"x" * 1000) for n in range(100)])
        shutil.copy(path, directory / "small")
        shutil.copy(log, directory / "log")
    grown, small = path.read_bytes(), (directory / "small").read_bytes()  # Closing has moved the log into the file.
    assert len(small) < len(grown)
    path.write_bytes(grown[:4096] + small[4096:])
    shutil.copy(directory / "log", log)
    async with opened(directory) as store:
        assert all(await store.get([key(f"{n}") for n in range(100)]))
    assert quick_check(directory) == "ok"


def _garble(directory, which):
    """Fill the root pages of the tables and indexes for which this holds with noise; the file as it is then."""
    path = directory / "holdfast.db"
    damaged = bytearray(path.read_bytes())
    for (page,) in look(directory, f"SELECT rootpage FROM sqlite_master WHERE rootpage > 1 AND {which}"):
        damaged[(page - 1) * 4096 : page * 4096] = random.Random(page).randbytes(4096)
    path.write_bytes(damaged)
    return damaged


async def test_a_damaged_header_is_refused_at_opening(directory):
    path = await _filled(directory)
    damaged = _garble(directory, "name = 'counters'")
    with pytest.raises(StoreMismatch, match="damaged"):
        await open_at(directory)
    assert path.read_bytes() == damaged
    assert threads() == []
    assert open_files(directory) == []


async def test_a_damaged_page_raises_mismatch_and_acknowledges_nothing(directory):
    path = await _filled(directory)
    damaged = _garble(directory, "name != 'counters'")
    async with opened(directory) as store:
        for call in (
            store.enqueue([new("a")]), store.enqueue([new("b")]), store.get([key("1")]), store.claim(wish()),
            store.stats("acme"), store.events(None, None, 10), store.prune(10),
        ):  # fmt: skip
            with pytest.raises(StoreMismatch, match="damaged"):
                await call
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("seed", range(12))
async def test_damaged_pages_raise_mismatch_or_are_found_by_the_doctor(directory, seed):
    path = await _filled(directory)
    rng = random.Random(seed)
    data = bytearray(path.read_bytes())
    for page in rng.sample(range(1, len(data) // 4096), 3):
        data[page * 4096 : page * 4096 + 4096] = rng.randbytes(4096)
    path.write_bytes(data)
    errors = []
    try:
        async with opened(directory) as store:
            errors += await _use(store)
            errors += [finding for finding in await store.doctor() if finding.level == "bad"]
    except StoreMismatch as error:
        errors.append(error)
    assert errors
    assert not [error for error in errors if isinstance(error, StoreError) and not isinstance(error, StoreMismatch)]


async def _use(store):
    errors = []
    for n in range(30):
        for call in (
            store.enqueue([new(f"new-{n}")]), store.claim(wish(5)), store.get([key(f"{n}"), key(f"new-{n}")]),
            store.stats("acme"), store.events(None, None, 50), store.reap(10, 0.0),
        ):  # fmt: skip
            try:
                await call
            except StoreError as error:
                errors.append(error)
    return errors


async def test_an_unreadable_row_counts_as_damage(directory):
    async with opened(directory) as store:
        await store.enqueue([new("a"), new("b")])
        db = sqlite3.connect(directory / "holdfast.db")
        db.execute("UPDATE jobs SET head = x'c1' WHERE id = 'a'")
        db.commit()
        db.close()
        with pytest.raises(StoreMismatch, match="damaged"):
            await store.get([key("a")])
        with pytest.raises(StoreMismatch, match="damaged"):
            await store.claim(wish())
        assert (await store.get([key("b")]))[0].state == "ready"


async def test_a_failed_opening_leaves_no_descriptor_and_no_thread_behind(directory):
    path = await _filled(directory)
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(3996) + data[4096:])
    with pytest.raises(StoreMismatch):
        await open_at(directory)
    assert open_files(directory) == []
    assert threads() == []


async def _filled(directory):
    async with opened(directory) as store:
        await store.enqueue([new(f"{n}", b"x" * 300, priority=n % 10) for n in range(200)])
        await store.claim(wish(20))
    return directory / "holdfast.db"


# Places that cannot be used ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below"])
async def test_a_directory_that_is_a_file_or_below_one_is_unavailable(tmp_path, place):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreUnavailable, match="cannot create"):
        await open_at(tmp_path / place)
    assert (tmp_path / "file").read_text() == "not a directory"


def test_a_directory_without_the_right_to_write_is_unavailable(tmp_path):
    # Deep in a private directory of the test runner another user could not even look: make a way.
    place = tmp_path / "readable"
    place.mkdir(mode=0o555)
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(parent.stat().st_mode | 0o111)
    with Child("open_as_other_user", directory=place) as child:
        code, text = child.says()
    assert code == "store_unavailable"
    assert str(place) in text


async def test_a_lock_that_cannot_be_opened_is_unavailable(directory):
    (directory / "lock").mkdir(parents=True)
    with pytest.raises(StoreUnavailable, match="lock"):
        await open_at(directory)


def test_a_process_without_free_descriptors_can_read_again_when_it_has_some(directory):
    with Child("read_without_descriptors", directory=directory) as child:
        assert child.says()[0] == "store_unavailable"
        assert child.says()[0] == "ok"
        child.ends()


MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/export {home} {kind} rw,vers=4.2 0 0
/dev/sdb1 {home}/local\\040disk xfs rw 0 0
"""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "fuse.mergerfs", "vfat", "of-tomorrow"])
async def test_an_unknown_file_system_is_refused_unless_an_option_allows_it(tmp_path, monkeypatch, kind):
    _mount(monkeypatch, MOUNTS.format(home=tmp_path, kind=kind))
    with pytest.raises(StoreMismatch, match=rf"on a file system \({kind}\) .* add \?unsafe_fs=1 to the URL"):
        await open_at(tmp_path / "store")
    assert not (tmp_path / "store" / "holdfast.db").exists()
    store = await open_store(f"file:{tmp_path}/store?unsafe_fs=1")
    await store.enqueue([new("1")])
    await store.close()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs", "virtiofs"])
async def test_a_local_file_system_is_accepted(tmp_path, monkeypatch, kind):
    _mount(monkeypatch, MOUNTS.format(home=tmp_path, kind=kind))
    await (await open_at(tmp_path / "store")).close()


async def test_a_local_disk_inside_a_network_file_system_is_accepted(tmp_path, monkeypatch):
    _mount(monkeypatch, MOUNTS.format(home=tmp_path, kind="nfs4"))
    async with opened(tmp_path / "local disk" / "store") as store:
        await store.enqueue([new("1")])


async def test_a_neighbour_of_a_mount_point_is_not_inside_it(tmp_path, monkeypatch):
    _mount(monkeypatch, MOUNTS.format(home=tmp_path / "net", kind="nfs4"))
    async with opened(tmp_path / "network") as store:
        await store.enqueue([new("1")])


async def test_the_last_mount_on_a_mount_point_counts(tmp_path, monkeypatch):
    _mount(monkeypatch, f"server:/export {tmp_path} nfs4 rw 0 0\n/dev/sdb1 {tmp_path} ext4 rw 0 0\n")
    async with opened(tmp_path / "store") as store:
        await store.enqueue([new("1")])


@pytest.mark.parametrize(
    "output, kind",
    [
        ("/dev/disk3s1 on / (apfs, sealed, local, read-only, journaled)\n/dev/disk9 on {at} (apfs, local)\n", "apfs"),
        ("/dev/disk3s1 on / (apfs, local)\n//guest@nas on {at} (smbfs, nodev, nosuid)\n", "smbfs"),
        ("", ""),
    ],
)
def test_without_proc_the_mount_command_is_used(tmp_path, monkeypatch, output, kind):
    _mount(monkeypatch, None)
    mount = tmp_path / "mount"
    mount.write_text(f"#!/bin/sh\ncat <<'END'\n{output.format(at=tmp_path)}END\n")
    mount.chmod(0o755)
    monkeypatch.setattr(database, "MOUNT", str(mount))
    assert database.file_system(tmp_path / "store") == kind


async def test_a_system_that_does_not_show_its_mounts_is_refused(tmp_path, monkeypatch):
    _mount(monkeypatch, None)
    monkeypatch.setattr(database, "MOUNT", str(tmp_path / "nothing"))
    with pytest.raises(StoreMismatch, match="of an unknown type"):
        await open_at(tmp_path / "store")


def _mount(monkeypatch, text):
    read_text = Path.read_text

    def read(path, *arguments, **options):
        if str(path) != "/proc/self/mounts":
            return read_text(path, *arguments, **options)
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", read)


async def test_an_old_sqlite_is_named_and_no_store_is_created(directory, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(StoreUnavailable, match=r"needs SQLite 3\.38"):
        await open_at(directory)
    assert not directory.exists()


async def test_an_unknown_option_is_refused_and_no_store_is_created(directory):
    with pytest.raises(InvalidOption, match=r"colour.*no such option.*keep_events"):
        await open_at(directory, "?colour=blue")
    assert not directory.exists()
