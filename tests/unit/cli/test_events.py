import json
import signal

import pytest

from tests.unit.cli.support import fail


def test_events_are_printed_as_json_lines(cli, url):
    cli("enqueue", "x", "--id", "j")
    fail(url)
    lines = cli("events", "--json").lines
    assert [line["kind"] for line in lines] == ["enqueued", "claimed", "failed"]
    assert set(lines[0]) == {
        "kind", "job_id", "queue", "tenant", "type", "at", "attempt", "token", "worker_id", "offset", "data",
        "number",
    }  # fmt: skip
    assert lines[2]["data"]["error"]["message"] == "boom"
    rest = cli("events", "--json", "--after", lines[0]["offset"]).lines
    assert rest == lines[1:]
    assert cli("events", "--json", "--after", "end").out == ""


def test_events_are_filtered(cli, url):
    cli("enqueue", "x", "--id", "a")
    cli("enqueue", "x", "--id", "b", "-q", "emails")
    fail(url)
    assert [line["job_id"] for line in cli("events", "--json", "--kind", "failed,enqueued").lines] == ["a", "b", "a"]
    assert [line["kind"] for line in cli("events", "--json", "--id", "b").lines] == ["enqueued"]
    assert {line["queue"] for line in cli("events", "--json", "--queue", "emails").lines} == {"emails"}


def test_events_are_printed_as_plain_lines(cli, url):
    cli("enqueue", "x", "--id", "j")
    fail(url, message="two\nlines")
    lines = cli("events").out.splitlines()
    assert len(lines) == 3
    assert lines[0].split()[1:] == ["enqueued", "default/j", "x"]
    assert lines[2].endswith("attempt=1  worker=w1  reason=permanent  ValueError: two\\nlines")


@pytest.mark.parametrize("args", [("--kind", "nothing"), ("--after", "nowhere")])
def test_an_invalid_kind_or_offset_is_wrong_usage(cli, args):
    cli("enqueue", "x")
    answer = cli("events", *args)
    assert answer.code == 2
    assert args[1] in answer.err


def test_following_shows_new_events_until_it_is_interrupted(cli, processes):
    cli("enqueue", "x", "--id", "first")
    process = processes.start("events", "--follow", "--json")
    assert json.loads(process.stdout.readline())["job_id"] == "first"
    cli("enqueue", "x", "--id", "second")
    assert json.loads(process.stdout.readline())["job_id"] == "second"
    answer = process.end(signal.SIGINT)
    assert (answer.code, answer.err) == (0, "")


def test_the_tail_has_the_last_matching_events(cli, url):
    for id in "abc":
        cli("enqueue", "x", "--id", id)
    fail(url)
    assert [line["kind"] for line in cli("events", "--json", "--tail", "2").lines] == ["claimed", "failed"]
    assert [line["job_id"] for line in cli("events", "--json", "--tail", "2", "--kind", "enqueued").lines] == ["b", "c"]
    assert cli("events", "--tail", "0").code == 2
