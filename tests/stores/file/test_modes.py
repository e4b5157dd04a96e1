"""Who can read and write a store's files: its owner, or its group as well, whatever the umask."""

import asyncio
import os
import stat
import subprocess
import sys
import tempfile

import pytest

from holdfast import Queue, Worker, job
from holdfast.opening import open_store


@job
async def nothing() -> None: ...


async def _use(url):
    """A store with a worker at it, as its files are while it works."""
    async with Queue(url, tenant="acme") as queue:
        worker = Worker(queue, jobs=[nothing])
        working = asyncio.create_task(worker.run(signals=False))
        ticket = await queue.enqueue(nothing.message())
        await ticket.wait(timeout=60)
        yield queue
        await worker.stop()
        await working


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(directory):
    """The modes of directories, and those of all else."""
    found = {False: set(), True: set()}
    for path in (directory, *directory.rglob("*")):
        found[path.is_dir()].add(stat.S_IMODE(path.lstat().st_mode))
    return found[True], found[False]


@pytest.mark.parametrize("query, directories, files", [("", 0o700, 0o600), ("?group=1", 0o770, 0o660)])
async def test_the_files_of_a_store_are_private(tmp_path, umask, query, directories, files):
    async for queue in _use(f"file:{tmp_path}/a/data{query}"):
        assert modes(tmp_path / "a" / "data") == ({directories}, {files})
        (access,) = [finding for finding in await queue.store.doctor() if finding.subject == "access"]
        assert access.level == "ok"


async def test_a_store_keeps_its_permissions_for_every_user(tmp_path):
    for made, opened, expected in (("?group=1", "", (0o770, 0o660)), ("", "?group=1", (0o700, 0o600))):
        directory = tmp_path / f"data{expected[0]}"
        await (await open_store(f"file:{directory}{made}")).close()
        (directory / "lock").unlink()
        async for _ in _use(f"file:{directory}{opened}"):
            assert modes(directory) == ({expected[0]}, {expected[1]})


@pytest.mark.parametrize("query, mode, is_wide", [("", 0o640, True), ("", 0o604, True), ("?group=1", 0o661, True)])
async def test_the_doctor_warns_of_files_that_others_can_reach(tmp_path, query, mode, is_wide):
    store = await open_store(f"file:{tmp_path}/data{query}")
    (tmp_path / "data" / "lock").chmod(mode)
    (access,) = [finding for finding in await store.doctor() if finding.subject == "access"]
    await store.close()
    assert (access.level == "warn") is is_wide
    assert "chmod -R" in access.cure


AS_OTHER_USER = """
import fcntl, os, sys
os.setgid(65534)
os.setuid(65534)
for name in ("", "/holdfast.db", "/holdfast.db-wal", "/lock", "/waiters"):
    try:
        descriptor = os.open(sys.argv[1] + name, os.O_RDONLY)
        if name:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("opened", name)
    except PermissionError:
        pass
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_reads_no_payload_and_blocks_no_writer():
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory() as place:
            os.chmod(place, 0o755)  # noqa: PTH101 - not a Path's in an async function
            async for queue in _use(f"file:{place}/data"):
                command = [sys.executable, "-c", AS_OTHER_USER, f"{place}/data"]
                run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
                assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
                await queue.enqueue(nothing.message())
    finally:
        os.umask(before)
