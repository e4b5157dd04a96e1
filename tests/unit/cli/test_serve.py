"""`holdfast serve`, `holdfast token` and `holdfast keys new`, as processes."""

import json
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest

from holdfast.testing.processes import free_port
from tests.unit.cli.support import read_until

KEY = "a shared key that is long enough for all tests here"
ENV = {"HOLDFAST_JWT_HS256_KEY": KEY}


@pytest.fixture
def environ(monkeypatch):
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)


def ask(url, bearer=None, body=None):
    """Status and JSON of an answer."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {bearer}"} if bearer else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def serving(processes, *args, times=1):
    """A server, and its address."""
    server = processes.start("serve", "--port", "0", *args)
    lines = server.wait_for("serving", times)
    return server, re.search(r"http://\S+", lines[-1])[0]


def test_two_processes_serve_what_a_token_allows_and_stop_gracefully(processes, tmp_path, environ):
    server, url = serving(processes, "--store", f"file:{tmp_path}/data", "--processes", "2", times=2)
    made = processes.run("token", "--tenant", "acme", "--scope", "produce,read").out.strip()
    assert ask(f"{url}/v1/jobs", made, {"id": "x"})[0] == 201
    assert ask(f"{url}/v1/queues/default/jobs/x", made)[1]["tenant"] == "acme"
    assert ask(f"{url}/v1/claims", made, {"queues": ["default"]})[1]["code"] == "scope_missing"
    assert ask(f"{url}/v1/queues")[1]["code"] == "token_missing"
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        assert b'route="/v1/jobs",status="201"} 1.0' in answer.read()
    ended = server.end(signal.SIGTERM)
    assert ended.code == 0
    assert all(line["event"] == "request" for line in ended.lines)
    assert made not in ended.out + ended.err


def test_processes_verify_each_others_proofs_of_leases_and_their_keys_are_rotated(processes, tmp_path, environ):
    """Each request is a connection of its own, and any process accepts it."""
    store = f"file:{tmp_path}/data"
    _, url = serving(processes, "--store", store, "--processes", "2", "--no-access-log", times=2)
    made = processes.run("token", "--tenant", "acme", "--scope", "produce,work").out.strip()
    assert ask(f"{url}/v1/jobs:batch", made, {"jobs": [{} for _ in range(10)]})[0] == 200
    assert processes.run("keys", "lease-rotate", "--store", store).out == "2\n"
    for _ in range(10):
        (held,) = ask(f"{url}/v1/claims", made, {"queues": ["default"]})[1]["jobs"]
        lease = {"queue": "default", "id": held["id"], "token": held["token"], "outcome": "complete"}
        assert ask(f"{url}/v1/leases:finish", made, {"leases": [lease]})[1]["items"] == [{"status": "completed"}]
    listed = json.loads(processes.run("keys", "lease-list", "--store", store, "--json").out)
    assert [key["kid"] for key in listed["keys"]] == ["1", "2"]
    assert "newest" in processes.run("keys", "lease-drop", "2", "--store", store).err
    assert processes.run("keys", "lease-drop", "1", "--store", store).code == 0
    shown = processes.run("keys", "lease-list", "--store", store).out
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["2"]


def test_metrics_have_their_own_address(processes, environ, cli):
    port = free_port()
    _, url = serving(
        processes, "--store", "memory:", "--no-access-log", "--metrics-port", str(port), "--metrics-host", "127.0.0.2"
    )
    assert ask(f"{url}/metrics")[1]["code"] == "not_found"
    with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=30) as answer:
        assert b"holdfast_http_requests" in answer.read()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    said = cli("serve", "--store", "memory:", "--gauges-by-tenant", "acme")
    assert (said.code, "--metrics-port" in said.err) == (2, True)
    said = cli("serve", "--store", "memory:", "--metrics-host", "127.0.0.1")
    assert (said.code, "--metrics-port" in said.err) == (2, True)


@pytest.mark.parametrize("count", ["1", "2"])
def test_gauges_are_on_the_port_of_the_metrics_and_not_on_that_of_the_api(processes, tmp_path, environ, count):
    """A queue's name belongs to its tenant, and anyone may read the metrics on the port of the API."""
    store, port = f"file:{tmp_path}/data", free_port()
    made = processes.run("token", "--tenant", "acme", "--scope", "produce").out.strip()
    arguments = ("--store", store, "--no-access-log", "--processes", count)
    server, url = serving(processes, *arguments, times=int(count))
    assert ask(f"{url}/v1/jobs", made, {"queue": "private"})[0] == 201
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        assert b"private" not in answer.read()
    assert server.end().code == 0
    server, url = serving(processes, *arguments, "--metrics-port", str(port), times=int(count))
    wanted = 'holdfast_queue_jobs{queue="private",state="ready"} 1.0'
    read_until(port, "/metrics", lambda _, text: wanted in text)
    assert server.end().code == 0


def test_tokens_are_revoked_listed_and_restored(cli):
    assert cli("token", "revoke", "--tenant", "acme", "--jti", "j1").code == 0
    assert "already revoked: " in cli("token", "revoke", "--tenant", "acme", "--jti", "j1").err
    assert cli("token", "revoke", "--tenant", "acme", "--subject", "w1").code == 0
    assert cli("token", "revoke", "--tenant", "other", "--issued-before", "2030-01-31T12:00Z").code == 0
    assert cli("token", "revoke", "--tenant", "other", "--issued-before", "now").code == 0
    found = [[one["tenant"], one["kind"], one["value"]] for one in cli("token", "revoked", "--json").json["revoked"]]
    assert sorted(found)[:3] == [["acme", "jti", "j1"], ["acme", "sub", "w1"], sorted(found)[2]]
    assert ["other", "issued_before", "1896091200"] in found
    assert "2030-01-31T12:00:00Z" in cli("token", "revoked", "--tenant", "other").out
    assert cli("token", "restore", "--tenant", "other", "--issued-before", "2030-01-31T12:00:00Z").code == 0
    assert cli("token", "restore", "--tenant", "acme", "--jti", "j1").code == 0
    assert "not revoked" in cli("token", "restore", "--tenant", "acme", "--jti", "j1").err
    assert "w1" in cli("token", "revoked", "--tenant", "acme").out
    assert "j1" not in cli("token", "revoked").out
    assert "one of --jti" in cli("token", "revoke", "--tenant", "acme").err
    assert "one of --jti" in cli("token", "revoke", "--tenant", "acme", "--jti", "a", "--subject", "b").err
    assert "--scope" in cli("token", "--tenant", "acme").err
    assert cli("token", "revoke", "--operator", "--subject", "ann").code == 0
    assert "(operators)" in cli("token", "revoked").out
    assert cli("token", "restore", "--operator", "--subject", "ann").code == 0
    assert "not both" in cli("token", "revoke", "--operator", "--tenant", "acme", "--jti", "a").err


def test_a_pair_of_keys_signs_and_checks(processes, tmp_path):
    private, jwks = str(tmp_path / "private.json"), str(tmp_path / "jwks.json")
    for algorithm, path in (("ES256", f"{private}.old"), ("EdDSA", private)):
        answer = processes.run("keys", "new", "--algorithm", algorithm, "--private-key", path, "--jwks", jwks)
        assert (answer.code, answer.out) == (0, "")
    assert '"d"' not in (tmp_path / "jwks.json").read_text()
    assert (tmp_path / "private.json").stat().st_mode & 0o077 == 0
    _, url = serving(processes, "--store", "memory:", "--jwks-url", jwks, "--no-access-log")
    made = processes.run("token", "--tenant", "acme", "--scope", "read", "--private-key", private).out.strip()
    assert ask(f"{url}/v1/queues", made) == (200, {"queues": [], "cursor": None})


@pytest.mark.parametrize(
    "args, said",
    [
        (["serve", "--store", "memory:"], "no key to verify tokens"),
        (["token", "--tenant", "acme", "--scope", "read"], "HOLDFAST_JWT_HS256_KEY"),
        (["keys", "new", "--algorithm", "EdDSA"], "--private-key"),
        (["keys", "new", "--algorithm", "none"], "'none'"),
    ],
)
def test_missing_settings_are_named(cli, args, said):
    answer = cli(*args)
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.parametrize(
    "args, said",
    [
        (["--tenant", "a/b", "--scope", "read"], "tenant"),
        (["--tenant", "acme", "--scope", "everything"], "'everything'"),
        (["--tenant", "acme", "--scope", "read", "--queues", "a b"], "queue"),
    ],
)
def test_a_token_with_invalid_claims_is_not_made(cli, environ, args, said):
    answer = cli("token", *args)
    assert answer.code == 2
    assert said in answer.err
    assert KEY not in answer.err


def test_a_new_shared_key_is_long_enough(cli):
    assert len(cli("keys", "new").out.strip()) >= 43


def test_unreadable_keys_are_named(processes):
    answer = processes.run("serve", "--store", "memory:", "--port", "0", "--jwks-url", "/nowhere/jwks.json")
    assert answer.code == 2
    assert "no keys at /nowhere/jwks.json" in answer.err


def test_several_processes_cannot_use_the_memory_store(processes, environ):
    answer = processes.run("serve", "--store", "memory:", "--processes", "2", "--port", "0")
    assert answer.code == 2
    assert "one process only" in answer.err
