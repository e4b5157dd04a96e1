"""How huey is measured: SqliteHuey, its real consumer with one thread worker, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.disk import pages
from bench.measure import ALL_CORES, CORES, TEXT, WAITING, Figures, percentile

NAMES = {"default": "huey", "on": "huey fsync=True", "off": "huey fsync=False"}
SETTINGS = "no-op task that stores no result, consumer with -w 1 -k thread, and on all cores with -k process"
LACKS = "bulk enqueue (one by one is taken instead), no leases, no acknowledgements and no events"
POLL = ("-d", "0.01", "-m", "0.01")
"""Looks for work every 10 ms, where the default is 100 ms, and up to 10 s after a while."""


def version() -> str:
    return importlib.metadata.version("huey")


def about() -> dict[str, str]:
    return {"versions": f"huey=={version()}", "settings": SETTINGS, "lacks": LACKS}


def rates(figures: Figures, file: Path, fsync: str, jobs: int) -> None:
    """Enqueue and drain."""
    app = load(file, fsync)
    began = time.perf_counter()
    for n in range(jobs):
        app.noop(n, jobs)
    figures.add("awaited enqueue", NAMES[fsync], jobs / (time.perf_counter() - began))
    with consumer() as process:
        for line in process.stdout:
            if line.startswith("drained"):
                seconds, cpu = map(float, line.split()[1:])
                break
        else:
            raise RuntimeError("huey's consumer ended early")
    figures.add("drain", NAMES[fsync], jobs / seconds)
    figures.add("drain, processor time", NAMES[fsync], cpu / jobs * 1e6)


def on_all_cores(figures: Figures, file: Path, jobs: int) -> None:
    """Drain with as many worker processes as there are cores, until all were taken."""
    app = load(file, "default")
    for n in range(jobs):
        app.noop(n, jobs)
    with consumer("-w", str(CORES), "-k", "process") as process:
        begun = next(float(line.split()[1]) for line in process.stdout if line.startswith("begun"))
        while app.huey.pending_count():
            time.sleep(0.005)
        figures.add(ALL_CORES, NAMES["default"], jobs / (time.monotonic() - begun))


def kept(figures: Figures, file: Path, jobs: int) -> None:
    """What a waiting job takes."""
    app = load(file, "off")
    before = pages(file)
    for _ in range(jobs):
        app.noop("x" * TEXT, jobs)
    figures.add(WAITING, NAMES["default"], (pages(file) - before) / jobs)


def waits(figures: Figures, file: Path, times: int, *options: str) -> None:
    """Latency on an idle queue."""
    app = load(file, "default")
    polling = {"backoff": 1.0, "max_delay": 0.001} if options else {}
    subject = "huey, polling 10 ms" if options else "huey"
    to_start: list[float] = []
    to_answer: list[float] = []
    with consumer(*options):
        app.stamp()(blocking=True, timeout=30)
        for _ in range(times):
            time.sleep(0.005)
            asked = time.monotonic()
            started = app.stamp()(blocking=True, timeout=30, **polling)
            to_answer.append((time.monotonic() - asked) * 1000)
            to_start.append((started - asked) * 1000)
    for percent in (50, 99):
        figures.add(f"idle enqueue to start p{percent}", subject, percentile(to_start, percent))
        figures.add(f"request/response p{percent}", subject, percentile(to_answer, percent))


def load(file: Path, fsync: str):
    """The application on this file, in this process and, by the environment, in those it starts."""
    os.environ["BENCH_HUEY_FILE"] = str(file)
    os.environ["BENCH_HUEY_FSYNC"] = fsync
    sys.modules.pop("bench.huey_app", None)
    return importlib.import_module("bench.huey_app")


@contextlib.contextmanager
def consumer(*options: str) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "huey.bin.huey_consumer", "bench.huey_app.huey", "-w", "1", "-k", "thread", "-q"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
