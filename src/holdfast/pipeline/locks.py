"""File locks: one writer at a time, and a message that names the holder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.core.errors import StoreBusy

_JAVA_TIMEOUT_S = 30.0
"""How long to wait for the Java process of a killed driver to end."""


def take_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed. Returns False if another process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def release_lock(descriptor: int) -> None:
    """Release the lock of an open file."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


class Lock:
    """A lock file. It records its holder: process, host, start time and, if there is one, the Java process."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path

    def check(self, name: str) -> None:
        """Take the lock without recording it. Raises StoreBusy, with the holder, if another process has it."""
        if not take_lock(self._descriptor):
            raise StoreBusy(f"{name} is already running on this lake: {self._holder()}")

    def take(self, name: str) -> None:
        """Take the lock. Raises StoreBusy, with the holder, if another process has it."""
        self.check(name)
        facts = self._facts()
        java = facts.get("java")
        if isinstance(java, int) and facts.get("host") == socket.gethostname():
            self._wait_for(java, name)
        self.record({"pid": os.getpid()})

    def record(self, facts: dict[str, Any]) -> None:
        """Write down more facts about the holder. Without facts, write that there is no holder."""
        known = {"host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
        self._path.write_text(json.dumps({**self._facts(), **known, **facts} if facts else {}))

    def _facts(self) -> dict[str, Any]:
        try:
            return json.loads(self._path.read_text() or "{}")
        except ValueError:
            return {}

    def _holder(self) -> str:
        facts = self._facts()
        return f"process {facts.get('pid', '?')} on {facts.get('host', '?')}, since {facts.get('since', '?')}"

    def _wait_for(self, pid: int, name: str) -> None:
        """Wait for the Java process of a killed driver. It may still be writing, and ends by itself."""
        until = time.monotonic() + _JAVA_TIMEOUT_S
        while _runs_java(pid):
            if time.monotonic() > until:
                raise StoreBusy(f"{name} was killed and left its Java process {pid} behind; end that process first")
            time.sleep(0.05)


def _runs_java(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    with contextlib.suppress(OSError):
        # The system may have given the number to another process.
        return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return True
