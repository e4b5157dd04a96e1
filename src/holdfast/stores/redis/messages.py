"""What the messages say that scripts publish: one channel for each kind of hint, see `commit` in `lua/prelude.lua`."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import msgpack

from holdfast.core.job import Job
from holdfast.store import Hint, Signal
from holdfast.stores.redis import records
from holdfast.stores.redis.keys import names_of

_IN_FULL = 0xC1
_OFFER = struct.Struct("<QQ")
_SIZES = struct.Struct("<HHI")
_decode_texts = msgpack.Decoder(list[str]).decode


def signals(hint: Hint, data: bytes) -> Iterator[Signal]:
    """What a hint of the server says: lanes, lanes and ids, or all of it; nothing at all means anything."""
    if not data:
        yield Signal(hint)
    elif data[0] == _IN_FULL:
        yield from _completions(hint, data)
    elif hint is Hint.READY:
        for lane in _decode_texts(data):
            yield Signal(hint, *names_of(lane))
    else:
        texts = iter(_decode_texts(data))
        for lane, id_ in zip(texts, texts, strict=True):
            yield Signal(hint, *names_of(lane), id_)


def handed_over(data: bytes) -> tuple[int, int, list[Job]]:
    """What an enqueue sends to a worker that offered to take it: the offer's number, the time, and the leased jobs."""
    number, now = _OFFER.unpack_from(data)
    return number, now, list(_jobs(data, _OFFER.size))


def _completions(hint: Hint, data: bytes) -> Iterator[Signal]:
    for job in _jobs(data, 1):
        yield Signal(hint, job.tenant, job.queue, job.id, None if job.envelope.payload is records.ELSEWHERE else job)


def _jobs(data: bytes, at: int) -> Iterator[Job]:
    """Lanes, ids and records, each after their sizes."""
    while at < len(data):
        lane_size, id_size, record_size = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        tenant, queue = names_of(data[at : at + lane_size].decode())
        at += lane_size
        id_ = data[at : at + id_size].decode()
        at += id_size
        yield records.to_job(tenant, queue, id_, data[at : at + record_size])
        at += record_size
