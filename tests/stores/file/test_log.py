"""The log is longer than what is in it: commits do not make it grow, and zeros behind it are nothing to recovery."""

from __future__ import annotations

import errno
import os
import shutil
import struct

import pytest

from holdfast.core.errors import StoreMismatch
from holdfast.core.job import JobState
from holdfast.stores.file import wal
from tests.stores.file.support import key, new, opened, quick_check, wish

SINGLES = 40


def _log(directory):
    return directory / "holdfast.db-wal"


def _frames(directory):
    """The number of frames of the log in use: consecutive ones with the salt of its head."""
    data = _log(directory).read_bytes()
    salt, size = data[16:24], 24 + struct.unpack_from(">I", data, 8)[0]
    count = 0
    while data[32 + count * size + 8 :][:8] == salt:
        count += 1
    return count, size


async def _fill(store, singles=SINGLES):
    for n in range(singles):
        await store.enqueue([new(f"{n}")])


@pytest.fixture
async def killed(directory, tmp_path):
    """The files of a process that dies after some single commits."""
    copy = tmp_path / "copy"
    async with opened(directory) as store:
        await _fill(store)
        copy.mkdir()
        for name in ("holdfast.db", "holdfast.db-wal"):
            shutil.copy(directory / name, copy / name)
    return copy


async def test_single_commits_overwrite_the_preallocated_log(directory):
    async with opened(directory) as store:
        await _fill(store)
        size = _log(directory).stat().st_size
        assert size % wal.STEP == 0
        used = _frames(directory)[0]
        await store.enqueue([new("one more")])
        assert _log(directory).stat().st_size == size
        assert _frames(directory)[0] > used


async def test_a_program_that_writes_little_does_not_preallocate_the_log(directory):
    async with opened(directory) as store:
        await _fill(store, 3)
        assert _log(directory).stat().st_size < wal.MIN_SIZE


async def test_acknowledged_jobs_survive_a_crash(killed):
    assert _log(killed).stat().st_size % wal.STEP == 0
    async with opened(killed) as store:
        assert None not in await store.get([key(f"{n}") for n in range(SINGLES)])
        assert len((await store.claim(wish(100))).jobs) == SINGLES
    assert quick_check(killed) == "ok"


@pytest.mark.parametrize(
    "tail", ["cut in the zeros", "cut behind the last", "torn", "garbled", "garbage behind", "gone"]
)
async def test_a_torn_log_ends_at_the_tear(killed, tail):
    used, size = _frames(killed)
    end = 32 + used * size
    with _log(killed).open("r+b") as log:
        if tail == "garbled":
            os.pwrite(log.fileno(), b"\xff" * 100, end - size // 2)
        elif tail == "garbage behind":
            os.pwrite(log.fileno(), os.urandom(2 * size), end)
        else:
            cuts = {"cut in the zeros": end + 5000, "cut behind the last": end, "torn": end - size // 2, "gone": 0}
            log.truncate(cuts[tail])
    async with opened(killed) as store:
        there = [job is not None for job in await store.get([key(f"{n}") for n in range(SINGLES)])]
        lost = {"torn": 1, "garbled": 1, "gone": SINGLES}.get(tail, 0)
        assert there == [True] * (SINGLES - lost) + [False] * lost
        await _fill(store)  # It goes on, and what is left over behind comes to nothing.
        assert len((await store.claim(wish(100))).jobs) == SINGLES
    assert quick_check(killed) == "ok"


async def test_a_disk_without_room_for_preallocation_accepts_jobs(directory, monkeypatch):
    asked = []

    def full(descriptor, data, offset):
        asked.append(len(data))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wal.os, "pwrite", full)
    async with opened(directory) as store:
        await _fill(store)
        assert asked
        assert all(job.state is JobState.READY for job in await store.get([key(f"{n}") for n in range(SINGLES)]))


async def test_a_recreated_store_keeps_its_own_log(directory, tmp_path):
    """A process that still has the old one open is refused, and must not write to the log of the new one."""
    async with opened(directory) as old:
        await _fill(old, 10)
        directory.rename(tmp_path / "moved")
        async with opened(directory) as store:
            await store.enqueue([new(f"{n}") for n in range(1000)])  # A batch: its log is left as long as it is.
            size = _log(directory).stat().st_size
            assert size > wal.MIN_SIZE
            assert size % wal.STEP
            for n in range(20):
                with pytest.raises(StoreMismatch, match="removed or replaced"):
                    await old.enqueue([new(f"{n}")])
            old._engine._wal.is_short()
            old._engine._extend_wal()
            assert _log(directory).stat().st_size == size


async def test_a_system_without_fdatasync_and_any_error_leave_the_writer_running(directory, monkeypatch):
    asked = []

    def broken(descriptor):
        asked.append(descriptor)
        raise RuntimeError("anything")

    monkeypatch.setattr(wal, "_flush", broken)
    async with opened(directory) as store:
        await _fill(store)
        assert asked
        assert all(job is not None for job in await store.get([key(f"{n}") for n in range(SINGLES)]))
