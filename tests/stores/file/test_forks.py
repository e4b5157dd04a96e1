"""Forks: a child cannot use the store of its parent, takes nothing from it, and can open it again."""

from __future__ import annotations

import os
import signal

from tests.stores.file.support import Child, look, quick_check


def test_a_store_inherited_by_a_fork_is_refused_and_the_child_can_open_its_own(directory):
    # In the child SQLite believes in locks that only the parent has: unless it is closed there first, the parent takes
    # itself for the last user when it closes, and deletes the log that the child goes on to write to.
    with Child("use_after_fork", directory=directory) as child:
        used = child.says()
        assert len(used) == 4
        for answer in used:
            assert answer.startswith("store_unavailable: the store was opened before this process was forked")
        assert child.says() == "the parent has closed"
        child.go_on()
        assert child.says() == "the child has been acknowledged"
        child.ends()
    with Child("enqueue", directory=directory, ids=["last"]) as other:
        assert other.says() == "open"
        other.go_on()
        assert other.says() == ["last"]
        other.ends()
    ids = {id_ for (id_,) in look(directory, "SELECT id FROM jobs")}
    assert ids == {"parent", "child-1", "child-2", "last", *(f"work-{n}" for n in range(200))}
    assert quick_check(directory) == "ok"


def test_a_store_closed_before_a_fork_can_be_opened_by_parent_and_child(directory):
    with Child("open_after_fork", directory=directory) as child:
        assert child.says() == "done"
        child.ends()
    assert sorted(look(directory, "SELECT id FROM jobs")) == [("before",), ("child",), ("parent",)]
    assert quick_check(directory) == "ok"


def test_a_child_forked_while_its_parent_opens_the_store_does_not_keep_the_lock(directory):
    directory.mkdir()
    with Child("fork_while_opening", directory=directory) as child:
        fork = child.says()
        try:
            with Child("enqueue", directory=directory, ids=["next"]) as other:
                assert other.says() == "open"
                other.go_on()
                assert other.says() == ["next"]
                other.ends()
        finally:
            os.kill(fork, signal.SIGKILL)
        child.go_on()
        child.ends()
