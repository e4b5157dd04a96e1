"""Several worker processes under one roof."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.eventually import eventually

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def supervising(folder, way):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.unit.worker.supervised", str(folder), way, cwd=ROOT, env=env
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def files(folder, pattern, count):
    return await eventually(lambda: sorted(folder.glob(pattern)), lambda found: len(found) >= count, patience_s=60)


async def test_the_supervisor_exits_with_0_when_every_child_does(tmp_path):
    async with supervising(tmp_path, "ends") as process:
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert len(list(tmp_path.glob("?-*"))) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_passed_on_once(tmp_path, number):
    async with supervising(tmp_path, "waits") as process:
        await files(tmp_path, "ready-*", 2)
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    assert [path.name for path in sorted(tmp_path.glob("signaled-*"))] == ["signaled-0-1", "signaled-1-1"]


async def test_dead_children_are_started_again(tmp_path):
    async with supervising(tmp_path, "dies") as process:
        await files(tmp_path, "ready-*", 2)
        assert len(list(tmp_path.glob("0-*"))) == len(list(tmp_path.glob("1-*"))) == 3
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_child_that_fails_at_its_end_fails_the_supervisor(tmp_path):
    async with supervising(tmp_path, "fails") as process:
        await files(tmp_path, "ready-*", 2)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 1


async def test_the_second_signal_ends_the_children_at_once(tmp_path):
    async with supervising(tmp_path, "stubborn") as process:
        await files(tmp_path, "ready-*", 2)
        process.terminate()
        await files(tmp_path, "signaled-*-1", 2)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 1
        await files(tmp_path, "signaled-*-2", 2)


async def test_children_stop_gracefully_when_the_supervisor_is_killed(tmp_path):
    async with supervising(tmp_path, "waits") as process:
        await files(tmp_path, "ready-*", 2)
        process.kill()
        await process.wait()
        await files(tmp_path, "signaled-*-1", 2)
