"""Says when the first handler of a process began, and what the process had used of the processor until then.

A file per process in the directory BENCH_MARKS: seconds of the machine's monotonic clock, seconds of processor time.
The code in this directory runs in the environments of the peers and imports nothing of ours.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_marked: list[int] = []


def first() -> None:
    """To be called by each handler. A forked process marks anew."""
    if not _marked or _marked[0] != os.getpid():
        _marked[:] = [os.getpid()]
        part = Path(os.environ["BENCH_MARKS"]) / f"{os.getpid()}.part"
        part.write_text(f"{time.monotonic()} {time.process_time()}")
        part.rename(part.with_suffix(""))
