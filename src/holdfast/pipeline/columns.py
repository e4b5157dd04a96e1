"""Arrow record batches of events, built column by column.

Only the columns of the schema are built: a reader that asks for three columns builds three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]

from holdfast.core.errors import InvalidOption
from holdfast.core.events import EventColumns
from holdfast.kinds import OffsetForm
from holdfast.pipeline.positions import POSITION_WIDTH

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Arrow has no type hints.
_arrow, _compute = cast("Any", pa), cast("Any", pc)
_encode_lines = msgspec.json.Encoder().encode_lines


class BatchBuilder:
    """Builds record batches of a schema. A function for each column makes its values."""

    def __init__(self, schema: StructType, columns: dict[str, Callable[[Any], Any]]) -> None:
        from pyspark.sql.pandas import types

        unknown = [name for name in schema.fieldNames() if name not in columns]
        if unknown:
            raise InvalidOption("schema", f"there is no column {unknown[0]!r}; there are {', '.join(columns)}")
        self._schema: Any = cast("Any", types).to_arrow_schema(schema, timezone="UTC")
        self._columns = [columns[name] for name in schema.fieldNames()]

    def build(self, source: Any) -> Any:
        """One record batch."""
        arrays = [_column(make(source), field.type) for make, field in zip(self._columns, self._schema, strict=True)]
        return _arrow.RecordBatch.from_arrays(arrays, schema=self._schema)


def _column(values: Any, type_: Any) -> Any:
    if isinstance(values, _Runs):
        return values.spread(_column(values.values, type_))
    if isinstance(values, list):
        # Instants are whole milliseconds.
        values = _arrow.array(values, _arrow.int64() if _arrow.types.is_timestamp(type_) else type_)
    if _arrow.types.is_timestamp(type_) and _arrow.types.is_int64(values.type):
        values = values.view(_arrow.timestamp("ms", "UTC"))
    return values if values.type == type_ else values.cast(type_)


def position_maker(form: OffsetForm) -> Callable[[Any, int], Any]:
    """The function that turns a column of offsets of this form into positions of a shard."""
    return _from_shard if form.by_shard else partial(_from_all, form.used)


def _from_shard(offsets: Any, shard: int) -> Any:
    return _padded(_compute.list_element(_compute.split_pattern(offsets, "."), shard))


def _from_all(used: int | None, offsets: Any, shard: int) -> Any:
    del shard
    parts = _compute.split_pattern(offsets, ".")
    count = used or len(parts[0])
    padded = [_padded(_compute.list_element(parts, n)) for n in range(count)]
    return _compute.binary_join_element_wise(*padded, ".") if count > 1 else padded[0]


def _padded(numbers: Any) -> Any:
    return _compute.ascii_lpad(numbers, POSITION_WIDTH, "0")


class EventSource:
    """The events of one shard, and values that several columns share."""

    def __init__(self, parts: list[EventColumns], shard: int, position: Callable[[Any, int], Any]) -> None:
        self._parts, self.shard, self._position = parts, shard, position
        self.count = sum(part.count for part in parts)

    def column(self, name: str) -> _Runs:
        """The values of a column, one after another from all parts."""
        values: list[Any] = []
        counts: list[int] = []
        for part in self._parts:
            own: list[Any] = getattr(part, name)
            values += own
            counts += [part.count] if len(own) == 1 else [1] * len(own)
        return _Runs(values, counts, self.count)

    @cached_property
    def offsets(self) -> Any:
        return _joined([_offsets(part) for part in self._parts])

    @cached_property
    def positions(self) -> Any:
        """The positions. If offsets differ only in the last number of a position, one of them is computed in full."""
        made: list[Any] = []
        for part in self._parts:
            offset = part.offset
            if isinstance(offset, list):
                made.append(self._position(_arrow.array(offset, _arrow.string()), self.shard))
            else:
                first = self._position(_arrow.array(offset.texts(1), _arrow.string()), self.shard)[0].as_py()
                before = first[:-POSITION_WIDTH]
                numbers = _padded_numbers(offset.first, part.count)
                made.append(_compute.binary_join_element_wise(before, numbers, "") if before else numbers)
        return _joined(made)

    @cached_property
    def data(self) -> _Runs:
        return self.column("data")

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of `data` that only some kinds of events have, each as a column. Null if an event lacks one."""
        fields = _arrow.array(self.data.values, _FIELDS)
        error = fields.field("error")
        columns = dict(zip(_FIELDS.names, fields.flatten(), strict=True))
        return columns | {f"error_{name}": error.flatten()[n] for n, name in enumerate(_ERROR.names)}


class _Runs:
    """Run-length encoded values: each one applies to a number of events in a row."""

    def __init__(self, values: list[Any], counts: list[int], total: int) -> None:
        self.values = values
        self._places = None if len(values) == total else np.repeat(np.arange(len(values)), counts)

    def spread(self, made: Any) -> Any:
        """Repeat what was made of each value for all of its events."""
        return made if self._places is None else made.take(_arrow.array(self._places))


def _offsets(part: EventColumns) -> Any:
    offset = part.offset
    if isinstance(offset, list):
        return _arrow.array(offset, _arrow.string())
    numbers = _numbers(offset.first, part.count)
    if not offset.before and not offset.behind:
        return numbers
    return _compute.binary_join_element_wise(offset.before, numbers, offset.behind, "")


def _numbers(first: int, count: int) -> Any:
    return _arrow.array(np.arange(first, first + count)).cast(_arrow.string())


def _padded_numbers(first: int, count: int) -> Any:
    """Numbers of POSITION_WIDTH digits, computed digit by digit for all: padding texts took twice as long."""
    digits = np.full((count, POSITION_WIDTH), ord("0"), np.uint8)
    left = np.arange(first, first + count)
    for place in range(1, len(str(first + count)) + 1):
        left, digit = np.divmod(left, 10)
        digits[:, -place] += digit.astype(np.uint8)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(POSITION_WIDTH)
    return _arrow.StringArray.from_buffers(count, _arrow.py_buffer(ends), _arrow.py_buffer(digits))


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else _arrow.concat_arrays(arrays)


_ERROR: Any = _arrow.struct([(name, _arrow.string()) for name in ("type", "message", "fingerprint")])
_FIELDS: Any = _arrow.struct({
    "priority": _arrow.int32(), "max_attempts": _arrow.int32(), "visible_at": _arrow.int64(),
    "deadline": _arrow.int64(), "reason": _arrow.string(), "error": _ERROR,
})  # fmt: skip


def _event_column(name: str) -> Callable[[EventSource], _Runs]:
    return lambda source: source.column(name)


def _field(name: str) -> Callable[[EventSource], Any]:
    return lambda source: source.data.spread(source.fields[name])


def _as_json(source: EventSource) -> Any:
    """Encode all values at once, a line each. JSON escapes line ends, so each line end separates two values."""
    lines = np.frombuffer(_encode_lines(source.data.values), np.uint8)
    ends = np.flatnonzero(lines == _LINE_END)
    count = len(ends)
    places = np.zeros(count + 1, np.int32)
    places[1:] = ends - np.arange(count)
    text = lines[lines != _LINE_END]
    values = _arrow.StringArray.from_buffers(count, _arrow.py_buffer(places), _arrow.py_buffer(text))
    return source.data.spread(values)


_LINE_END = ord("\n")
EVENT_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "shard": lambda source: _arrow.repeat(source.shard, source.count),
    "position": lambda source: source.positions,
    "offset": lambda source: source.offsets,
    **{
        name: _event_column(name)
        for name in ("kind", "tenant", "queue", "job_id", "type", "at", "number", "attempt", "token", "worker_id")
    },
    "priority": _field("priority"),
    "max_attempts": _field("max_attempts"),
    "visible_at": _field("visible_at"),
    "deadline": _field("deadline"),
    "reason": _field("reason"),
    "error_type": _field("error_type"),
    "error_message": _field("error_message"),
    "fingerprint": _field("error_fingerprint"),
    "data": _as_json,
}
