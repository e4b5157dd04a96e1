"""Sockets, and uvicorn as all servers of Holdfast run it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import uvicorn

from holdfast.core.errors import InvalidOption
from holdfast.service.protocol import bounded
from holdfast.service.settings import Limits
from holdfast.service.shares import Shares

BACKLOG = 2048


def listen(host: str, port: int, stalled_s: float) -> socket.socket:
    """A listening socket. Raises InvalidOption."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Connections inherit the options. Without TCP_NODELAY an answer in two packets waits 40 ms for the acknowledgement
    # of the first; asyncio sets it only on sockets whose protocol is named.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(AttributeError, OSError):
            # The kernel closes a connection whose peer accepts no more data.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled_s * 1000))
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise InvalidOption("port", f"cannot listen on {host}:{port}: {error.strerror}") from None
    sock.set_inheritable(True)
    return sock


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a server's coroutine on uvloop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Server(uvicorn.Server):
    """A server that says when it is up, and leaves signals to its caller."""

    def __init__(self, app: Any, limits: Limits, connections: Shares, proxies: str = "") -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            app,
            http=bounded(limits, connections, proxies),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            timeout_graceful_shutdown=int(limits.grace_s),
            backlog=BACKLOG,
        )
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the caller: uvicorn would raise the signal again at the end and change the exit code."""
        yield
