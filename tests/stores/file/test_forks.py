"""SQLite cannot be carried through a fork: the child is told so, and takes nothing from its parent."""

from __future__ import annotations

import os
import signal

from tests.stores.file.support import Child, look, names_in, quick_check


def test_a_store_carried_through_a_fork_refuses_the_child_and_stays_good_in_the_parent(directory):
    with Child("use_after_fork", directory=directory) as child:
        used = child.says()
        assert len(used) == 4
        for answer in used:
            assert answer.startswith("store_unavailable: the store was opened before this process was forked")
        # Opening it anew is no way out: SQLite in the child believes in locks that only the parent has.
        anew = child.says()
        assert anew.startswith("store_unavailable")
        assert "forked" in anew
        assert child.says() == "the child is gone"
        assert len(names_in(directory / "wake")) == 1
        with Child("enqueue", directory=directory, ids=["other"]) as other:
            assert other.says() == "open"
            other.go_on()
            assert other.says() == ["other"]
            other.ends()
        child.go_on()
        assert child.says() == "done"
        child.ends()
    assert sorted(look(directory, "SELECT id FROM jobs")) == [("after",), ("other",), ("parent",)]
    assert quick_check(directory) == "ok"


def test_a_store_that_was_closed_before_the_fork_can_be_opened_on_both_sides(directory):
    with Child("open_after_fork", directory=directory) as child:
        assert child.says() == "done"
        child.ends()
    assert sorted(look(directory, "SELECT id FROM jobs")) == [("before",), ("child",), ("parent",)]
    assert quick_check(directory) == "ok"


def test_a_process_that_was_forked_while_its_parent_opened_the_store_does_not_keep_the_lock(directory):
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
