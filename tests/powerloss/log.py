"""The log of a disk: what was written, flushed, named and noted, in order."""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["write", "truncate", "sync", "make", "link", "rename", "unlink", "sync_names", "note", "begin"]

_KINDS: tuple[Kind, ...] = get_args(Kind)
_HEAD = struct.Struct("<BQQI")  # kind, inode, offset or size, length of the data


class Record(NamedTuple):
    """One line of the log. The data of names are paths below the root."""

    kind: Kind
    inode: int
    offset: int
    data: bytes


def read(log: Path) -> Iterator[Record]:
    """The records of a log, but for one that was cut short."""
    data, start = log.read_bytes(), 0
    while start + _HEAD.size <= len(data):
        kind, inode, offset, size = _HEAD.unpack_from(data, start)
        start += _HEAD.size
        if start + size <= len(data):
            yield Record(_KINDS[kind], inode, offset, data[start : start + size])
        start += size


class Recorder:
    """Writes the log. A killed process leaves it complete."""

    def __init__(self, log: Path, root: Path, die_at: int | None) -> None:
        self.lock = threading.RLock()
        self._root = os.path.realpath(root)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC)
        self._left: int | None = None
        self._take_down()
        self._left = die_at

    def note(self, what: Any) -> None:
        """Something to remember with this moment; JSON."""
        self.add("note", data=json.dumps(what).encode())

    def add(self, kind: Kind, inode: int = 0, offset: int = 0, data: bytes = b"") -> None:
        """Append one record, or die where the test said so."""
        with self.lock:
            os.write(self._log, _HEAD.pack(_KINDS.index(kind), inode, offset, len(data)) + data)
            if self._left is not None and kind != "note":
                self._left -= 1
                if self._left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    def inside(self, path: str | bytes | os.PathLike[str]) -> str | None:
        """The path below the root, or None if it is elsewhere."""
        path = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - a link is not followed
        if path == self._root:
            return "."
        return os.path.relpath(path, self._root) if path.startswith(self._root + os.sep) else None

    def _take_down(self) -> None:
        """What is there already has been on the disk for long."""
        for folder, folders, files in os.walk(self._root):
            place = Path(folder)
            for name in folders:
                self.add("make", data=str(self.inside(place / name)).encode())
            for path in (place / name for name in files):
                if path.is_file():
                    inode = path.stat().st_ino
                    self.add("link", inode, data=str(self.inside(path)).encode())
                    self.add("write", inode, data=path.read_bytes())
                    self.add("sync", inode)
            self.add("sync_names", data=str(self.inside(place)).encode())
        self.add("begin")
