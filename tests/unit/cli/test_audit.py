"""Who did what by a command: lines in the file that HOLDFAST_AUDIT_LOG names."""

import getpass
import json
import signal
import socket

import pytest

from tests.unit.cli.support import fail
from tests.unit.cli.test_serve import ENV, ask, serving


@pytest.fixture
def trail(place, monkeypatch):
    """The lines written since the last call."""
    path = place / "audit.log"
    monkeypatch.setenv("HOLDFAST_AUDIT_LOG", str(path))

    def read():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert path.stat().st_mode & 0o077 == 0
        path.write_text("")
        for line in lines:
            assert (line["via"], line["sub"], line["address"]) == ("cli", getpass.getuser(), socket.gethostname())
            assert (line["store"], line["logger"]) == (f"file:{place}/data", "holdfast.audit")
        return lines

    return read


def acts(lines, *names):
    return [(line["action"], line["outcome"], *(line.get(name) for name in names)) for line in lines]


def test_the_events_of_a_command_name_the_user(cli, url, monkeypatch):
    for id in "abcd":
        cli("enqueue", "t", "--id", id, "--max-attempts", "1")
    cli("cancel", "d")
    cli("cancel", "--id", "c")
    fail(url, 2)
    with monkeypatch.context() as patch:
        patch.setenv("LOGNAME", "ann\tlee")
        cli("dlq", "replay", "a")
        cli("dlq", "purge", "--all")
    events = [json.loads(line) for line in cli("events", "--json").out.splitlines()]
    acted = [(event["kind"], event["job_id"], event["data"]["by"]) for event in events if "by" in event["data"]]
    me = f"cli:{getpass.getuser()}"
    assert acted == [
        ("canceled", "d", me),
        ("canceled", "c", me),
        ("replayed", "a", "cli:ann?lee"),
        ("purged", "b", "cli:ann?lee"),
    ]


def test_commands_that_change_data_are_in_the_trail(cli, url, trail):
    cli("pause", "default")
    cli("resume", "default")
    assert acts(trail(), "tenant", "queue") == [
        ("queue.pause", "done", "acme", "default"),
        ("queue.resume", "done", "acme", "default"),
    ]
    for id in "abc":
        cli("enqueue", "t", "--id", id, "--max-attempts", "1", "--payload", '"classified"')
    cli("cancel", "c")
    assert cli("cancel", "nowhere").code == 1
    fail(url, 2)
    cli("dlq", "replay", "--all", "--dry-run")
    assert cli("dlq", "replay", "a", "nowhere").code == 1
    cli("dlq", "purge", "--all", "--dry-run")
    cli("dlq", "purge", "--error", "boom")
    lines = trail()
    assert acts(lines, "id", "ids", "count", "answers") == [
        ("job.cancel", "done", "c", None, None, {"canceled": 1}),
        ("job.cancel", "job_not_found", "nowhere", None, None, None),
        ("dead_letters.replay", "done", None, ["a", "nowhere"], 2, {"replayed": 1, "job_not_found": 1}),
        ("dead_letters.purge", "done", None, None, 1, None),
    ]
    assert "classified" not in json.dumps(lines)
    cli("tenant", "set", "globex", "--weight", "2")
    cli("schedule", "add", "nightly", "t", "--cron", "30 2 * * *", "--payload", '"classified"')
    cli("schedule", "remove", "nightly")
    cli("schedule", "remove", "nightly")
    lines = trail()
    assert acts(lines, "tenant", "name", "weight", "cron") == [
        ("tenant.set", "done", "globex", None, 2.0, None),
        ("schedule.put", "done", "acme", "nightly", None, "30 2 * * *"),
        ("schedule.remove", "done", "acme", "nightly", None, None),
        ("schedule.remove", "job_not_found", "acme", "nightly", None, None),
    ]
    assert "classified" not in json.dumps(lines)


def test_a_tenant_that_moves_is_in_the_trail(cli, url, place, trail):
    cli("enqueue", "t", "--payload", "1")
    assert cli("move", url, f"file:{place}/other", "--wait", "1").code == 0
    (line,) = trail()
    assert (line["action"], line["target"], line["count"]) == ("tenant.move", f"file:{place}/other", 1)


def test_a_command_that_cannot_write_to_the_trail_does_nothing(cli, place, monkeypatch):
    cli("enqueue", "t")
    monkeypatch.setenv("HOLDFAST_AUDIT_LOG", str(place / "nowhere" / "audit.log"))
    answer = cli("pause", "default")
    assert (answer.code, "nothing was done" in answer.err) == (2, True)
    monkeypatch.delenv("HOLDFAST_AUDIT_LOG")
    assert cli("stats", "default", "--json").json["queues"][0]["paused"] is False


def test_the_service_prints_the_trail_without_an_access_log_too(processes, tmp_path, monkeypatch):
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    server, url = serving(processes, "--store", f"file:{tmp_path}/data", "--no-access-log")
    made = processes.run("token", "--tenant", "acme", "--scope", "admin").out.strip()
    assert ask(f"{url}/v1/queues/q/pause", made, {})[0] == 400
    ended = server.end(signal.SIGTERM)
    (line,) = ended.lines
    assert (line["logger"], line["action"], line["outcome"]) == ("holdfast.audit", "queue.pause", "invalid_request")
    assert line["jti"]
    assert made not in ended.out + ended.err


def test_tokens_and_keys_are_in_the_trail(cli, place, monkeypatch):
    """The maker and the tenant of a token; never the token."""
    path = place / "audit.log"
    monkeypatch.setenv("HOLDFAST_AUDIT_LOG", str(path))
    monkeypatch.setenv("HOLDFAST_JWT_HS256_KEY", "k" * 40)
    made = cli("token", "--scope", "produce,admin", "--queues", "mail", "--subject", "ci", "--ttl", "5m").out.strip()
    assert cli("token", "--scope", "everything").code == 2
    cli("token", "revoke", "--subject", "ci")
    cli("token", "restore", "--subject", "ci")
    cli("keys", "lease-rotate")
    cli("keys", "lease-drop", "1")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert acts(lines, "tenant", "of", "value", "kid") == [
        ("token.sign", "done", "acme", "ci", None, None),
        ("token.sign", "invalid_option", "acme", None, None, None),
        ("token.revoke", "done", "acme", None, "ci", None),
        ("token.restore", "done", "acme", None, "ci", None),
        ("lease_keys.rotate", "done", "acme", None, None, None),
        ("lease_keys.drop", "done", "acme", None, None, "1"),
    ]
    assert (lines[0]["scopes"], lines[0]["queues"], lines[0]["lifetime_s"]) == (["produce", "admin"], ["mail"], 300.0)
    assert made.rpartition(".")[2] not in path.read_text()
