"""Messages between a worker and its child processes: frames of a four-byte length and msgpack."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from holdfast.core.job import AttemptError, Job, Outcome
from holdfast.queue.connection import Address

HEAD = struct.Struct(">I")


class Task(msgspec.Struct, tag=True):
    """Worker to child: run this job with the definition at `module:qualname`, answer in `codec`.

    For a definition in the worker's main module, `main` is that module: its name or its file. `store` is the address
    of the store, for the handler's queue.
    """

    reference: str
    codec: str
    job: Job
    main: str = ""
    store: Address | None = None


class Said(msgspec.Struct, tag=True):
    """Child to worker: progress of the running job."""

    fraction: float
    message: str


class Returned(msgspec.Struct, tag=True):
    """Child to worker: the job's result, encoded."""

    data: bytes


class Raised(msgspec.Struct, tag=True):
    """Child to worker: the attempt ended without a result."""

    outcome: Outcome
    error: AttemptError | None = None
    delay_ms: int | None = None
    reason: str = ""
    """With "release": why the job is left to another worker."""


Ending = Returned | Raised

_encoder = msgspec.msgpack.Encoder()
_to_child = msgspec.msgpack.Decoder(Task)
_to_worker = msgspec.msgpack.Decoder(Said | Returned | Raised)


def frame(message: Any) -> bytes:
    """A message with its length before it."""
    data = _encoder.encode(message)
    return HEAD.pack(len(data)) + data


def for_child(data: bytes) -> Task:
    """Decode a worker's message."""
    return _to_child.decode(data)


def for_worker(data: bytes) -> Said | Returned | Raised:
    """Decode a child's message."""
    return _to_worker.decode(data)
