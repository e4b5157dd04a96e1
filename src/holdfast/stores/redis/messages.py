"""Messages that scripts publish: notifications of each kind of hint, and jobs that are handed off."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import msgpack

from holdfast.core.job import Job
from holdfast.store import Hint, Signal
from holdfast.stores.redis.keys import names_of
from holdfast.stores.redis.layout import RECORDS_MARK
from holdfast.stores.redis.records import SEPARATE, to_job

_HANDOFF = struct.Struct("<QQ")
_SIZES = struct.Struct("<HHI")
_decode_texts = msgpack.Decoder(list[str]).decode


def signals(hint: Hint, data: bytes) -> Iterator[Signal]:
    """The signals of a notification.

    It has lanes, lanes and ids, or completed jobs. An empty one says that anything may have changed.
    """
    if not data:
        yield Signal(hint)
    elif data[0] == RECORDS_MARK:
        for job in _jobs(data, 1):
            yield Signal(hint, job.tenant, job.queue, job.id, None if job.envelope.payload is SEPARATE else job)
    elif hint is Hint.READY:
        for lane in _decode_texts(data):
            yield Signal(hint, *names_of(lane))
    else:
        texts = iter(_decode_texts(data))
        for lane, id_ in zip(texts, texts, strict=True):
            yield Signal(hint, *names_of(lane), id_)


def handed_off(data: bytes) -> tuple[int, int, list[Job]]:
    """A message to a worker's inbox: the number of its registration, the time, and the leased jobs."""
    number, now = _HANDOFF.unpack_from(data)
    return number, now, list(_jobs(data, _HANDOFF.size))


def _jobs(data: bytes, at: int) -> Iterator[Job]:
    """Lanes, ids and records, each after their sizes."""
    while at < len(data):
        lane_size, id_size, record_size = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        tenant, queue = names_of(data[at : at + lane_size].decode())
        at += lane_size
        id_ = data[at : at + id_size].decode()
        at += id_size
        yield to_job(tenant, queue, id_, data[at : at + record_size])
        at += record_size
