"""Runs the service: sockets, uvicorn, signals, several processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from msgspec.structs import replace

from holdfast.core.errors import InvalidOption
from holdfast.opening import make_store
from holdfast.service.app import make_app
from holdfast.service.context import ServiceContext
from holdfast.service.protocol import bounded
from holdfast.service.settings import ServiceSettings
from holdfast.store import Store
from holdfast.telemetry import http as http_metrics
from holdfast.telemetry.logging import get_logger
from holdfast.worker.signals import on_signal

_log = get_logger("holdfast.service")

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


def run(settings: ServiceSettings, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Serve in this process, on uvloop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, sock, ready=ready))


def check(settings: ServiceSettings, processes: int) -> None:
    """Open and close the service once, so that a wrong setting is reported once and not by every process."""

    async def look() -> None:
        context = ServiceContext(replace(settings, upkeep=False), make_store(settings.store))
        if processes > 1 and not context.store.capabilities.many_processes:
            raise InvalidOption("processes", f"{context.store.capabilities.name} works in one process only")
        try:
            await context.open()
        finally:
            await context.close()

    asyncio.run(look())


async def serve(settings: ServiceSettings, sock: socket.socket, *, ready: Callable[[], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Then requests in progress finish, and waiting ones are answered."""
    _raise_file_limit(settings.limits.connections)
    http_metrics.enable()
    async with running(settings, sock) as server:
        if ready is not None:
            ready()
        with on_signal(server.stop):
            await server.ended


class RunningServer:
    """A running server."""

    def __init__(self, server: uvicorn.Server, context: ServiceContext, ended: asyncio.Task[None], port: int) -> None:
        self._server = server
        self.context = context
        self.ended = ended
        self.port = port

    def stop(self) -> None:
        """Accept no more connections and let requests finish. A second call ends them at once."""
        if self._server.should_exit:
            self._server.force_exit = True
        self._server.should_exit = True
        self.context.stop()


@asynccontextmanager
async def running(
    settings: ServiceSettings, sock: socket.socket, store: Store | None = None
) -> AsyncGenerator[RunningServer]:
    """Run a server in the current event loop during the block, and stop it gracefully afterwards."""
    context = ServiceContext(settings, make_store(settings.store) if store is None else store)
    try:
        await context.open()
        server = _Server(_config(settings, context))
        ended = asyncio.create_task(server.serve(sockets=[sock]))
        await server.up.wait()
        control = RunningServer(server, context, ended, sock.getsockname()[1])
        try:
            yield control
        finally:
            if not ended.done():
                control.stop()
            await asyncio.wait([ended])
    finally:
        await context.close()


@contextmanager
def shared_metrics() -> Generator[None]:
    """A directory in which several processes share their metrics. Create it before they start."""
    import os

    with tempfile.TemporaryDirectory(prefix="holdfast-metrics-") as directory:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
        try:
            yield
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to `serve`: uvicorn would raise the signal again at the end and change the exit code."""
        yield


def _config(settings: ServiceSettings, context: ServiceContext) -> uvicorn.Config:
    limits = settings.limits
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    app: Any = make_app(context)
    return uvicorn.Config(
        app,
        http=bounded(limits, context.connections, settings.proxies),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=settings.proxies,
        timeout_graceful_shutdown=int(limits.grace_s),
        backlog=BACKLOG,
    )


def _raise_file_limit(connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, max(soft, connections + 1000))
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < connections:
        _log.warning("the limit of open files is below the limit of connections", files=wanted, connections=connections)
