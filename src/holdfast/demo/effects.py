"""What handlers did, written down by themselves, beside the queue: the witness against which the queue is checked."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from holdfast import current_job

PATH_VARIABLE = "HOLDFAST_DEMO_EFFECTS"

_encode = msgspec.json.Encoder().encode


class Effect(msgspec.Struct, frozen=True):
    """A handler began or finished one run of a job. The fence says which run."""

    what: Literal["began", "finished"]
    tenant: str
    queue: str
    id: str
    fence: int
    at_ms: float


@contextmanager
def witnessed() -> Generator[None]:
    """Write down that the current job's handler began, and that it finished if it did."""
    _write("began")
    yield
    _write("finished")


def read(path: Path) -> list[Effect]:
    """All that was written, in order."""
    return msgspec.json.Decoder(Effect).decode_lines(path.read_bytes()) if path.exists() else []


def _write(what: Literal["began", "finished"]) -> None:
    path = os.environ.get(PATH_VARIABLE)
    if path is None:
        return  # Called as a plain function.
    job = current_job()
    line = _encode(Effect(what, job.tenant, job.queue, job.id, job.fence, time.time() * 1000)) + b"\n"
    # One write at the end of the file: lines of several processes never mix.
    os.write(_open(path), line)


@cache
def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
