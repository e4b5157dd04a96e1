"""A Valkey server without persistence, for one queue at a time; and what it used."""

from __future__ import annotations

from typing import Self

import redis

from holdfast.testing.servers import ValkeyServer


class Server:
    """The running server: its URL, a client to look at it, and what it used."""

    def __init__(self) -> None:
        self._server = ValkeyServer(loglevel="warning")
        self.url = f"redis://127.0.0.1:{self._server.port}"
        self.client = redis.Redis(port=self._server.port, decode_responses=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.close()

    @property
    def version(self) -> str:
        return self.client.info("server")["valkey_version"]

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        used = self.client.info("cpu")
        return used["used_cpu_user"] + used["used_cpu_sys"]

    def memory(self) -> int:
        return self.client.info("memory")["used_memory"]

    def empty(self) -> None:
        """As new: no keys and no scripts."""
        self.client.flushall()
        self.client.script_flush()
