"""The file store: SQLite in a directory. Durable on one machine, shared by its processes, no server.

The parts:

    database       the file: created atomically, checked before it is used, opened with durable settings
    modes          which users may read and write the files
    wal            keeps the write-ahead log long enough that single commits flush fast
    engine         one writer thread that commits in groups, one lock between processes, concurrent readers
    notifications  hints to other processes, through FIFOs in the directory
    subscribers    the listeners of this process
    waiters        the workers that wait for a job, in all processes
    handoff        direct hand-off to a waiting worker
    rows, sql      rows to jobs and back, and the statements
    transaction    the parts of every change: counters, lanes, jobs, events
    changes, claims, upkeep, trimming, reads        the operations
    store          the class that implements `Store`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.errors import InvalidOption
from holdfast.kinds import OffsetForm, store_kind
from holdfast.opening import Options, StoreUrl

if TYPE_CHECKING:
    from holdfast.stores.file.store import FileStore


@store_kind(place="directory", create_option="create", offsets=OffsetForm(by_shard=True, used=1))
def open_file(url: StoreUrl) -> FileStore:
    """`file:DIR`, also `file:///absolute/dir`; the directory is created if it is missing, unless `create=0`.

    `unsafe_fs=1` allows a file system that is not known to be safe for SQLite. `group=1` gives the directory's group
    access too, not only its owner.
    """
    from holdfast.stores.file.store import FileStore

    options = Options(url)
    common = options.common()
    create = options.text("create", "1", ("0", "1")) == "1"
    unsafe_fs = options.text("unsafe_fs", "0", ("0", "1")) == "1"
    group = options.text("group", "0", ("0", "1")) == "1"
    options.finish()
    rest = url.rest.removeprefix("//") if url.rest.startswith("///") else url.rest
    if rest.startswith("//"):
        raise InvalidOption(
            "store", f"file:{rest} names a host; write 'file:{rest.lstrip('/')}' or 'file:/absolute/dir'"
        )
    if not rest:
        raise InvalidOption("store", "file: names no directory; write for example 'file:./data'")
    return FileStore(rest, common, create=create, unsafe_fs=unsafe_fs, group=group)
