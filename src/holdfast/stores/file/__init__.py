"""The file store: SQLite in a directory. Durable on one machine, shared by its processes, no server.

The parts:

    database    the file: created whole, checked before it is touched, opened with the settings that make it durable
    modes       who may read and write the files
    engine      one writer thread that commits in groups, one lock between processes, readers beside it
    wakeup      hints to other processes, by FIFOs in the directory
    rows        rows to jobs and back
    transaction what every change is made of: counters, lanes, jobs, events
    changes, claims, upkeep, trimming, reads        the operations
    store       the `Store` face
"""

from __future__ import annotations

from holdfast.core.errors import InvalidOption
from holdfast.opening import Options, StoreUrl
from holdfast.stores.file.store import FileStore


def open_file(url: StoreUrl) -> FileStore:
    """`file:DIR`, also `file:///absolute/dir`; the directory is made if it is missing, unless `create=0`.

    `unsafe_fs=1` uses it also on a file system that is not known to be safe for SQLite. `group=1` makes it for the
    directory's group too, not for its owner alone.
    """
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


__all__ = ["FileStore", "open_file"]
