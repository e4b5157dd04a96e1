"""Metrics on an address of their own, and how much of it a client can have."""

import contextlib
import socket

import pytest

from holdfast.telemetry import exposition

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def port():
    return exposition.serve("127.0.0.1", 0, lambda: b"up 1\n", "text/plain")


def ask(port, request=GET):
    """The whole answer; empty if the connection was closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        return _rest(connection)


def _rest(connection):
    found = b""
    with contextlib.suppress(ConnectionError):
        while some := connection.recv(65536):
            found += some
    return found


def test_the_metrics_server_answers_only_reads_of_metrics(port):
    answer = ask(port)
    assert answer.startswith(b"HTTP/1.0 200")
    assert answer.endswith(b"\r\n\r\nup 1\n")
    assert ask(port, GET.replace(b"/metrics", b"/?a=b")).startswith(b"HTTP/1.0 200")
    assert ask(port, GET.replace(b"/metrics", b"/etc")).startswith(b"HTTP/1.0 404")
    assert ask(port, GET.replace(b"GET", b"POST")).startswith(b"HTTP/1.0 501")


def test_a_check_answers_with_its_problem():
    problems = iter(["", "it is stuck"])
    port = exposition.serve("127.0.0.1", 0, lambda: b"", "text/plain", {"/livez": lambda: next(problems)})
    livez = GET.replace(b"/metrics", b"/livez?verbose")
    for status, text in ((b"200", b"ok\n"), (b"503", b"it is stuck\n")):
        answer = ask(port, livez)
        assert answer.startswith(b"HTTP/1.0 " + status)
        assert answer.endswith(b"\r\n\r\n" + text)
    assert ask(port, GET.replace(b"/metrics", b"/readyz")).startswith(b"HTTP/1.0 404")


def test_a_connection_to_the_metrics_server_has_a_time_limit(port, monkeypatch):
    monkeypatch.setattr(exposition, "CONNECTION_S", 0.05)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
        slow.sendall(b"GET /met")
        assert _rest(slow) == b""


def test_connections_are_bounded_in_number(port):
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(exposition.MAX_CONNECTIONS)
        ]
        # They are taken in order: the next one finds no room.
        assert ask(port) == b""
        silent[0].sendall(GET)
        assert _rest(silent[0]).endswith(b"up 1\n")
