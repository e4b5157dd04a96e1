"""One writer thread that commits in groups, and concurrent readers.

A change is a function of a Transaction. Changes queue up for the writer. It takes all that are queued, runs each in its
own savepoint of one SQLite transaction, commits once, and only then answers: an acknowledged change is on the disk. The
writer holds the lock between processes for each group.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import queue
import sqlite3
import threading
import weakref
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.core import failpoint
from holdfast.core.errors import StoreMismatch, StoreUnavailable
from holdfast.core.job import Job
from holdfast.extensions import Deliver
from holdfast.store import Hint, Listener, Signal
from holdfast.stores.file import database, modes, notifications
from holdfast.stores.file.handoff import FileInbox
from holdfast.stores.file.sql import SQL
from holdfast.stores.file.subscribers import Subscribers
from holdfast.stores.file.transaction import FileSettings, LeaseCache, Transaction
from holdfast.stores.file.waiters import WaiterTable
from holdfast.stores.file.wal import WalExtender

T = TypeVar("T")

_logger = logging.getLogger("holdfast")

GROUP = 64
"""The most changes in one commit: it limits how long the lock is held."""


class _PendingChange(Generic[T]):
    """A change that is queued for the writer, and the future of its caller."""

    __slots__ = ("_free", "change", "error", "future", "loop", "result")

    def __init__(self, change: Callable[[Transaction], T], loop: asyncio.AbstractEventLoop) -> None:
        self.change = change
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()
        self._free = threading.Lock()
        self.result: T | None = None
        self.error: BaseException | None = None

    def start(self) -> bool:
        """Whether the writer should run it: the caller has neither given up nor been canceled."""
        return not self.future.cancelled() and self._free.acquire(blocking=False)

    def give_up(self) -> None:
        """Answer StoreBusy, unless the writer has started it: then the caller waits for the result."""
        if not self.future.done() and self._free.acquire(blocking=False):
            self.future.set_exception(database.busy())


class _Guarded:
    """A connection, and the lock that is held while it is in use."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.guard = threading.RLock()

    def close(self) -> None:
        with self.guard:
            self.db.close()


class Engine:
    """The open database of one process. Shared by all its handles; safe from any thread."""

    def __init__(self, directory: Path, settings: FileSettings) -> None:
        self.path = directory / database.NAME
        self.settings = settings
        self._inbox_folder = directory / "inboxes"
        self._calls: queue.SimpleQueue[_PendingChange[Any] | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._ending = threading.Lock()
        self._users = 1
        self._users_lock = threading.Lock()
        self._readers = ThreadPoolExecutor(2, "holdfast-file-reader")
        self._local = threading.local()
        self._lease_cache = LeaseCache()
        self._wal = WalExtender(self.path)
        self._subscribers = Subscribers(directory / "notifications")
        self.inboxes: dict[str, FileInbox] = {}
        self._inode = database.mark_open(self.path)
        with contextlib.ExitStack() as undo, database.opening():
            undo.callback(database.mark_closed, self._inode)
            self._db = database.connect(self.path)
            undo.callback(self._db.close)
            with database.translated(self.path):
                self._lock_file = database.open_lock(directory, group=modes.is_shared(self.path))
                undo.callback(os.close, self._lock_file)
                self._waiters = WaiterTable(directory, self.inboxes)
            self._connections = [_Guarded(self._db)]
            _forks.engines.add(self)
            undo.pop_all()
        self._thread = threading.Thread(target=self._write, name="holdfast-file-writer", daemon=True)
        self._thread.start()

    # Calls -----------------------------------------------------------------------------------------------

    async def change(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in the next group. Returns when it is on the disk."""
        self._check_open()
        loop = asyncio.get_running_loop()
        call = _PendingChange(change, loop)
        self._calls.put(call)
        timer = loop.call_later(database.BUSY_S, call.give_up)
        try:
            return await call.future
        finally:
            timer.cancel()

    async def read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on a snapshot, concurrently with the writer."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, read)

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Call `listener` after changes by this process and, through a FIFO, by others."""
        self._check_open()
        return self._subscribers.listen(listener, hints)

    def open_inbox(self, deliver: Deliver) -> FileInbox:
        """An inbox for a worker, in the current event loop."""
        self._check_open()
        self._drop_dead_inboxes()
        notifications.sweep(self._inbox_folder)
        inbox = FileInbox(self, self._inbox_folder, deliver)
        self.inboxes[inbox.name] = inbox
        return inbox

    def _drop_dead_inboxes(self) -> None:
        """End the inboxes whose event loop was closed first: other processes would continue to send jobs to them."""
        for inbox in list(self.inboxes.values()):
            if inbox.is_dead:
                inbox.end()

    def remember(self, job: Job, lane: int) -> None:
        """Cache the lease of a job that was handed off to this process. From any thread."""
        self._lease_cache.delivered.append((job.snapshot(), lane))

    def join(self) -> None:
        """Add a handle."""
        with self._users_lock:
            self._users += 1

    def leave(self) -> None:
        """Remove a handle. The last one closes the engine. From any thread."""
        with self._users_lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.close()

    def close(self) -> None:
        """Finish the queued changes, then close everything.

        Raises StoreBusy if another process holds the lock for too long. The writer then closes everything when it ends.
        """
        if self._closed:
            return
        self._closed = True
        self._subscribers.closed = True
        if self._pid != os.getpid():
            return  # Everything belongs to the process that we were forked from.
        self._subscribers.close_fifos()
        for inbox in list(self.inboxes.values()):
            inbox.end()
        self._calls.put(None)
        self._thread.join(database.BUSY_S)
        if self._thread.is_alive() and self._ending.acquire(blocking=False):
            raise database.busy()
        self._close_files()

    def _close_files(self) -> None:
        self._readers.shutdown(wait=True)
        for connection in reversed(self._connections):
            connection.close()
        database.mark_closed(self._inode)
        os.close(self._lock_file)
        self._waiters.close()
        self._subscribers.close_notifier()
        _forks.engines.discard(self)

    def is_frozen(self) -> bool:
        """Whether the clock is frozen, for tests. This is decided when the store is created."""
        with database.translated(self.path), self._connections[0].guard:
            return self._db.execute(SQL["counters"]).fetchone()[-1] is not None

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise StoreUnavailable("the store was opened before this process was forked; open it again in the child")
        if self._closed:
            raise StoreUnavailable("the store is closed")

    # Forks ------------------------------------------------------------------------------------------------

    # SQLite in a forked child believes that it holds locks, but the child has none. It would write to a log that other
    # processes take for unused and delete. So a fork waits until no thread is inside SQLite, and the child first closes
    # every inherited connection. Then it can open the store again.

    def before_fork(self) -> None:
        """Wait until no connection is in use."""
        for connection in self._connections:
            connection.guard.acquire()

    def after_fork_in_parent(self) -> None:
        """Let the connections be used again."""
        for connection in self._connections:
            connection.guard.release()

    def after_fork_in_child(self) -> None:
        """Close everything inherited, also the descriptor that would keep the lock held."""
        for connection in self._connections:
            connection.close()
        os.close(self._lock_file)
        self._waiters.close()
        self._subscribers.forked()
        for inbox in self.inboxes.values():
            inbox.forked()

    # Writing ----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._commit_groups()
        if not self._ending.acquire(blocking=False):
            self._close_files()

    def _commit_groups(self) -> None:
        while (first := self._calls.get()) is not None:
            group = [first]
            last = False
            with contextlib.suppress(queue.Empty):
                while len(group) < GROUP:
                    call = self._calls.get_nowait()
                    if call is None:
                        last = True
                        break
                    group.append(call)
            with contextlib.suppress(OSError):  # A FIFO may be closed already; the writer thread must not end.
                self._drop_dead_inboxes()
            committed = self._commit(group)
            if last:
                return
            if committed and self._wal.is_short():
                self._extend_wal()

    def _commit(self, group: list[_PendingChange[Any]]) -> bool:
        """Run and commit a group, and answer its callers. Returns whether the commit succeeded."""
        signals: list[Signal] = []
        committed = False
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            try:
                with database.translated(self.path), self._connections[0].guard:
                    signals = self._run(group)
                    committed = True
            finally:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        except BaseException as error:  # noqa: BLE001 - the callers get it; the thread must not end
            for call in group:
                call.error = call.error or error
        # Notify first: to wake the callers' threads can take long.
        try:
            if signals:
                self._subscribers.notify(signals)
        except Exception:  # the change is committed, and the thread must not end
            _logger.exception("could not notify listeners of a change")
        finally:
            _answer(group)
        return committed

    def _extend_wal(self) -> None:
        """Make the log longer after the callers have their answers: the next commits flush faster."""
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            try:
                with contextlib.suppress(sqlite3.Error), self._connections[0].guard:
                    self._db.execute("BEGIN IMMEDIATE")
                    try:
                        if database.is_same_file(self.path, self._inode):
                            self._wal.extend()
                    finally:
                        self._db.execute("ROLLBACK")
            finally:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        except Exception:  # nothing depends on it, and the thread must not end
            _logger.exception("could not extend the write-ahead log")

    def _run(self, group: list[_PendingChange[Any]]) -> list[Signal]:
        # If the file was replaced, what is written to the old one is lost.
        self._check_file()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            signals: list[Signal] = []
            database.check_layout(self.path, self._db)
            transaction = Transaction(self._db, self._lease_cache, self.settings, self._waiters)
            for call in group:
                if call.start():
                    self._run_one(transaction, call, alone=len(group) == 1)
                    signals += transaction.take_signals()
            transaction.save_counters()
            failpoint.hit("file.before_commit")
            self._waiters.before_commit()
            self._db.execute("COMMIT")
        except BaseException:
            # The cache may name lanes that are now rolled back.
            self._lease_cache.clear()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._waiters.after_rollback()
            raise
        failpoint.hit("file.after_commit")
        self._waiters.after_commit()
        failpoint.hit("file.after_sending")
        return signals

    def _check_file(self) -> None:
        """Raise StoreMismatch if the path names another file by now: old and new connections would differ."""
        if not database.is_same_file(self.path, self._inode):
            raise StoreMismatch(f"{self.path} was removed or replaced while it was open; restart this process")

    def _run_one(self, transaction: Transaction, call: _PendingChange[Any], *, alone: bool) -> None:
        if not alone:  # A single change is rolled back with its transaction.
            self._db.execute("SAVEPOINT call")
        try:
            call.result = call.change(transaction)
            transaction.keep()
            if not alone:
                self._db.execute("RELEASE call")
        except sqlite3.Error:
            raise  # The disk failed, not this change: the whole group fails.
        except BaseException as error:
            call.error = database.translate(error, self.path) if isinstance(error, database.UNREADABLE) else error
            if alone:
                raise
            # The error concerns this change only, and is raised at its caller.
            self._db.execute("ROLLBACK TO call")
            self._db.execute("RELEASE call")
            transaction.forget()
            self._lease_cache.clear()

    # Reading ----------------------------------------------------------------------------------------------

    def _reader(self) -> _Guarded:
        reader: _Guarded | None = getattr(self._local, "reader", None)
        if reader is None:
            with database.opening():
                reader = self._local.reader = _Guarded(database.connect(self.path, read_only=True))
                self._connections.append(reader)
        return reader

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        self._check_file()
        reader = self._reader()
        with database.translated(self.path), reader.guard:
            db = reader.db
            db.execute("BEGIN")
            try:
                database.check_layout(self.path, db)
                return read(db)
            finally:
                if db.in_transaction:  # Some errors end it.
                    db.execute("ROLLBACK")


def _answer(group: list[_PendingChange[Any]]) -> None:
    """Answer the callers, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_PendingChange[Any]]] = {}
    for call in group:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, calls in by_loop.items():
        with contextlib.suppress(RuntimeError):  # The event loop has been closed.
            loop.call_soon_threadsafe(_resolve, calls)


def _resolve(calls: list[_PendingChange[Any]]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)


class _Forks:
    """Pauses the engines of a process while it forks."""

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._paused: list[Engine] = []

    def before(self) -> None:
        database.before_fork()
        self._paused = list(self.engines)
        for engine in self._paused:
            engine.before_fork()

    def in_parent(self) -> None:
        for engine in self._paused:
            engine.after_fork_in_parent()
        self._paused = []
        database.after_fork_in_parent()

    def in_child(self) -> None:
        for engine in self._paused:
            engine.after_fork_in_child()
        self.__init__()
        database.after_fork_in_child()


_forks = _Forks()
os.register_at_fork(before=_forks.before, after_in_parent=_forks.in_parent, after_in_child=_forks.in_child)
