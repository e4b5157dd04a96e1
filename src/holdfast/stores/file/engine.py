"""One writer thread that commits in groups, and readers beside it.

Changes are functions of a Transaction. They queue up for the writer; it takes what has gathered, runs each in a
savepoint of its own inside one SQLite transaction, commits once, and only then answers: an acknowledged change is on
the disk. Between processes one file lock is held for the length of a group.
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
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.core import failpoint
from holdfast.core.errors import StoreMismatch, StoreUnavailable
from holdfast.core.job import Job
from holdfast.extensions import Deliver
from holdfast.store import Hint, Listener, Signal
from holdfast.stores.file import database, modes
from holdfast.stores.file import notifications as wakeup
from holdfast.stores.file.handoff import FileInbox
from holdfast.stores.file.sql import SQL
from holdfast.stores.file.transaction import Memory, Settings, Transaction
from holdfast.stores.file.waiters import Book
from holdfast.stores.file.wal import Log

T = TypeVar("T")

_logger = logging.getLogger("holdfast")

GROUP = 64
"""How many calls one commit carries at most: a bound on how long the lock is held."""
LINGER_S = 5.0
"""How long hints still come that nobody wants any more: who waited once mostly waits again, and names cost a commit."""


class _Call(Generic[T]):
    """A change that waits for the writer, and the future of whoever asked for it."""

    __slots__ = ("_free", "change", "error", "future", "loop", "result")

    def __init__(self, change: Callable[[Transaction], T], loop: asyncio.AbstractEventLoop) -> None:
        self.change = change
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()
        self._free = threading.Lock()
        self.result: T | None = None
        self.error: BaseException | None = None

    def start(self) -> bool:
        """Whether the writer is to run it: neither given up nor canceled."""
        return not self.future.cancelled() and self._free.acquire(blocking=False)

    def give_up(self) -> None:
        """Answer StoreBusy, unless the writer has begun with it: then its answer is on the way."""
        if not self.future.done() and self._free.acquire(blocking=False):
            self.future.set_exception(database.busy())


class _Guarded:
    """A connection and the guard that whoever uses it holds."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.guard = threading.RLock()

    def close(self) -> None:
        with self.guard:
            self.db.close()


class Engine:
    """The open database of one process. Shared by all handles on it, and safe from any thread."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.path = directory / database.NAME
        self.settings = settings
        self._folder = directory / "wake"
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._ending = threading.Lock()
        self._users = 1
        self._users_lock = threading.Lock()
        self._readers = ThreadPoolExecutor(2, "holdfast-file-reader")
        self._local = threading.local()
        self._memory = Memory()
        self._log = Log(self.path)
        self._listeners: dict[object, tuple[asyncio.AbstractEventLoop, Listener, frozenset[Hint]]] = {}
        self._ears: dict[asyncio.AbstractEventLoop, wakeup.Ear] = {}
        self._ears_lock = threading.Lock()
        self._tuning: set[asyncio.AbstractEventLoop] = set()
        self._voice = wakeup.Voice(self._folder, self._is_mine)
        self.posts: dict[str, FileInbox] = {}
        self._inode = database.hold(self.path)
        with contextlib.ExitStack() as undo, database.opening():
            undo.callback(database.let_go, self._inode)
            self._db = database.connect(self.path)
            undo.callback(self._db.close)
            with database.translated(self.path):
                self._lock_file = database.open_lock(directory, group=modes.is_shared(self.path))
                undo.callback(os.close, self._lock_file)
                self._book = Book(directory, self.posts)
            self._connections = [_Guarded(self._db)]
            _forks.engines.add(self)
            undo.pop_all()
        self._thread = threading.Thread(target=self._write, name="holdfast-file-writer", daemon=True)
        self._thread.start()

    # Asking -----------------------------------------------------------------------------------------------

    async def change(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in the next group and answer when it is on the disk."""
        self._check_open()
        loop = asyncio.get_running_loop()
        call = _Call(change, loop)
        self._calls.put(call)
        timer = loop.call_later(database.BUSY_S, call.give_up)
        try:
            return await call.future
        finally:
            timer.cancel()

    async def read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on a snapshot of its own, beside the writer."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, read)

    def listen(self, listener: Listener, hints: Collection[Hint]) -> Callable[[], None]:
        """Tell `listener` of changes by this process and, through a FIFO, by others."""
        self._check_open()
        loop = asyncio.get_running_loop()
        key = object()
        self._listeners[key] = (loop, listener, frozenset(hints))
        self._tune(loop)

        def stop() -> None:
            if self._listeners.pop(key, None) is not None:
                self._tune(loop)

        return stop

    def open_inbox(self, deliver: Deliver) -> FileInbox:
        """A worker's place, in the current event loop."""
        self._check_open()
        self._drop_dead_posts()
        folder = self._folder.with_name("posts")
        wakeup.sweep(folder)
        post = FileInbox(self, folder, deliver)
        self.posts[post.name] = post
        return post

    def _drop_dead_posts(self) -> None:
        """Those whose event loop was closed before them: others would go on sending jobs there."""
        for post in list(self.posts.values()):
            if post.is_dead:
                post.end()

    def remember(self, job: Job, lane: int) -> None:
        """A job was leased to a worker of this process. From any thread."""
        self._memory.delivered.append((job.snapshot(), lane))

    def join(self) -> None:
        """One more handle uses this engine."""
        with self._users_lock:
            self._users += 1

    def leave(self) -> None:
        """One handle less; the last one closes it. From any thread."""
        with self._users_lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.close()

    def close(self) -> None:
        """Finish what was asked for, then let go of everything.

        Raises StoreBusy if another process holds the lock for too long; then the writer lets go when it can.
        """
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return  # All of it belongs to the process that we were forked from.
        with self._ears_lock:
            for ear in self._ears.values():
                ear.close()
            self._ears.clear()
        for post in list(self.posts.values()):
            post.end()
        self._calls.put(None)
        self._thread.join(database.BUSY_S)
        if self._thread.is_alive() and self._ending.acquire(blocking=False):
            raise database.busy()
        self._let_go()

    def _let_go(self) -> None:
        self._readers.shutdown(wait=True)
        for connection in reversed(self._connections):
            connection.close()
        database.let_go(self._inode)
        os.close(self._lock_file)
        self._book.close()
        self._voice.close()
        _forks.engines.discard(self)

    def is_frozen(self) -> bool:
        """Whether the clock stands still, for tests; that is settled when the store is made."""
        with database.translated(self.path), self._connections[0].guard:
            return self._db.execute(SQL["counters"]).fetchone()[-1] is not None

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise StoreUnavailable("the store was opened before this process was forked; open it anew in the child")
        if self._closed:
            raise StoreUnavailable("the store is closed")

    # Forks ------------------------------------------------------------------------------------------------

    # A forked child has none of the locks that SQLite's memory tells it of, and would write to a log that others take
    # for unused and delete. So a fork waits until nobody is inside SQLite, and the child first closes, as its own,
    # every connection that it was born with; then it can open the store anew.

    def pause(self) -> None:
        """Before a fork: wait until no connection is in use."""
        for connection in self._connections:
            connection.guard.acquire()

    def go_on(self) -> None:
        """After it, in the parent."""
        for connection in self._connections:
            connection.guard.release()

    def start_anew(self) -> None:
        """After it, in the child: let go of all that is the parent's, also of what would keep its lock held."""
        for connection in self._connections:
            connection.close()
        os.close(self._lock_file)
        self._book.close()
        self._voice.close()
        for fifo in (*self._ears.values(), *self.posts.values()):
            fifo.forked()

    # Writing ----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._commit_groups()
        if not self._ending.acquire(blocking=False):
            self._let_go()

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
            with contextlib.suppress(OSError):  # A FIFO that was closed elsewhere; this thread must live on.
                self._drop_dead_posts()
            went_through = self._commit(group)
            if last:
                return
            if went_through and self._log.is_short():
                self._lengthen_log()

    def _commit(self, group: list[_Call[Any]]) -> bool:
        """Whether it went through; whoever asked has been answered."""
        signals: list[Signal] = []
        went_through = False
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            try:
                with database.translated(self.path), self._connections[0].guard:
                    signals = self._run(group)
                    went_through = True
            finally:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        except BaseException as error:  # noqa: BLE001 - whoever asked gets it; the thread must live on
            for call in group:
                call.error = call.error or error
        # First whoever waits elsewhere: to hand an answer over to another thread can take long.
        try:
            if signals:
                self._tell(signals)
        except Exception:  # the change is made, and the thread must live on
            _logger.exception("whoever waits could not be told of a change")
        finally:
            _answer(group)
        return went_through

    def _lengthen_log(self) -> None:
        """When everyone has his answer: the next ones come sooner."""
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            try:
                with contextlib.suppress(sqlite3.Error), self._connections[0].guard:
                    self._db.execute("BEGIN IMMEDIATE")
                    try:
                        if database.is_there(self.path, self._inode):
                            self._log.lengthen()
                    finally:
                        self._db.execute("ROLLBACK")
            finally:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        except Exception:  # nothing depends on it, and the thread must live on
            _logger.exception("the log could not be made longer")

    def _run(self, group: list[_Call[Any]]) -> list[Signal]:
        # What would be written to a file that was replaced would go with it.
        self._check_place()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            signals: list[Signal] = []
            database.check_layout(self.path, self._db)
            transaction = Transaction(self._db, self._memory, self.settings, self._book)
            for call in group:
                if call.start():
                    self._run_one(transaction, call, alone=len(group) == 1)
                    signals += transaction.take_signals()
            transaction.save_counters()
            failpoint.hit("file.before_commit")
            self._book.announce()
            self._db.execute("COMMIT")
        except BaseException:
            # What was asked may have made lanes that are now rolled back.
            self._memory.clear()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._book.drop()
            raise
        failpoint.hit("file.after_commit")
        self._book.settle()
        failpoint.hit("file.after_sending")
        return signals

    def _check_place(self) -> None:
        """Raise StoreMismatch if the database is another file by now: connections of before and after would differ."""
        if not database.is_there(self.path, self._inode):
            raise StoreMismatch(f"{self.path} was removed or replaced while it was open; start this process anew")

    def _run_one(self, transaction: Transaction, call: _Call[Any], *, alone: bool) -> None:
        if not alone:  # Who is alone takes nobody along.
            self._db.execute("SAVEPOINT call")
        try:
            call.result = call.change(transaction)
            transaction.keep()
            if not alone:
                self._db.execute("RELEASE call")
        except sqlite3.Error:
            raise  # The disk, not the call: nobody in this group gets through.
        except BaseException as error:
            call.error = database.translate(error, self.path) if isinstance(error, database.UNREADABLE) else error
            if alone:
                raise
            # It is this call's own, and goes to whoever made it.
            self._db.execute("ROLLBACK TO call")
            self._db.execute("RELEASE call")
            transaction.forget()
            self._memory.clear()

    # Reading ----------------------------------------------------------------------------------------------

    def _reader(self) -> _Guarded:
        reader: _Guarded | None = getattr(self._local, "reader", None)
        if reader is None:
            with database.opening():
                reader = self._local.reader = _Guarded(database.connect(self.path, read_only=True))
                self._connections.append(reader)
        return reader

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        self._check_place()
        reader = self._reader()
        with database.translated(self.path), reader.guard:
            db = reader.db
            db.execute("BEGIN")
            try:
                database.check_layout(self.path, db)
                return read(db)
            finally:
                if db.in_transaction:  # After some errors SQLite has ended it.
                    db.execute("ROLLBACK")

    # Hints ------------------------------------------------------------------------------------------------

    def _tell(self, signals: Sequence[Signal]) -> None:
        for loop, listener, hints in list(self._listeners.values()):
            wanted = [signal for signal in signals if signal.hint in hints]
            if wanted:
                with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
                    loop.call_soon_threadsafe(_deliver, listener, wanted)
        with contextlib.suppress(OSError):
            self._voice.call(signals)

    def _is_mine(self, name: str) -> bool:
        with self._ears_lock:
            return any(ear.is_mine(name) for ear in self._ears.values())

    def _tune(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the FIFO of `loop` ask for what its listeners want; what they want no more goes later."""
        with self._ears_lock:
            if self._closed:
                return
            mask, ear = self._wanted(loop), self._ears.get(loop)
            if mask and ear is None:
                self._drop_dead()
                ear = self._ears[loop] = wakeup.Ear(self._folder, loop, lambda signals: self._heard(loop, signals))
            if ear is None:
                return
            ear.want(ear.mask | mask)
            if ear.mask == mask:
                return
        if wakeup.running() is not loop:
            self._tune_down(loop)
        elif loop not in self._tuning:
            self._tuning.add(loop)
            loop.call_later(LINGER_S, self._tune_down, loop)

    def _tune_down(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._ears_lock:
            self._tuning.discard(loop)
            mask, ear = self._wanted(loop), self._ears.get(loop)
            if ear is not None and mask:
                ear.want(mask)
            elif ear is not None:
                del self._ears[loop]
                ear.close()

    def _drop_dead(self) -> None:
        """Let go of the FIFOs of event loops that ended while theirs was still open."""
        for loop in [loop for loop, ear in self._ears.items() if ear.is_dead]:
            self._ears.pop(loop).close()
            self._tuning.discard(loop)

    def _wanted(self, loop: asyncio.AbstractEventLoop) -> int:
        owned = [hints for owner, _, hints in list(self._listeners.values()) if owner is loop]
        return wakeup.mask_of({hint for hints in owned for hint in hints})

    def _heard(self, loop: asyncio.AbstractEventLoop, signals: Sequence[Signal]) -> None:
        for owner, listener, hints in list(self._listeners.values()):
            if owner is loop:
                # Each in a step of its own: one that raises takes nothing from the others.
                loop.call_soon(_deliver, listener, [signal for signal in signals if signal.hint in hints])


def _deliver(listener: Listener, signals: list[Signal]) -> None:
    for signal in signals:
        listener(signal)


def _answer(group: list[_Call[Any]]) -> None:
    """Hand each caller its answer, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Call[Any]]] = {}
    for call in group:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, calls in by_loop.items():
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
            loop.call_soon_threadsafe(_resolve, calls)


def _resolve(calls: list[_Call[Any]]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)


class _Forks:
    """What happens to the engines of a process when it forks."""

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._paused: list[Engine] = []

    def before(self) -> None:
        database.pause()
        self._paused = list(self.engines)
        for engine in self._paused:
            engine.pause()

    def in_parent(self) -> None:
        for engine in self._paused:
            engine.go_on()
        self._paused = []
        database.go_on()

    def in_child(self) -> None:
        for engine in self._paused:
            engine.start_anew()
        self.__init__()
        database.start_anew()


_forks = _Forks()
os.register_at_fork(before=_forks.before, after_in_parent=_forks.in_parent, after_in_child=_forks.in_child)
