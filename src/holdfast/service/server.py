"""Runs the service: sockets, uvicorn, signals, several processes."""

from __future__ import annotations

import asyncio
import resource
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

from msgspec.structs import replace

from holdfast.core.errors import InvalidOption
from holdfast.opening import make_store
from holdfast.service import listening
from holdfast.service.app import Mounted, make_app
from holdfast.service.context import ServiceContext
from holdfast.service.listening import Server
from holdfast.service.settings import ServiceSettings
from holdfast.store import Store
from holdfast.telemetry import http as http_metrics
from holdfast.telemetry.logging import get_logger
from holdfast.worker.signals import on_signal

_log = get_logger("holdfast.service")

Mount = Callable[[ServiceContext], Mounted]


def run(settings: ServiceSettings, sock: socket.socket, ready: Callable[[], None], mount: Mount | None = None) -> None:
    """Serve in this process, on uvloop."""
    listening.run(serve(settings, sock, ready=ready, mount=mount))


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


async def serve(
    settings: ServiceSettings,
    sock: socket.socket,
    *,
    ready: Callable[[], None] | None = None,
    mount: Mount | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Then requests in progress finish, and waiting ones are answered."""
    _raise_file_limit(settings.limits.connections)
    http_metrics.enable()
    async with running(settings, sock, mount=mount) as server:
        if ready is not None:
            ready()
        with on_signal(server.stop):
            await server.ended


class RunningServer:
    """A running server."""

    def __init__(
        self,
        server: Server,
        context: ServiceContext,
        ended: asyncio.Task[None],
        port: int,
        pages: Mounted | None = None,
    ) -> None:
        self._server = server
        self._pages = pages
        self.context = context
        self.ended = ended
        self.port = port

    def stop(self) -> None:
        """Accept no more connections and let requests finish. A second call ends them at once."""
        if self._server.should_exit:
            self._server.force_exit = True
        self._server.should_exit = True
        self.context.stop()
        if self._pages is not None:
            self._pages.stop()


@asynccontextmanager
async def running(
    settings: ServiceSettings, sock: socket.socket, store: Store | None = None, mount: Mount | None = None
) -> AsyncGenerator[RunningServer]:
    """Run a server in the current event loop during the block, and stop it gracefully afterwards.

    `mount` makes the pages below `PAGES`.
    """
    context = ServiceContext(settings, make_store(settings.store) if store is None else store)
    try:
        await context.open()
        pages = None if mount is None else mount(context)
        server = Server(make_app(context, pages), settings.limits, context.connections, settings.proxies)
        ended = asyncio.create_task(server.serve(sockets=[sock]))
        await server.up.wait()
        control = RunningServer(server, context, ended, sock.getsockname()[1], pages)
        try:
            yield control
        finally:
            if not ended.done():
                control.stop()
            await asyncio.wait([ended])
            if pages is not None:
                await pages.close()
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


def _raise_file_limit(connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, max(soft, connections + 1000))
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < connections:
        _log.warning("the limit of open files is below the limit of connections", files=wanted, connections=connections)
