import asyncio
import shutil

import pytest

from holdfast.migrate import MovePlan, move
from holdfast.opening import open_store
from tests.unit.cli.support import claim, fail


@pytest.fixture
def target(place):
    return f"file:{place}/other"


@pytest.fixture
def filled(cli, url):
    """Two jobs that wait in one queue, one in another that is paused, and a dead letter."""
    for queue, count in (("emails", 3), ("video", 1)):
        for _ in range(count):
            assert cli("enqueue", "x", "--queue", queue).code == 0
    assert len(fail(url, queue="emails")) == 1
    cli("pause", "video")
    return url


@pytest.mark.parametrize("name", ["SRC", "DST"])
def test_a_store_that_ends_with_the_command_is_refused(cli, filled, name):
    answer = cli("move", *(("memory:", filled) if name == "SRC" else (filled, "memory:")))
    assert (answer.code, answer.out) == (2, "")
    assert f"{name}: a memory: store ends with this process" in answer.err
    assert cli("stats", "emails").out.count("canceled") <= 1


def test_a_dry_run_shows_the_queues_and_changes_nothing(cli, filled, target, place):
    answer = cli("move", filled, target, "--dry-run")
    assert [line.split() for line in answer.out.splitlines()] == [
        ["QUEUE", "WAITING", "RUNNING", "FINISHED", "PAUSED"],
        ["emails", "2", "0", "1", "-"],
        ["video", "1", "0", "0", "yes"],
    ]
    assert "would move 3 jobs" in answer.err
    assert cli("move", filled, target, "--dry-run", "--json").json["queues"][0]["waiting"] == 2
    assert not (place / "other").exists()
    assert cli("stats", "emails", "--json").json["queues"][0]["counts"]["ready"] == 2


def test_a_dry_run_shows_a_stopped_move(cli, filled, target):
    assert cli("move", filled, target, "--dry-run", "--json").json["open_move"] is None
    asyncio.run(_begin(filled, target))
    answer = cli("move", filled, target, "--dry-run")
    assert f"A move from {filled} to {target} was stopped before its end; it paused: emails" in answer.err
    assert "--forget gives it up" in answer.err
    found = cli("move", filled, target, "--dry-run", "--json").json["open_move"]
    assert (found["source"], found["target"], found["under_way"]) == (filled, target, False)
    assert cli("move", filled, target).code == 0
    assert cli("move", filled, target, "--dry-run", "--json").json["open_move"] is None


def test_a_move_reports_what_it_moved_and_what_stays(cli, filled, target):
    answer = cli("move", filled, target)
    assert answer.code == 0, answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    assert [(line[0], line[1], line[2] == line[3], line[4]) for line in lines[1:3]] == [
        ("emails", "2", True, "1"),
        ("video", "1", True, "0"),
    ]
    assert answer.out.splitlines()[-1] == f"moved 3 jobs and 0 settings of acme to {target}"
    assert "video is paused in DST, as it was" in answer.err
    assert "Finished jobs" in answer.err
    assert "copy: 3 of 3" in answer.err
    assert cli("stats", "emails", "--store", target, "--json").json["queues"][0]["counts"]["ready"] == 2
    again = cli("move", filled, target, "--json").json
    assert (again["jobs"], again["passes"], again["resumed"]) == (0, 0, False)


def test_errors_of_a_move_have_their_exit_codes(cli, filled, target, url):
    for args, code, said in (
        ((filled, filled), 2, "is SRC itself"),
        ((filled, target, "--tenant", "absent"), 2, "no jobs or settings of 'absent'"),
        (("file:./mistyped", target), 1, "mistyped"),
        ((filled, "redis://127.0.0.1:1"), 1, "The store is DST, redis://127.0.0.1:1"),
        ((filled, target, "--wait", "soon"), 2, "is not a duration"),
    ):
        answer = cli("move", *args)
        assert (answer.code, said in answer.err) == (code, True), answer.err
    assert len(claim(url, queue="emails")) == 1
    answer = cli("move", filled, target, "--wait", "0.1")
    assert answer.code == 1
    assert "1 job of 'acme' still ran in SRC after 0.1 s (1 in emails)" in answer.err
    assert "Nothing was moved" in answer.err
    assert asyncio.run(_waiting(target)) == 0


def test_a_move_that_cannot_be_finished_is_given_up(cli, filled, target):
    answer = cli("move", filled, target, "--forget")
    assert (answer.code, "knows this move of 'acme'" in answer.err) == (2, True)
    asyncio.run(_begin(filled, target))
    shutil.rmtree(target.removeprefix("file:"))
    answer = cli("move", filled, f"{target}2")
    assert "has not ended; finish it first" in answer.err
    assert f"holdfast move {filled} {target} --tenant acme --forget" in answer.err
    answer = cli("move", filled, target, "--forget")
    assert (answer.code, "SRC has forgotten the move" in answer.out) == (0, True), answer.err
    answer = cli("move", filled, f"{target}2")
    assert answer.code == 0, answer.err
    assert "Also paused in SRC, as before: video" in answer.err


async def _begin(url, target):
    """A move that is interrupted while it copies."""

    async def walker(step_input, queues, tell):
        raise EOFError

    with pytest.raises(EOFError):
        await move(MovePlan(url, target, "acme"), walker)


async def _waiting(url):
    store = await open_store(url)
    try:
        return sum(sum(one.counts.values()) for one in await store.stats("acme", ["emails", "video"]))
    finally:
        await store.close()
