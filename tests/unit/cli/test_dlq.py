import pytest

from tests.unit.cli.support import fail


@pytest.fixture
def dead(cli, url):
    """Three dead letters in `default`: two of type x, one of type y with another error."""
    for id, type in (("a", "x"), ("b", "x"), ("c", "y")):
        cli("enqueue", type, "--id", id)
    return fail(url, 2) + fail(url, message="something else")


def test_dead_letters_are_listed_oldest_first_with_their_last_error(cli, dead):
    found = cli("dlq", "list", "--json").json
    assert [job["id"] for job in found["jobs"]] == dead
    assert found["cursor"] is None
    assert found["jobs"][0]["errors"][-1]["message"] == "boom"
    lines = cli("dlq", "list").out.splitlines()
    assert lines[1].split()[:4] == ["a", "default", "x", "1/4"]
    assert lines[1].endswith("ValueError: boom")
    assert [job["id"] for job in cli("dlq", "list", "--type", "y", "--json").json["jobs"]] == ["c"]
    assert [job["id"] for job in cli("dlq", "list", "--error", "boom", "--json").json["jobs"]] == ["a", "b"]
    page = cli("dlq", "list", "--limit", "2", "--json").json
    rest = cli("dlq", "list", "--cursor", page["cursor"], "--json").json
    assert [job["id"] for job in rest["jobs"]] == ["c"]


def test_an_empty_list_says_where_there_are_some(cli, dead):
    answer = cli("dlq", "list", "-q", "emails")
    assert (answer.code, answer.out) == (0, "")
    assert "There are some in: default." in answer.err


def test_named_dead_letters_are_replayed(cli, dead):
    answer = cli("dlq", "replay", "b", "c", "--json")
    assert answer.code == 0
    assert answer.json == {"replayed": 2, "refused": []}
    assert [job["id"] for job in cli("dlq", "list", "--json").json["jobs"]] == ["a"]


def test_a_replay_that_is_refused_is_named_and_fails(cli, dead):
    answer = cli("dlq", "replay", "a", "nothing")
    assert answer.code == 1
    assert answer.out == "replayed 1\n"
    assert answer.err == "Replaying: 1 of 2\nError: no job 'nothing' in queue 'default'\n"
    answer = cli("dlq", "replay", "nothing")
    assert (answer.code, answer.out, answer.err) == (1, "", "Error: no job 'nothing' in queue 'default'\n")
    answer = cli("dlq", "replay", "a", "--json")
    assert answer.code == 1
    assert answer.json["refused"][0]["code"] == "not_replayable"


@pytest.mark.parametrize(
    "filters, ids",
    [(("--all",), ["a", "b", "c"]), (("--type", "x"), ["a", "b"]), (("--error", "something"), ["c"])],
)
def test_matching_dead_letters_are_replayed_after_a_dry_run(cli, dead, filters, ids):
    dry = cli("dlq", "replay", *filters, "--dry-run", "--json")
    assert dry.json == {"dry_run": True, "matching": len(ids), "ids": ids}
    assert len(cli("dlq", "list", "--json").json["jobs"]) == 3
    answer = cli("dlq", "replay", *filters)
    assert answer.out == f"replayed {len(ids)}\n"
    assert f"Replaying: {len(ids)} of {len(ids)}" in answer.err
    left = {job["id"] for job in cli("dlq", "list", "--json").json["jobs"]}
    assert left == {"a", "b", "c"} - set(ids)


@pytest.mark.parametrize("command", [("replay",), ("purge",), ("replay", "a", "--all"), ("purge", "--before", "soon")])
def test_ambiguous_options_are_wrong_usage_and_change_nothing(cli, dead, command):
    answer = cli("dlq", *command)
    assert answer.code == 2
    assert answer.err.startswith("Error: ")
    assert len(cli("dlq", "list", "--json").json["jobs"]) == 3


def test_dead_letters_are_purged_by_age(cli, dead):
    assert cli("dlq", "purge", "--before", "7d").out == "purged 0\n"
    assert cli("dlq", "purge", "--before", "2020-01-31T00:00Z").out == "purged 0\n"
    assert cli("dlq", "purge", "--before", "2099-01-31T00:00Z", "--dry-run").out == "would purge 3\n"
    assert cli("dlq", "purge", "--before", "0s", "--type", "y", "--json").json == {"purged": 1}
    assert cli("dlq", "purge", "--all").out == "purged 2\n"
    assert cli("status", "a").code == 1


def test_a_group_without_a_command_prints_its_help(cli):
    answer = cli("dlq")
    assert answer.code == 2
    assert "replay" in answer.out + answer.err


def test_without_a_queue_all_queues_are_searched(cli, url):
    for queue in ("b", "a", "default"):
        cli("enqueue", "x", "--id", f"in-{queue}", "-q", queue)
        cli("enqueue", "x", "--id", "everywhere", "-q", queue)
        fail(url, queue=queue)
    assert [job["queue"] for job in cli("dlq", "list", "--json").json["jobs"]] == ["a", "b", "default"]
    assert cli("status", "in-b", "--json").json["queue"] == "b"
    several = cli("status", "everywhere")
    assert (several.code, "a, b, default; name one with --queue" in several.err) == (2, True)
    assert cli("status", "nowhere").code == 1
    seen, cursor = [], []
    while True:
        page = cli("list", "--json", "--limit", "2", *cursor).json
        seen += [(job["queue"], job["id"]) for job in page["jobs"]]
        if page["cursor"] is None:
            break
        cursor = ["--cursor", page["cursor"]]
    assert sorted(seen) == sorted((q, id) for q in ("a", "b", "default") for id in (f"in-{q}", "everywhere"))
    assert len(cli("list", "--json", "-q", "a").json["jobs"]) == 2
    assert cli("dlq", "replay", "in-a", "--json").json == {"replayed": 1, "refused": []}
    assert cli("dlq", "purge", "--all", "--json").json == {"purged": 2}
    paused = cli("pause", "a")
    assert paused.code == 0
    assert "PAUSED" in cli("queues").out
