"""A log that the handlers write themselves, beside the queue. The queue is checked against it."""

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
    """A handler began or finished one run of a job. The fence identifies the run."""

    what: Literal["began", "finished"]
    tenant: str
    queue: str
    id: str
    fence: int
    at_ms: float


@contextmanager
def logged() -> Generator[None]:
    """Log that the handler of the current job began and, unless it fails, that it finished."""
    _write("began")
    yield
    _write("finished")


def read(path: Path) -> list[Effect]:
    """The whole log, in order."""
    return msgspec.json.Decoder(Effect).decode_lines(path.read_bytes()) if path.exists() else []


def _write(what: Literal["began", "finished"]) -> None:
    path = os.environ.get(PATH_VARIABLE)
    if path is None:
        return  # The handler was called as a plain function.
    job = current_job()
    line = _encode(Effect(what, job.tenant, job.queue, job.id, job.fence, time.time() * 1000)) + b"\n"
    # A single append: lines of several processes never mix.
    os.write(_open(path), line)


@cache
def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
