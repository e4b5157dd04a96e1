"""Whose log a lake holds, and that the store of today is still that one.

An address says little: a store made anew, or brought back from a backup, has the same one and another log. Its offsets
look alike, so a lake that just went on would lack its beginning, or hold two logs in one. Two things tell:

- the last events that the lake has are looked up in the store. Where they are still kept, they are there, or not.
- the lake is a registered reader, under a name of its own, which no other store knows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import EventsTrimmed, InvalidOption, StoreMismatch
from holdfast.extensions import LogRange
from holdfast.opening import parse_url, shown_url
from holdfast.pipeline.lake import Lake, place_in, positions, read_json, write_json
from holdfast.store import LogPage, Reader

if TYPE_CHECKING:
    from holdfast.pipeline.reader import OpenStore

ORIGIN = "_origin.json"
_OTHER = (
    "is not in the log of the store: it is another one, or was made anew, or brought back from an older backup. "
    "Take it into another --lake; this one was left as it is"
)


class Origin(Struct, frozen=True):
    """Where a lake's events come from. It is settled by the first ingest."""

    store: str
    """Without password and options."""
    tenant: str | None
    reader: str


class Wish(Protocol):
    """What of an ingest's plan says where the events are to come from."""

    @property
    def store(self) -> str: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def accept_gap(self) -> bool: ...
    @property
    def moved(self) -> bool: ...


def read_origin(lake: Lake) -> Origin:
    """Where the lake's events come from. Raises InvalidOption where it has none yet, StoreMismatch if it is damaged."""
    try:
        return read_json(lake.root / ORIGIN, Origin)
    except FileNotFoundError:
        raise InvalidOption("lake", f"nothing has been taken in to {lake.root} yet") from None


def settle(opened: OpenStore, lake: Lake, wish: Wish) -> Origin:
    """Where the lake's events come from: that store, from now on if it is the first. The lake is a reader there then.

    Raises StoreMismatch if the lake is of another store, of another tenant, or of this one before it was made anew.
    """
    origin = _named(lake, wish)
    _check_checkpoint(lake)
    known = _is_known(opened, origin)
    _check_log(opened, lake, wish, known=known)
    if not (lake.root / ORIGIN).exists() or read_origin(lake) != origin:
        # Only now: a wrong address must not stay.
        write_json(lake.root / ORIGIN, origin)
    if not known:
        _register(opened, lake, origin)
    return origin


def check_known(opened: OpenStore, origin: Origin) -> None:
    """Raise StoreMismatch if the store does not know the lake: it was made anew since the ingest began."""
    if not _is_known(opened, origin):
        raise StoreMismatch(
            f"the store no longer knows the reader {origin.reader}: it was made anew, or the reader was dropped, while "
            "its log was read. No more of it is taken in. Ingest again: that finds out which it was."
        )


def _named(lake: Lake, wish: Wish) -> Origin:
    """The origin by its name alone."""
    parsed = parse_url(wish.store)
    store = shown_url(f"{parsed.scheme}:{parsed.rest}")
    if not (lake.root / ORIGIN).exists():
        if lake.batches():
            raise StoreMismatch(f"{lake.root / ORIGIN} is gone: whose log the lake holds is not known any more")
        return Origin(store, wish.tenant, f"lake-{uuid.uuid4().hex[:12]}")
    origin = read_origin(lake)
    if origin.tenant != wish.tenant:
        whose = "all tenants" if origin.tenant is None else f"tenant {origin.tenant}"
        raise StoreMismatch(f"the lake in {lake.root} holds the events of {whose}; use another --lake for others")
    if origin.store != store and not wish.moved:
        raise StoreMismatch(
            f"the lake in {lake.root} holds the log of {origin.store}, not of {store}; use another --lake for that "
            "one, or --moved if it is the same store under a new address"
        )
    return replace(origin, store=store)


def _check_checkpoint(lake: Lake) -> None:
    """Spark counts batches in its checkpoint; without it they would be counted from 0 again."""
    if lake.batches() and not (lake.checkpoint / "offsets").is_dir():
        raise StoreMismatch(
            f"{lake.checkpoint} is gone: how far the lake in {lake.root} has read is not known any more. "
            "Bring it back from a backup, or ingest into a new directory."
        )


# The same log ---------------------------------------------------------------------------------------------------


def _check_log(opened: OpenStore, lake: Lake, wish: Wish, *, known: bool) -> None:
    """Raise StoreMismatch unless the store's log is the one that the lake has the beginning of."""
    offset = lake.read_up_to()
    if offset is None:
        return
    try:
        opened.run(_reach(opened, offset))
    except EventsTrimmed as gap:
        ends = zip(positions(wish.store, gap.from_), positions(wish.store, gap.to), strict=True)
        if not any(start < end for start, end in ends):
            raise StoreMismatch(f"the lake in {lake.root} has read up to {offset}, which {_OTHER}") from None
        # Else the log was trimmed: the query tells it, and how to go on.
    except InvalidOption:
        raise StoreMismatch(f"the lake in {lake.root} has read up to {offset}, which {_OTHER}") from None
    found = [_same(opened, *last) for last in _last_events(lake)]
    if False in found:
        raise StoreMismatch(f"the last event that the lake in {lake.root} has read {_OTHER}")
    if not known and True not in found and not wish.accept_gap:
        raise StoreMismatch(
            f"nothing shows that the store's log is the one that the lake in {lake.root} has read: the store does not "
            "know its reader, and no longer has what was read last. If it is another store, or was made anew, use "
            "another --lake. If its reader was dropped and its log trimmed since, go on with --accept-gap."
        )


async def _reach(opened: OpenStore, offset: str) -> None:
    await opened.log.bounds(offset)


def _same(opened: OpenStore, shard: int, offset: str, event: tuple[Any, ...]) -> bool | None:
    """Whether the store has this very event at this offset; None: it no longer has what was there."""
    name = opened.store.capabilities.name
    parts = [int(part) for part in offset.split(".")]
    parts[place_in(name, shard)] -= 1
    # The check value in a file store's offset is the event's own, not that of the one before it.
    before = ".".join(map(str, parts[:1] if name == "file" else parts))
    try:
        page = opened.run(_read(opened, LogRange(shard, before, offset)))
    except EventsTrimmed:
        return None
    except InvalidOption:
        return False
    if not page.events and any(gap.tenant == event[1] for gap in page.gaps):
        return None
    told = [(e.kind, e.tenant, e.queue, e.job_id, e.at, e.attempt, e.token) for e in page.events]
    return told == [event]


async def _read(opened: OpenStore, stretch: LogRange) -> LogPage:
    return await opened.log.read(stretch, 1)


def _last_events(lake: Lake) -> Iterator[tuple[int, str, tuple[Any, ...]]]:
    """The last event of each shard in the last batch that has any: shard, offset, and what tells it from others."""
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
    from pyarrow import dataset  # pyright: ignore[reportMissingTypeStubs]

    arrow, data = cast("Any", pa), cast("Any", dataset)
    whole = {batch.batch for batch in lake.batches()}
    files: dict[int, list[str]] = {}
    for file in lake.path("events").glob("date=*/batch=*/*.parquet"):
        if (batch := int(file.parent.name.partition("=")[2])) in whole:
            files.setdefault(batch, []).append(str(file))
    if not files:
        return
    rows = data.dataset(files[max(files)], format="parquet")
    ends = rows.to_table(columns=["shard", "position"]).group_by("shard").aggregate([("position", "max")])
    columns = ["offset", "kind", "tenant", "queue", "job_id", "at", "attempt", "token"]
    for end in ends.to_pylist():
        wanted = (data.field("shard") == end["shard"]) & (data.field("position") == end["position_max"])
        row = rows.to_table(columns=columns, filter=wanted).slice(0, 1)
        ms = row.column("at").cast(arrow.timestamp("ms")).cast("int64")[0].as_py()
        (said,) = row.to_pylist()
        yield end["shard"], said["offset"], (*(said[name] for name in columns[1:5]), ms, said["attempt"], said["token"])


# The reader -----------------------------------------------------------------------------------------------------


def _is_known(opened: OpenStore, origin: Origin) -> bool:
    return any(reader.name == origin.reader for reader in opened.run(_readers(opened, origin)))


async def _readers(opened: OpenStore, origin: Origin) -> list[Reader]:
    return list(await opened.store.readers(origin.tenant))


def _register(opened: OpenStore, lake: Lake, origin: Origin) -> None:
    """Have trimming wait from the very first, and note what was trimmed before."""

    async def register() -> None:
        start, _ = await opened.log.bounds(None)
        if start.strip("0.") and not lake.batches():
            lake.note_gap("", start)
        await opened.store.set_reader(Reader(origin.tenant, origin.reader, start))

    opened.run(register())
