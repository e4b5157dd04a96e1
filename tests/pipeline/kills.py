"""Kills the driver of a followed ingest, again and again, while jobs come and go; then counts what the lake has.

python -m tests.pipeline.kills --kills 20 --store valkey
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pyarrow.dataset

from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.lake import Lake
from tests.log import all_events
from tests.pipeline.settings import SETTINGS, environment
from tests.pipeline.traffic import as_rows, make_traffic, of_store
from tests.places import PLACES

POINTS = ("begun", "writing", "written")
"""When to kill: the batch has its ends, some of it is there, all of it is there and Spark does not know yet."""


class Driver:
    """A real process that ingests."""

    def __init__(self, url, lake, *options):
        command = ["-m", "holdfast", "pipeline", "ingest", "--store", url, "--lake", str(lake), "--master", "local[2]"]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        conf = [word for pair in SETTINGS.items() for word in ("--conf", "=".join(pair))]
        self._process = subprocess.Popen(
            [sys.executable, *command, *conf, *options],
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env=environment(),
        )

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._said.close()

    def end(self):
        code = self._process.wait()
        assert code == 0, self.said()
        self._said.close()

    def said(self):
        self._said.seek(0)
        return self._said.read()

    def wait_for(self, point):
        while not point():
            assert self._process.poll() is None, self.said()
            time.sleep(0.01)


def numbers(folder):
    return {int(path.stem) for path in folder.glob("[0-9]*")}


def reached(lake, point, since):
    """Whether a batch from number `since` on is at that point."""
    committed = numbers(lake.checkpoint / "commits")
    if point == "begun":
        found = numbers(lake.checkpoint / "offsets")
    elif point == "writing":
        found = {since} if is_landing(lake) else set()
    else:
        found = numbers(lake.root / "_batches")
    return any(number >= since for number in found - committed)


def is_landing(lake):
    """Whether tasks have written something that is not in the table yet."""
    with contextlib.suppress(FileNotFoundError):
        return any(lake.landing.iterdir())
    return False


@contextlib.contextmanager
def producing(url):
    """Jobs that come and go all the time."""
    stop = threading.Event()

    def produce():
        with OpenStore(url) as opened:
            seed = 0
            # Not faster than drivers take in that are killed again and again: what is left comes on top at the end.
            while not stop.wait(0.3):
                seed += 1
                opened.run(make_traffic(opened.store, 20, seed=seed))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def kill_at(url, root, points, finish):
    """Kill an ingest at each of the points, `finish` it, and tell the events of the store, the lost and the doubled.

    A point that is a number means seconds since the first batch of that driver began.
    """
    of_store(url, lambda store: make_traffic(store, 5))
    lake = Lake(root, create=True)
    with producing(url):
        for point in points:
            since = max(numbers(lake.checkpoint / "commits"), default=-1) + 1
            driver = Driver(url, root, "--follow", "--interval", "0.2s", "--max-events", "200")
            driver.wait_for(lambda: reached(lake, point if isinstance(point, str) else "begun", since))  # noqa: B023
            if not isinstance(point, str):
                time.sleep(point)
            driver.kill()
    finish(url, root)
    return tally(url, lake)


def random_points(chance, count):
    """Moments to kill at."""
    return [chance.choice((*POINTS, chance.uniform(0, 5))) for _ in range(count)]


def tally(url, lake):
    """How many events the store has, how many of them the lake lacks, and how many it has too often."""
    table = pyarrow.dataset.dataset(lake.path("events"), partitioning="hive").to_table()
    have = Counter(as_rows(SimpleNamespace(**row) for row in table.to_pylist()))
    want = Counter(as_rows(of_store(url, all_events)))
    assert not lake.unfinished_batches()
    return want.total(), (want - have).total(), (have - want).total()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--store", choices=("file", "valkey", "postgres"), default="file")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    points = random_points(random.Random(options.seed), options.kills)
    print("seed", options.seed)  # noqa: T201
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        options_of = {"valkey": "?prefix=kills&shards=3"}
        url = stack.enter_context(PLACES[options.store]()) + options_of.get(options.store, "")
        events, lost, doubled = kill_at(url, Path(directory) / "lake", points, lambda *at: Driver(*at).end())
    print(f"{options.kills} kills, {events} events: {lost} lost, {doubled} doubled")  # noqa: T201
    sys.exit(1 if lost or doubled else 0)


if __name__ == "__main__":
    main()
