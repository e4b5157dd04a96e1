"""Power cuts for what SQLite writes, without pulling a plug.

Killing a process proves nothing about durability: what it wrote is in the system's cache and survives it. What a power
cut takes is all that was not flushed. So one process records, and another one judges:

    recorder = powerloss.record(log, root)      # in the process under test, before it opens a database below `root`
    recorder.note("job 17 was acknowledged")

    disk = powerloss.Disk(log)                  # afterwards, in the test
    notes = disk.cut(moment, directory)         # `root` as the disk may show it after a power cut at that moment

From `record` on, every write, truncation and flush that SQLite makes in this process goes into the log, and so do the
names that come and go and the flushes of directories, SQLite's and Python's. `cut` brings back what was flushed before
the moment; of the rest nothing survives or, given a random generator, any part of it, torn into sectors. It is a disk
that keeps its word on fsync and promises nothing else: a file that was flushed is lost if its name was not.

The parts: `log` is what both sides know, `vfs` watches SQLite by ctypes, `names` watches Python, `disk` judges.
Linux alone, and only where the functions of Python's own SQLite can be reached: see `check`.
"""

from __future__ import annotations

from pathlib import Path

from tests.powerloss import names, vfs
from tests.powerloss.disk import Disk
from tests.powerloss.log import Recorder
from tests.powerloss.vfs import PowerLossUnsupported


def check() -> None:
    """Raise PowerLossUnsupported where SQLite cannot be watched."""
    vfs.library()


def record(log: Path, root: Path, *, die_at: int | None = None) -> Recorder:
    """Record from now on, for the life of this process. With `die_at` it kills itself at the n-th record."""
    library = vfs.library()
    recorder = Recorder(log, root, die_at)
    names.watch(recorder)
    vfs.watch(recorder, library)
    return recorder


__all__ = ["Disk", "PowerLossUnsupported", "Recorder", "check", "record"]
