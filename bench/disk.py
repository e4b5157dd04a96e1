"""The disk, for one queue at a time: a folder that can be emptied like a server, and what SQLite alone does there."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.measure import COMMIT, MOVED, SETTLED, Figures

NAME = "SQLite"
COMMITS = 100
BATCH = 100
MOVES = 200

TABLES = (
    "CREATE TABLE rows (n INTEGER); CREATE TABLE ready (id TEXT PRIMARY KEY); CREATE TABLE leased (id TEXT PRIMARY KEY)"
)
TAKE = "DELETE FROM ready WHERE id IN (SELECT id FROM ready ORDER BY id LIMIT ?) RETURNING id"


class Folder:
    """Where a file store is: its URL, and what it takes."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._number = 0
        self.empty()

    @property
    def url(self) -> str:
        return f"file:{self._place}"

    def memory(self) -> int:
        return pages(self._place / "holdfast.db")

    def empty(self) -> None:
        """As new: another folder."""
        self._number += 1
        self._place = self._home / str(self._number)


def pages(path: Path) -> int:
    """Bytes of a database, with what is still in its log; pages that are free are not counted."""
    with closing(sqlite3.connect(path)) as db:
        count, free, size = (
            db.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "freelist_count", "page_size")
        )
    return (count - free) * size


def raw(figures: Figures, path: Path) -> None:
    """The floor under every durable change, one row and one commit; and ids moved, 100 a commit: no jobs, no rules."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(TABLES)
        for n in range(COMMITS):
            began = time.perf_counter()
            db.execute("INSERT INTO rows VALUES (?)", (n,))
            figures.add(COMMIT, NAME, (time.perf_counter() - began) * 1000)
        for measure, settle in ((MOVED, False), (SETTLED, True)):
            db.execute("DELETE FROM leased")
            with _transaction(db):
                db.executemany("INSERT INTO ready VALUES (?)", ((f"{n:026}",) for n in range(BATCH * MOVES)))
            began = time.perf_counter()
            for _ in range(MOVES):
                with _transaction(db):
                    ids = db.execute(TAKE, (BATCH,)).fetchall()
                    db.executemany("INSERT INTO leased VALUES (?)", ids)
                if settle:
                    with _transaction(db):
                        db.executemany("DELETE FROM leased WHERE id = ?", ids)
            figures.add(measure, NAME, BATCH * MOVES / (time.perf_counter() - began))


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    yield
    db.execute("COMMIT")
