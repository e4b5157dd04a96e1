"""Checksums of events: their number, and the sum of their hashes modulo 2^64. Their order does not matter.

A task computes one when it reads events, before it writes them, and the audit computes it again from the lake. The hash
of an event is the xxhash64 of the xxhash64 of each column, as Spark computes it: each column is hashed by itself, so
that values cannot run into each other, and a null has a hash that no text or number is likely to have. Unlike an XOR, a
sum also detects an event that is there three times instead of once.
"""

from __future__ import annotations

from datetime import date
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]
import xxhash

from holdfast.pipeline.batches import Checksum, checksum
from holdfast.pipeline.schemas import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column

COLUMNS = (*EVENTS.fieldNames(), "date")
"""The hashed columns, in this order: all but `batch`, which a compaction changes."""

# Arrow has no type hints.
_arrow, _compute = cast("Any", pa), cast("Any", pc)
Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_UNIQUE = ("position", "offset", "job_id")
"""Texts that rarely repeat."""
_SEED = 42
# NumPy warns about overflow of scalars, but not of arrays.
_SEED_ARRAY: Hashes = np.array([_SEED], np.uint64)
_EPOCH = date(1970, 1, 1)
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
)  # fmt: skip


# As Spark computes it -----------------------------------------------------------------------------------------


def sums() -> dict[str, Column]:
    """The aggregates that `read_sums` turns into a checksum. Hashes are summed in halves, so that nothing overflows."""
    from pyspark.sql import functions as fn

    hashed = fn.xxhash64(*(fn.xxhash64(fn.col(name)) for name in COLUMNS))
    return {
        "events": fn.count("*"),
        "low": fn.sum(hashed.bitwiseAND(0xFFFFFFFF)),
        "high": fn.sum(fn.shiftrightunsigned(hashed, 32)),
    }


def read_sums(row: Any) -> Checksum:
    """The checksum in a row of these aggregates."""
    return checksum(row["events"], row["low"] + (row["high"] << 32))


# In Python, where tasks read -----------------------------------------------------------------------------------


def of_batch(batch: Any, day: date) -> Checksum:
    """The checksum of the events in a record batch. All of them are of one day."""
    columns = [
        _hash_texts(batch.column(name)) if name in _UNIQUE else _hashes(batch.column(name)) for name in COLUMNS[:-1]
    ]
    columns.append(_hash_ints(np.array([(day - _EPOCH).days])))
    hashes: Hashes = np.full(batch.num_rows, _SEED, np.uint64)
    for column in columns:
        hashes = _hash_longs(column, hashes)
    return checksum(batch.num_rows, int(hashes.sum(dtype=np.uint64)))


def _hashes(column: Any) -> Hashes:
    """The hash of each value; for a null the seed, as Spark does."""
    if _arrow.types.is_string(column.type):
        # Few different values: hash each of them once.
        coded = column.dictionary_encode()
        hashed = _hash_texts(coded.dictionary)
        return _where_valid(coded.indices, hashed.__getitem__)
    if _arrow.types.is_timestamp(column.type):
        column = column.cast(_arrow.timestamp("us", "UTC")).view(_arrow.int64())
    hash_ = _hash_longs if column.type.bit_width == 64 else _hash_ints  # noqa: PLR2004
    return _where_valid(column, hash_)


def _where_valid(column: Any, make: Any) -> Hashes:
    if not column.null_count:
        return make(column.to_numpy())
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    hashes = np.full(len(column), _SEED, np.uint64)
    hashes[valid] = make(column.drop_null().to_numpy())
    return hashes


def _hash_texts(texts: Any) -> Hashes:
    """The hashes of texts without nulls."""
    values = texts.cast(_arrow.binary()).to_pylist()
    return np.fromiter(map(xxhash.xxh64_intdigest, values, repeat(_SEED)), np.uint64, len(values))


def _hash_longs(values: Any, seeds: Hashes = _SEED_ARRAY) -> Hashes:
    """The hashes of 64-bit numbers."""
    hashes = (seeds + (_P5 + np.uint64(8))) ^ (_rotated(values.view(np.uint64) * _P2, 31) * _P1)
    return _mixed(_rotated(hashes, 27) * _P1 + _P4)


def _hash_ints(values: Any) -> Hashes:
    """The hashes of 32-bit numbers."""
    unsigned = values.astype(np.int32).view(np.uint32).astype(np.uint64)
    hashes = (_SEED_ARRAY + (_P5 + np.uint64(4))) ^ (unsigned * _P1)
    return _mixed(_rotated(hashes, 23) * _P2 + _P3)


def _rotated(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _mixed(hashes: Hashes) -> Hashes:
    for shift, prime in ((33, _P2), (29, _P3)):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * prime
    return hashes ^ (hashes >> np.uint64(32))
