"""Stores of each kind for programs that tests can be run as: what differs between kinds is in one table."""

import contextlib
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager

from holdfast.testing.fdb.server import FdbServer
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.servers import ValkeyServer


@contextlib.contextmanager
def _file() -> Generator[str]:
    with tempfile.TemporaryDirectory() as directory:
        yield f"file:{directory}/store"


@contextlib.contextmanager
def _valkey() -> Generator[str]:
    with ValkeyServer() as server:
        yield server.url()


@contextlib.contextmanager
def _postgres() -> Generator[str]:
    with PostgresServer(durable=False) as server:
        yield server.url()


@contextlib.contextmanager
def _fdb() -> Generator[str]:
    with FdbServer(processes=3) as server:
        yield server.url()


PLACES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "file": _file,
    "valkey": _valkey,
    "postgres": _postgres,
    "fdb": _fdb,
}
"""By kind: opens a place for a store and gives its URL."""
