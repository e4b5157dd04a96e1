"""Entries of the log: the events of one call, as a chunk of msgpack.

A chunk is { dictionary, values }. The values of all events follow each other: `EVENT_COMMON` common ones, then those of
the event's kind (`layout.EVENT_DATA`). Lane, type and worker are positions in the dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from msgspec import msgpack
from msgspec.structs import replace

from holdfast.core.codes import EVENT_KINDS, REASONS
from holdfast.core.events import Event, EventColumns, EventKind, Numbered
from holdfast.stores.redis.keys import names_of
from holdfast.stores.redis.layout import EVENT_COMMON, EVENT_DATA, EVENT_SIZES
from holdfast.stores.redis.records import shared

Entry = tuple[int, int, int, bytes]
"""The number of the last event, how many events there are, their time, and the chunk."""
_Row = tuple[int, int, str, int, int, int, int, int]
_Part = tuple[int, list[list[Any]]]
"""A kind, and the columns of consecutive events of that kind."""

_decode_chunk = msgpack.Decoder(tuple[list[str], list[Any]]).decode


def to_events(number: int, count: int, at: int, chunk: bytes) -> Iterator[tuple[int, Event]]:
    """The events of an entry, each with its number."""
    words, values = _decode_chunk(chunk)
    place = 0
    for n in range(number - count + 1, number + 1):
        kind, lane, id_, type_, attempt, token, worker, nth = cast("_Row", tuple(values[place : place + EVENT_COMMON]))
        end = place + EVENT_COMMON + EVENT_SIZES[kind]
        data = _event_data(EVENT_KINDS[kind], values[place + EVENT_COMMON : end])
        place = end
        tenant, queue = names_of(words[lane - 1])
        event = Event(
            EVENT_KINDS[kind], tenant, queue, id_, words[type_ - 1], at, attempt, token, words[worker - 1], data,
            number=nth,
        )  # fmt: skip
        yield n, event


def to_columns(offset: Numbered, count: int, at: int, chunk: bytes) -> Iterator[EventColumns]:
    """The events of an entry, in parts that are each of one kind."""
    words, values = _decode_chunk(chunk)
    for code, columns in _uniform(values, count) or _mixed(values, count):
        lanes, ids, types, attempts, tokens, workers, numbers, *data = columns
        size = len(ids)
        kind = EVENT_KINDS[code]
        lanes, types, workers, attempts, numbers = map(shared, (lanes, types, workers, attempts, numbers))
        names = {lane: names_of(words[lane - 1]) for lane in set(cast("list[int]", lanes))}
        yield EventColumns(
            size, offset, [kind], [names[lane][0] for lane in lanes], [names[lane][1] for lane in lanes], ids,
            [words[type_ - 1] for type_ in types], [at], attempts, tokens, [words[worker - 1] for worker in workers],
            _columns_data(kind, data), numbers,
        )  # fmt: skip
        offset = replace(offset, first=offset.first + size)


def _uniform(values: list[Any], count: int) -> list[_Part] | None:
    """The columns of a chunk whose events are all of one kind, as those of most calls are; else None."""
    kind: int = values[0]
    step = EVENT_COMMON + EVENT_SIZES[kind]
    if len(values) != count * step or values[::step].count(kind) != count:
        return None
    return [(kind, [values[n::step] for n in range(1, step)])]


def _mixed(values: list[Any], count: int) -> list[_Part]:
    parts: list[_Part] = []
    place = 0
    for _ in range(count):
        kind: int = values[place]
        step = EVENT_COMMON + EVENT_SIZES[kind]
        row = values[place + 1 : place + step]
        if parts and parts[-1][0] == kind:
            for column, value in zip(parts[-1][1], row, strict=True):
                column.append(value)
        else:
            parts.append((kind, [[value] for value in row]))
        place += step
    return parts


def _columns_data(kind: EventKind, columns: list[list[Any]]) -> list[dict[str, Any]]:
    """The data of events of one kind: a single dict if all are equal."""
    columns = [shared(column) for column in columns]
    if all(len(column) == 1 for column in columns):
        return [_event_data(kind, [column[0] for column in columns])]
    size = max(map(len, columns))
    rows = zip(*(column if len(column) == size else column * size for column in columns), strict=True)
    if kind == "enqueued":
        return [{"priority": priority, "max_attempts": most, "visible_at": at} for priority, most, at in rows]
    if kind == "claimed":
        return [{"visible_at": at, "deadline": deadline} for at, deadline in rows]
    return [_event_data(kind, list(row)) for row in rows]


def _event_data(kind: EventKind, values: list[Any]) -> dict[str, Any]:
    data: dict[str, Any] = dict(zip(EVENT_DATA[kind], values, strict=True))
    match kind:
        case "progressed":
            data["fraction"] = float(data["fraction"])
        case "retried" | "expired":
            return {"visible_at": data["visible_at"], "error": _error(data)}
        case "released" if not data["reason"]:
            del data["reason"]
        case "canceled" | "replayed" | "purged" if not data["by"]:
            del data["by"]
        case "failed":
            return {"reason": REASONS[data["reason"] - 1], "error": _error(data)}
        case _:
            pass
    return data


def _error(data: dict[str, Any]) -> dict[str, str]:
    return {name: data[name] for name in ("type", "message", "fingerprint")}
