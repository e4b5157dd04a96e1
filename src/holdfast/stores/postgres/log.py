"""The log: rows of `events`, events, and offsets.

A row has the events of one call. Its position is (epoch, xid, n): the transaction that it is filed under, and a number
drawn when the jobs were locked. It is filed under its own transaction or, if later, under that of the last event of any
of its jobs. So a transaction that began early and changed a job late is read after the events it follows. [EVENT-2]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from msgspec import msgpack

from holdfast.core.codes import EVENT_CODES, EVENT_KINDS
from holdfast.core.errors import InvalidOption
from holdfast.core.events import Event, EventColumns, Numbered

_ENQUEUED, _CLAIMED = EVENT_CODES["enqueued"], EVENT_CODES["claimed"]
_OFFSET = re.compile(r"([0-9]{1,10})\.([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,9})", re.ASCII)

_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(dict[str, Any]).decode

Columns = tuple[
    list[int],
    list[int],
    list[str],
    list[str],
    list[int],
    list[int],
    list[str],
    None,
    None,
    None,
    list[bytes],
    list[int],
]
"""kinds, lanes, ids, types, attempts, tokens, workers, xs, ys, zs, more, numbers"""


class Position(NamedTuple):
    """A position in the log: after the k-th event of a row."""

    epoch: int
    xid: int
    n: int
    k: int

    def __str__(self) -> str:
        return ".".join(map(str, self))


END = Position(2**31 - 1, 2**63 - 1, 2**63 - 1, 2**31 - 1)


def parse_offset(offset: str, option: str = "after") -> Position:
    """The position of an offset. Raises InvalidOption."""
    match = _OFFSET.fullmatch(offset)
    if match is None:
        raise InvalidOption(option, f"{offset!r} is not an offset of this store")
    return Position(*(int(part) for part in match.groups()))


def pack(events: Sequence[tuple[Event, int]]) -> Columns:
    """Events, each with the number of its lane, as the columns of one row."""
    return (
        [EVENT_CODES[event.kind] for event, _ in events],
        [lane for _, lane in events],
        [event.job_id for event, _ in events],
        [event.type for event, _ in events],
        [event.attempt for event, _ in events],
        [event.token for event, _ in events],
        [event.worker_id for event, _ in events],
        None,
        None,
        None,
        [_encode(event.data) for event, _ in events],
        [event.number for event, _ in events],
    )


def unpack(row: Mapping[str, Any], after: int, names: Callable[[int], tuple[str, str]]) -> list[tuple[int, Event]]:
    """The events of a row after the `after`-th of its call, each with its number in the call."""
    kinds, lanes, ids, types = row["kinds"], row["lanes"], row["ids"], row["types"]
    attempts, tokens, workers, numbers = row["attempts"], row["tokens"], row["workers"], row["numbers"]
    position, first = Position(row["epoch"], row["xid"], row["n"], 0), row["first"]
    events: list[tuple[int, Event]] = []
    for i in range(max(0, after - first), row["count"]):
        tenant, queue = names(_at(lanes, i))
        kind: int = _at(kinds, i)
        event = Event(
            EVENT_KINDS[kind], tenant, queue, ids[i], _at(types, i), row["at"], _at(attempts, i), _at(tokens, i),
            _at(workers, i), _data(row, kind, i), str(position._replace(k=first + i + 1)), _at(numbers, i),
        )  # fmt: skip
        events.append((first + i + 1, event))
    return events


def columns(row: Mapping[str, Any], start: int, stop: int, names: Callable[[int], tuple[str, str]]) -> EventColumns:
    """The events of a row after the `start`-th of its call, up to the `stop`-th."""
    kinds, lanes, first = row["kinds"], row["lanes"], row["first"]
    known = {lane: names(lane) for lane in set(lanes)}
    values = (row[name] for name in ("kinds", "xs", "ys", "zs", "more"))
    alike = all(column is None or len(column) == 1 for column in values)
    whole = EventColumns(
        row["count"], Numbered(f"{row['epoch']}.{row['xid']}.{row['n']}.", first + 1, ""),
        [EVENT_KINDS[kind] for kind in kinds], [known[lane][0] for lane in lanes],
        [known[lane][1] for lane in lanes], row["ids"], row["types"], [row["at"]], row["attempts"], row["tokens"],
        row["workers"], [_data(row, _at(kinds, i), i) for i in range(1 if alike else row["count"])],
        row["numbers"],
    )  # fmt: skip
    return whole.part(max(0, start - first), stop - first)


def _data(row: Mapping[str, Any], kind: int, i: int) -> dict[str, Any]:
    if row["more"] is not None:
        return _decode(row["more"][i])
    if kind == _ENQUEUED:
        priority = 9 - cast("int", _at(row["xs"], i))
        return {"priority": priority, "max_attempts": _at(row["ys"], i), "visible_at": _at(row["zs"], i)}
    if kind == _CLAIMED:
        return {"visible_at": _at(row["xs"], i), "deadline": _at(row["ys"], i)}
    return {}


def _at(column: list[Any], i: int) -> Any:
    """A column of one element has the same value for all events."""
    return column[i] if len(column) > 1 else column[0]
