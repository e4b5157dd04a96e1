"""The SQLite file: created atomically, checked before it is used, opened with durable settings."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import msgspec

from holdfast.core.errors import StoreBusy, StoreError, StoreMismatch, StoreUnavailable
from holdfast.stores.file import modes
from holdfast.stores.file.sql import SCHEMA

NAME = "holdfast.db"
APPLICATION_ID = 0x486F6C64  # "Hold"
SCHEMA_VERSION = 6
SQLITE_NEEDED = (3, 38)  # The arrow operators of JSON.

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""The errors that a damaged column raises."""

BUSY_S = 30.0
"""How long to wait for other processes before answering StoreBusy."""

_MAGIC = b"SQLite format 3\0"
MOUNT = "/sbin/mount"
_MOUNTED = re.compile(r"^.* on (/.*) \((\w+)[,)].*$", re.MULTILINE)
LOCAL = frozenset({
    "apfs", "bcachefs", "btrfs", "ecryptfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "hfsplus", "jfs", "nilfs2",
    "overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "ufs", "virtiofs", "xfs", "zfs",
})  # fmt: skip
"""File systems on which locks, shared memory and fsync do what SQLite needs. Others are refused."""


class _Open:
    """The databases that this process has open, by device and inode.

    POSIX locks belong to the process: closing any descriptor of a file drops all locks that the process has on it,
    SQLite's too. Then another process deletes the log that we still write to. So only SQLite opens a file that is in
    `here`: it was checked when it was opened first.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while a database is opened: a fork waits for it (see engine.py)."""
        self.here: Counter[tuple[int, int]] = Counter()


_open = _Open()


def opening() -> contextlib.AbstractContextManager[object]:
    """Hold this while opening a connection, until the engine that closes it after a fork knows it."""
    return _open.lock


def before_fork() -> None:
    """Wait until no thread is opening a database."""
    _open.lock.acquire()


def after_fork_in_parent() -> None:
    """Let threads open databases again."""
    _open.lock.release()


def after_fork_in_child() -> None:
    """The child has nothing open yet."""
    _open.__init__()


def prepare(directory: Path, *, frozen_at: int | None, unsafe_fs: bool = False, group: bool = False) -> bool:
    """Create the directory and the database if they are missing. Returns whether it created the database.

    Raises StoreMismatch if the file belongs to another program. `group` gives the directory's group access too.
    """
    if sqlite3.sqlite_version_info < SQLITE_NEEDED:
        needed = ".".join(map(str, SQLITE_NEEDED))
        raise StoreUnavailable(f"the file store needs SQLite {needed}, this Python has {sqlite3.sqlite_version}")
    try:
        _make(directory, group=group)
    except OSError as error:
        reason = f"cannot create {directory}: {error.strerror}; choose a directory that you may write to"
        raise StoreUnavailable(reason) from error
    kind = file_system(directory)
    if kind not in LOCAL and not unsafe_fs:
        raise StoreMismatch(
            f"{directory} is on a file system ({kind or 'of an unknown type'}) on which SQLite may lose data; use a"
            " directory on a local disk (ext4, xfs, btrfs, zfs, apfs ...), or add ?unsafe_fs=1 to the URL if you know"
            " that locks, shared memory and fsync work there as on a local disk"
        )
    path = directory / NAME
    group = modes.is_shared(path) if path.exists() else group
    with translated(path), locked(directory, group=group):
        is_new = not path.exists() or path.stat().st_size == 0
        if is_new:
            _create(path, frozen_at, group=group)
        check(path)
    return is_new


def check(path: Path) -> None:
    """Raise StoreMismatch unless `path` is a complete Holdfast database. Reads only its header."""
    # With a log beside it the size of the file may be changing: a process is checkpointing, or died during a
    # checkpoint, and SQLite repairs that. Without a log the file does not change while we hold the lock.
    settled = True
    with contextlib.suppress(FileNotFoundError):
        settled = Path(f"{path}-wal").stat().st_size == 0
    with _open.lock:
        if _inode(path) in _open.here:
            return
        with path.open("rb") as file:
            header = file.read(100)
    if len(header) < 100 or not header.startswith(_MAGIC):  # noqa: PLR2004 - SQLite's header is 100 bytes
        raise StoreMismatch(f"{path} is not a Holdfast database (not a SQLite file); it was left unchanged")
    (page_size, pages) = struct.unpack_from(">H", header, 16)[0], struct.unpack_from(">I", header, 28)[0]
    (version, application) = struct.unpack_from(">I", header, 60)[0], struct.unpack_from(">I", header, 68)[0]
    if application != APPLICATION_ID:
        raise StoreMismatch(f"{path} is a SQLite database of another program; it was left unchanged")
    _check_version(path, version)
    if settled and path.stat().st_size < (65536 if page_size == 1 else page_size) * pages:
        raise StoreMismatch(f"{path} is damaged (shorter than its header says); restore it from a backup")


def _check_version(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise StoreMismatch(
            f"{path} was made by a newer Holdfast (schema {version}, this one knows {SCHEMA_VERSION}); upgrade it"
        )
    if version < SCHEMA_VERSION:
        reason = f"{path} was made by an earlier Holdfast (schema {version}, this one needs {SCHEMA_VERSION})"
        raise StoreMismatch(f"{reason}; finish its jobs with the version that made it, then use a new directory")


def check_layout(path: Path, db: sqlite3.Connection) -> None:
    """Raise StoreMismatch unless an open database has this layout.

    Call it in each transaction: a backup of another layout may have been restored.
    """
    _check_version(path, db.execute("PRAGMA user_version").fetchone()[0])


def mark_open(path: Path) -> tuple[int, int]:
    """Note, before connecting, that this process has the database open. Returns the inode for `mark_closed`."""
    with translated(path), _open.lock:
        inode = _inode(path)
        _open.here[inode] += 1
        return inode


def mark_closed(inode: tuple[int, int]) -> None:
    """Note, after the last connection is closed, that the database is no longer open."""
    with _open.lock:
        _open.here[inode] -= 1
        if _open.here[inode] == 0:
            del _open.here[inode]


def is_same_file(path: Path, inode: tuple[int, int]) -> bool:
    """Whether the path still names the file that was opened."""
    try:
        return _inode(path) == inode
    except FileNotFoundError:
        return False


def _inode(path: Path) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 - before every commit
    return status.st_dev, status.st_ino


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with the settings that the store needs."""
    with translated(path), _open.lock:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=BUSY_S)
        try:
            # WAL with FULL: each commit is on the disk before it is acknowledged. [ENQ-1]
            _use_wal(db)
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA cache_size = -65536")
            db.execute("PRAGMA temp_store = MEMORY")
            db.execute("PRAGMA wal_autocheckpoint = 4000")
            db.execute("PRAGMA journal_size_limit = 67108864")
            if read_only:
                db.execute("PRAGMA query_only = ON")
            # `check` has read the header in the file; the log may have a newer one.
            check_layout(path, db)
        except BaseException:
            db.close()
            raise
        return db


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch to WAL. Here SQLite itself does not wait while another process changes the journal mode."""
    end = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise
        time.sleep(0.01)


def open_lock(directory: Path, *, group: bool) -> int:
    """A descriptor of the file that carries the lock between processes."""
    return modes.open_file(directory / "lock", group=group)


@contextlib.contextmanager
def locked(directory: Path, *, group: bool = False) -> Generator[None]:
    """Hold the lock between processes. The kernel grants it in order; with its own lock SQLite would poll."""
    descriptor = open_lock(directory, group=group)
    _wait_for(descriptor)
    try:
        yield
    finally:
        # Closing is not enough: a process forked meanwhile has the descriptor too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _wait_for(descriptor: int) -> None:
    """Acquire the lock, or raise StoreBusy and close the descriptor when `flock` returns."""
    acquired = threading.Event()
    decided = threading.Lock()

    def wait() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if decided.acquire(blocking=False):
            acquired.set()
        else:
            os.close(descriptor)

    threading.Thread(target=wait, name="holdfast-file-lock", daemon=True).start()
    if not acquired.wait(BUSY_S) and decided.acquire(blocking=False):
        raise busy()


def busy() -> StoreBusy:
    """The error for a lock that another process does not release."""
    return StoreBusy(f"another process has held the store for {BUSY_S:g} s; try again")


@contextlib.contextmanager
def translated(path: Path) -> Generator[None]:
    """Raise SQLite's errors as ours, with advice."""
    try:
        yield
    except (sqlite3.Error, *UNREADABLE, OSError) as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error | msgspec.DecodeError | UnicodeDecodeError | OSError, path: Path) -> StoreError:
    """Our error for an error of SQLite, the decoder or the system."""
    if isinstance(error, OSError):
        reason = f"{error.filename or path}: {error.strerror or error}; check the disk and the permissions"
        return StoreUnavailable(reason)
    if isinstance(error, UNREADABLE):
        return StoreMismatch(f"{path} is damaged ({error}); stop its users and restore it from a backup")
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"{path} has been locked by another program for too long; try again")
    if name.startswith("SQLITE_FULL"):
        return StoreUnavailable(f"the disk under {path} is full; nothing was changed. Free some space and try again")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreMismatch(f"{path} is damaged ({error}); stop its users and restore it from a backup")
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        return StoreUnavailable(f"cannot read or write {path} ({error}); check the disk and the permissions")
    return StoreError(f"{path}: {name or type(error).__name__}: {error}")


def _create(path: Path, frozen_at: int | None, *, group: bool) -> None:
    """Build the database under another name, then rename it: a crash leaves nothing half made."""
    scratch = path.with_suffix(".new")
    for leftover in (scratch, *(Path(f"{scratch}{tail}") for tail in ("-wal", "-shm", "-journal"))):
        leftover.unlink(missing_ok=True)
    with translated(path), _open.lock:
        db = sqlite3.connect(scratch, isolation_level=None)
        try:
            db.execute("PRAGMA page_size = 4096")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(f"BEGIN; {SCHEMA}; COMMIT;")
            db.execute("UPDATE counters SET frozen_at = ?", (frozen_at,))
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        finally:
            db.close()
        # The log of a deleted database must not be replayed into the new one.
        for tail in ("-wal", "-shm"):
            Path(f"{path}{tail}").unlink(missing_ok=True)
        # SQLite gives its log and its shared memory the mode of the database.
        scratch.chmod(modes.FOR_GROUP if group else modes.FOR_OWNER)
        scratch.replace(path)
        _sync(path.parent)


def _make(directory: Path, *, group: bool) -> None:
    """Create the directory and its parents, and flush them: they survive a power cut."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    directory.parent.mkdir(parents=True, exist_ok=True)
    modes.make_directory(directory, group=group)
    for made in missing:
        _sync(made.parent)


def _sync(directory: Path) -> None:
    """Flush the entries of a directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system(directory: Path) -> str:
    """The type of the file system under `directory`, or "" if the system does not say."""
    here = str(directory.resolve())
    best, kind = "", ""
    for point, type_ in _mounts():
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, type_
    return kind


def _mounts() -> list[tuple[str, str]]:
    """The mounted file systems: mount point and type."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        return [(_unescaped(point), type_) for _, point, type_, *_ in (line.split(" ") for line in lines)]
    except OSError:
        pass
    # macOS and the BSDs have a command for it: "/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled)".
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run([MOUNT], capture_output=True, timeout=10, check=True).stdout  # noqa: S603 - a constant
        return _MOUNTED.findall(output.decode(errors="replace"))
    return []


def _unescaped(point: str) -> str:
    """Decode a path of the kernel's table, where blanks and backslashes are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)
