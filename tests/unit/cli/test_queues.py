import signal

import pytest

from tests.unit.cli.support import claim, fail


def test_stats_of_all_queues_or_of_one(cli, url):
    for queue, count in (("default", 3), ("emails", 1)):
        for _ in range(count):
            cli("enqueue", "x", "-q", queue)
    cli("enqueue", "x", "--delay", "1h")
    claim(url)
    fail(url)
    found = cli("stats", "--json").json["queues"]
    assert [one["queue"] for one in found] == ["default", "emails"]
    assert {state: count for state, count in found[0]["counts"].items() if count} == {
        "ready": 1, "scheduled": 1, "leased": 1, "failed": 1,
    }  # fmt: skip
    assert found[0]["oldest_ready_age_s"] >= 0
    assert found[0]["paused"] is False
    one = cli("stats", "emails", "--json").json["queues"]
    assert [stats["queue"] for stats in one] == ["emails"]
    lines = cli("stats").out.splitlines()
    assert lines[0].split()[:5] == ["QUEUE", "READY", "SCHEDULED", "RETRYING", "BLOCKED"]
    assert lines[1].split()[:9] == ["default", "1", "1", "0", "0", "1", "0", "1", "0"]


def test_queues_are_listed_with_short_counts(cli, url):
    assert "No queues yet" in cli("queues").err
    cli("enqueue", "x", "-q", "emails")
    cli("enqueue", "x", "-q", "emails", "--delay", "1h")
    cli("pause", "emails")
    assert cli("queues", "--json").json == {
        "queues": [{"queue": "emails", "waiting": 2, "running": 0, "dead_letters": 0, "paused": True}]
    }
    assert cli("queues").out.splitlines()[1].split() == ["emails", "2", "0", "0", "yes"]


def test_a_paused_queue_gives_out_no_job_until_it_is_resumed(cli, url):
    cli("enqueue", "x", "--id", "j")
    assert cli("pause", "default").out == "paused default\n"
    assert cli("stats", "--json").json["queues"][0]["paused"] is True
    assert claim(url) == []
    assert cli("resume", "default", "--json").json == {"queue": "default", "paused": False}
    assert claim(url) == ["j"]


def test_stats_of_an_unknown_queue_fail_and_suggest_names(cli):
    answer = cli("stats", "emails")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "Error: acme has no queue 'emails': there are no jobs in it\n"
    for queue in ("emails", "reports"):
        cli("enqueue", "x", "-q", queue)
    answer = cli("stats", "email", "--json")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.endswith("\nDid you mean: emails?\n")
    assert cli("stats", "quux").err.endswith("\nQueues of acme: emails, reports.\n")
    assert cli("stats", "quux", "--watch").code == 1
    cli("pause", "later")
    assert cli("stats", "later", "--json").json["queues"][0]["paused"] is True


def test_watching_prints_the_counts_again_when_they_change(cli, processes):
    cli("enqueue", "x")
    process = processes.start("stats", "--watch", "--json")
    assert '"ready":1' in process.stdout.readline()
    cli("enqueue", "x")
    assert '"ready":2' in process.stdout.readline()
    assert process.end(signal.SIGINT).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["stats"], ["status", "a"], ["result", "a"], ["cancel", "a"], ["dlq", "list"], ["events"], ["tenants"],
        ["workers"], ["pause", "q"], ["resume", "q"], ["schedule", "list"], ["trail"],
    ],
)  # fmt: skip
def test_a_mistyped_directory_is_an_error_and_is_not_created(cli, place, command):
    answer = cli(*command, "--store", f"file:{place}/dta")
    assert answer.code == 1
    assert "there is no store in" in answer.err
    assert not (place / "dta").exists()


@pytest.mark.parametrize(
    "command",
    [["enqueue", "x"], ["tenant", "set", "acme", "--weight", "2"], ["schedule", "add", "s", "x", "--every", "1h"]],
)
def test_a_command_that_creates_a_store_says_so(cli, place, command):
    url = f"file:{place}/new"
    assert f"Created a new store: {url}" in cli(*command, "--store", url).err
    assert "Created" not in cli(*command, "--store", url).err


def test_doctor_does_not_call_a_missing_store_healthy(cli, place):
    answer = cli("doctor", f"file:{place}/dta")
    assert answer.code == 1
    assert not (place / "dta").exists()
