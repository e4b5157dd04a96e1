from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid

from holdfast.ids import Ids, new_id


def test_ids_are_uuids_of_version_7():
    made = uuid.UUID(new_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert abs((made.int >> 80) - time.time_ns() // 1_000_000) < 60_000


def test_each_id_is_greater_than_the_last():
    made = [new_id() for _ in range(50_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_a_clock_that_is_set_back_changes_nothing(monkeypatch):
    now = [1_700_000_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    ids = Ids()
    made = [ids.next()]
    for step in (5, -3_600_000, 0, 3_600_001):
        now[0] += step * 1_000_000
        made += [ids.next() for _ in range(5_000)]
    assert made == sorted(set(made))
    assert {one[15:18] for one in made} == {"000"}


def test_ids_grow_after_the_counter_overflows(monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    ids = Ids()
    made = [ids.next() for _ in range(40_000)]
    assert made == sorted(set(made))
    assert all(uuid.UUID(one).version == 7 for one in made[::5000])


def test_an_exhausted_millisecond_borrows_from_the_next(monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    ids = Ids()
    first = ids.next()
    ids._low, ids._high = (1 << 14) - 1, (1 << 12) - 1
    second = ids.next()
    assert first < second
    assert (uuid.UUID(second).int >> 80) - (uuid.UUID(first).int >> 80) == 1


def test_threads_never_get_the_same_id():
    made: list[list[str]] = [[] for _ in range(4)]

    def draw(mine: list[str]) -> None:
        mine += [new_id() for _ in range(5_000)]

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for mine in made for one in mine}) == 20_000


def test_a_forked_child_makes_different_ids():
    program = """
import os
from holdfast.ids import new_id
print(new_id()[-12:], flush=True)
if os.fork() == 0:
    print(new_id()[-12:], flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    mine, theirs = done.stdout.split()
    assert mine != theirs
