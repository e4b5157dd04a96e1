"""Lists by time, and cancel by filter."""

import json

import pytest

from tests.unit.cli.support import fail


@pytest.fixture
def filled(cli, url):
    """A dead letter, and waiting jobs of two types in two queues."""
    cli("enqueue", "x", "--id", "dead")
    fail(url, 1)
    for id, queue, type in (("one", "b", "x"), ("two", "a", "y"), ("three", "b", "y")):
        cli("enqueue", type, "--id", id, "--queue", queue, "--delay", "1h")


def listed(cli, *options):
    return [job["id"] for job in cli("list", "--newest", *options, "--json").json["jobs"]]


def test_a_list_by_time_shows_the_latest_first_across_queues(cli, filled):
    assert listed(cli) == ["three", "two", "one", "dead"]
    assert listed(cli, "-q", "b") == ["three", "one"]
    assert listed(cli, "--type", "y", "--all") == ["three", "two"]
    assert listed(cli, "--error", "boom") == ["dead"]
    assert listed(cli, "--id", "t") == ["three", "two"]
    assert listed(cli, "--until", "0s") == ["dead"]
    assert listed(cli, "--state", "failed,ready") == ["dead"]
    page = cli("list", "--newest", "--limit", "3", "--json").json
    assert listed(cli, "--cursor", page["cursor"]) == ["dead"]
    answer = cli("list", "--id", "t")
    assert (answer.code, answer.out) == (2, "")
    assert "newest" in answer.err


def test_jobs_are_canceled_by_filter_after_a_dry_run(cli, filled):
    dry = cli("cancel", "--type", "y", "--dry-run", "--json").json
    sample = [{"queue": "b", "id": "three"}, {"queue": "a", "id": "two"}]
    assert dry == {"dry_run": True, "matching": 2, "more": False, "sample": sample}
    assert cli("cancel", "--type", "y", "--dry-run").out == "would cancel 2\n"
    assert listed(cli, "--state", "canceled") == []
    assert cli("cancel", "--type", "y", "-q", "b").out == "canceled 1\n"
    assert cli("cancel", "--all", "--json").json == {"canceled": 2, "refused": {}}
    assert set(listed(cli, "--state", "canceled")) == {"one", "two", "three"}


@pytest.mark.parametrize("options", [(), ("one", "--all"), ("one", "--dry-run"), ("--running",), ("--dry-run",)])
def test_a_cancel_says_what_to_choose(cli, filled, options):
    answer = cli("cancel", *options)
    assert (answer.code, answer.out) == (2, "")
    assert listed(cli, "--state", "canceled") == []


def test_a_cancel_by_filter_is_in_the_trail(cli, filled, tmp_path, monkeypatch):
    path = tmp_path / "audit.log"
    monkeypatch.setenv("HOLDFAST_AUDIT_LOG", str(path))
    cli("cancel", "--type", "y", "--dry-run")
    cli("cancel", "--type", "y")
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["action"], line["type"], line["answers"]) == ("jobs.cancel", "y", {"canceled": 2})
