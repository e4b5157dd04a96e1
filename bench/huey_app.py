"""A huey application on SQLite, as its documentation sets one up. The consumer imports this module."""

from __future__ import annotations

import os
import time

from huey import SqliteHuey

FSYNC = {"default": None, "on": True, "off": False}

huey = SqliteHuey(filename=os.environ["BENCH_HUEY_FILE"], fsync=FSYNC[os.environ.get("BENCH_HUEY_FSYNC", "default")])

_state = {"begun": 0.0, "done": 0}


@huey.task()
def noop(n, last):  # noqa: ARG001 - a payload, as every job has one
    """Says when the first began, and at the end how long all took. Nothing is returned: huey stores no result then."""
    if not _state["begun"]:
        _state["begun"] = time.monotonic()
        print(f"begun {_state['begun']}", flush=True)
        _state["cpu"] = time.process_time()
    _state["done"] += 1
    if _state["done"] == last:
        print(f"drained {time.monotonic() - _state['begun']} {time.process_time() - _state['cpu']}", flush=True)


@huey.task()
def stamp():
    """When the handler began."""
    return time.monotonic()
