"""Signals where the program around the worker wants them, too. Real processes, real signals."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PYTHON_HANDLER = """
async def main():
    async with Queue("memory:", tenant="acme") as queue:
        worker = Worker(queue, handler=print)
        theirs = lambda number, frame: print("theirs", number)
        signal.signal(signal.SIGTERM, theirs)
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 20)
        print("restored", signal.getsignal(signal.SIGTERM) is theirs)
"""

LOOP_HANDLER = """
async def main():
    async with Queue("memory:", tenant="acme") as queue:
        worker = Worker(queue, handler=print)
        signaled = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, signaled.set)
        theirs = signal.getsignal(signal.SIGTERM)
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(signaled.wait(), 20)
        await asyncio.sleep(0.05)
        print("runs", not running.done())
        await worker.stop()
        await running
        print("restored", signal.getsignal(signal.SIGTERM) == theirs)
        signaled.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(signaled.wait(), 20)
        print("theirs again")
"""

REPLACED = """
async def main():
    async with Queue("memory:", tenant="acme") as queue:
        worker = Worker(queue, handler=print)
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0)
        theirs = lambda number, frame: print("theirs", number)
        signal.signal(signal.SIGTERM, theirs)
        await worker.stop()
        await running
        print("restored", signal.getsignal(signal.SIGTERM) is theirs)
"""

NO_SIGNALS = """
async def main():
    async with Queue("memory:", tenant="acme") as queue:
        worker = Worker(queue, handler=print)
        running = asyncio.ensure_future(worker.run(signals=False))
        await asyncio.sleep(0)
        print("untouched", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        await worker.stop()
        await running
"""

BY_DEFAULT = """
async def main():
    async with Queue("memory:", tenant="acme") as queue:
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        for number in (signal.SIGTERM, signal.SIGINT):
            running = asyncio.ensure_future(Worker(queue, handler=print).run())
            await asyncio.sleep(0)
            os.kill(os.getpid(), number)
            await asyncio.wait_for(running, 20)
        print("restored", before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])
"""

IMPORTS = """
import asyncio, logging, os, signal, sys
from holdfast import Queue, Worker
logging.basicConfig(stream=sys.stdout, format="%(message)s")
"""
RUNS = {"asyncio": "asyncio.run(main())", "uvloop": "import uvloop; uvloop.run(main())"}


def said_by(body, loop):
    program = IMPORTS + body + RUNS[loop]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("loop", RUNS)
def test_an_earlier_python_signal_handler_is_called_after_ours(loop):
    assert said_by(PYTHON_HANDLER, loop) == [f"theirs {int(signal.SIGTERM)}", "restored True"]


@pytest.mark.parametrize("loop", RUNS)
def test_a_signal_handler_of_the_event_loop_is_kept(loop):
    first, *rest = said_by(LOOP_HANDLER, loop)
    assert "own handler in the event loop" in first
    assert "SIGTERM" in first
    assert rest == ["runs True", "restored True", "theirs again"]


@pytest.mark.parametrize("loop", RUNS)
def test_a_signal_handler_installed_meanwhile_stays(loop):
    assert said_by(REPLACED, loop) == ["restored True"]


@pytest.mark.parametrize("loop", RUNS)
def test_without_signals_no_handler_is_changed(loop):
    assert said_by(NO_SIGNALS, loop) == ["untouched True"]


@pytest.mark.parametrize("loop", RUNS)
def test_unhandled_signals_end_the_worker(loop):
    assert said_by(BY_DEFAULT, loop) == ["restored True"]
