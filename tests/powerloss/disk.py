"""The disk that a log tells of, and what a power cut leaves of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.powerloss.log import Record, read

_Change = tuple[Literal["write", "truncate"], int, bytes]


class _Content:
    """A file: what was flushed of it, and the changes that were not."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[_Change] = []

    def flush(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def after_cut(self, random: Random | None) -> bytes:
        data = bytearray(self.durable)
        for change in [] if random is None else _survivors(self.pending, random):
            _apply(data, change)
        return bytes(data)


def _apply(data: bytearray, change: _Change) -> None:
    kind, offset, new = change
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    if kind == "truncate":
        del data[offset:]
    else:
        data[offset : offset + len(new)] = new


def _survivors(pending: list[_Change], random: Random) -> list[_Change]:
    """What of the unflushed changes reached the disk: a first part of them, or any, whole or torn."""
    if random.random() < 1 / 3:
        return pending[: random.randint(0, len(pending))]
    sector, odds = random.choice((512, 4096, 1 << 20)), random.choice((0.2, 0.5, 0.9))
    pieces: list[_Change] = []
    for kind, offset, data in pending:
        if kind == "truncate":
            pieces.append((kind, offset, data))
        start = 0
        while start < len(data):
            stop = min(len(data), (offset + start) // sector * sector + sector - offset)
            pieces.append(("write", offset + start, data[start:stop]))
            start = stop
    return [piece for piece in pieces if random.random() < odds]


class _Folder:
    """The names in a directory: those that were flushed, and the steps since then."""

    def __init__(self) -> None:
        self.durable: dict[str, _Folder | _Content] = {}
        self.pending: list[dict[str, _Folder | _Content | None]] = []

    def names(self, steps: int | None = None) -> dict[str, _Folder | _Content]:
        """The names after this many steps; by default now."""
        names: dict[str, _Folder | _Content | None] = dict(self.durable)
        for step in self.pending[:steps]:
            names.update(step)
        return {name: what for name, what in names.items() if what is not None}

    def flush(self) -> None:
        self.durable = self.names()
        self.pending.clear()

    def restore(self, into: Path, random: Random | None) -> None:
        for name, what in self.names(0 if random is None else random.randint(0, len(self.pending))).items():
            if isinstance(what, _Folder):
                (into / name).mkdir()
                what.restore(into / name, random)
            else:
                (into / name).write_bytes(what.after_cut(random))


class Disk:
    """The disk that a log tells of."""

    def __init__(self, log: Path) -> None:
        self.records = list(read(log))

    def moments(self) -> range:
        """The moments at which the power can be cut: after this many records."""
        begin = next(n for n, record in enumerate(self.records) if record.kind == "begin")
        return range(begin + 1, len(self.records) + 1)

    def cut(self, moment: int, into: Path, random: Random | None = None) -> list[Any]:
        """Make `into` the root as it may be after a power cut at `moment`; the notes taken before it.

        Without `random` nothing survives that was not flushed.
        """
        replay = _Replay()
        for record in self.records[:moment]:
            replay.step(record)
        into.mkdir(parents=True)
        replay.root.restore(into, random)
        return replay.notes


class _Replay:
    """The disk at one moment, step by step."""

    def __init__(self) -> None:
        self.root = _Folder()
        self.notes: list[Any] = []
        self._folders = {".": self.root}
        self._contents: dict[int, _Content] = {}  # By inode; one that is linked anew begins a new life.

    def step(self, record: Record) -> None:
        kind, inode, offset, data = record
        if kind == "write" or kind == "truncate":  # noqa: PLR1714 - so that the type checker sees it
            self._contents[inode].pending.append((kind, offset, data))
        elif kind == "sync":
            self._contents[inode].flush()
        elif kind == "note":
            self.notes.append(json.loads(data))
        elif kind != "begin":
            self._name(record, data.decode())

    def _name(self, record: Record, path: str) -> None:
        if record.kind == "sync_names":
            self._folders[path].flush()
        elif record.kind == "make":
            self._folders[path] = _Folder()
            self._set(path, self._folders[path])
        elif record.kind == "link":
            self._contents[record.inode] = _Content()
            self._set(path, self._contents[record.inode])
        elif record.kind == "unlink":
            self._set(path, None)
        else:
            old, new = map(os.path.split, path.split("\0"))
            folder = self._folders[old[0] or "."]
            what = folder.names()[old[1]]
            if old[0] == new[0]:  # In one step: a name is never lost on the way.
                folder.pending.append({old[1]: None, new[1]: what})
            else:
                self._set(f"{new[0]}/{new[1]}", what)
                folder.pending.append({old[1]: None})

    def _set(self, path: str, what: _Folder | _Content | None) -> None:
        folder, name = os.path.split(path)
        self._folders[folder or "."].pending.append({name: what})
