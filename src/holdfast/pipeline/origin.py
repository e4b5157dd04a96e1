"""The store whose log a lake holds, and the check that it is still the same log.

An address is not enough: a store that was recreated, or restored from a backup, has the same address and another log.
Its offsets look alike. An ingest that just continued would miss the beginning of that log, or mix two logs. So:

- the last events of the lake are looked up in the store, which must have them if it still keeps that part of its log.
- the lake is a registered reader with a unique name, which no other store knows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import EventsTrimmed, InvalidOption, StoreMismatch
from holdfast.extensions import LogRange
from holdfast.opening import parse_url, shown_url
from holdfast.pipeline.json_files import read_json, write_json
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.positions import offset_before, positions
from holdfast.store import LogPage, Reader

if TYPE_CHECKING:
    from holdfast.pipeline.connection import OpenStore
    from holdfast.pipeline.ingest import IngestPlan

ORIGIN = "_origin.json"
_OTHER = (
    "is not in the log of the store: it is another store, or it was recreated, or restored from an older backup. "
    "Ingest it into another --lake; this one was not changed"
)


class Origin(Struct, frozen=True):
    """Where a lake's events come from. The first ingest records it."""

    store: str
    """Without password and options."""
    tenant: str | None
    reader: str


def read_origin(lake: Lake) -> Origin:
    """Where the lake's events come from. Raises InvalidOption before the first ingest, StoreMismatch if damaged."""
    try:
        return read_json(lake.root / ORIGIN, Origin)
    except FileNotFoundError:
        raise InvalidOption("lake", f"nothing has been ingested into {lake.root} yet") from None


def establish_origin(opened: OpenStore, lake: Lake, plan: IngestPlan) -> Origin:
    """Check that the lake belongs to this store, or bind a new lake to it. Registers the lake as a reader.

    Raises StoreMismatch if the lake belongs to another store or tenant, or to this store before it was recreated.
    """
    origin = _named_origin(lake, plan)
    _check_checkpoint(lake)
    known = _is_known(opened, origin)
    _check_log(opened, lake, plan, known=known)
    if not (lake.root / ORIGIN).exists() or read_origin(lake) != origin:
        # Write it only after the checks: a wrong address must not stay.
        write_json(lake.root / ORIGIN, origin)
    if not known:
        _register(opened, lake, origin)
    return origin


def check_known(opened: OpenStore, origin: Origin) -> None:
    """Raise StoreMismatch if the store does not know the lake: it was recreated since the ingest began."""
    if not _is_known(opened, origin):
        raise StoreMismatch(
            f"the store no longer knows the reader {origin.reader}: it was recreated, or the reader was dropped, while "
            "its log was read. The ingest stops here. Ingest again to find out which it was."
        )


def _named_origin(lake: Lake, plan: IngestPlan) -> Origin:
    """The origin by its address and tenant, before the log is compared."""
    parsed = parse_url(plan.store)
    store = shown_url(f"{parsed.scheme}:{parsed.rest}")
    if not (lake.root / ORIGIN).exists():
        if lake.batches():
            raise StoreMismatch(f"{lake.root / ORIGIN} is gone: it is no longer known which log the lake holds")
        return Origin(store, plan.tenant, f"lake-{uuid.uuid4().hex[:12]}")
    origin = read_origin(lake)
    if origin.tenant != plan.tenant:
        whose = "all tenants" if origin.tenant is None else f"tenant {origin.tenant}"
        raise StoreMismatch(f"the lake in {lake.root} holds the events of {whose}; use another --lake for others")
    if origin.store != store and not plan.moved:
        raise StoreMismatch(
            f"the lake in {lake.root} holds the log of {origin.store}, not of {store}; use another --lake, "
            "or --moved if it is the same store at a new address"
        )
    return replace(origin, store=store)


def _check_checkpoint(lake: Lake) -> None:
    """Raise StoreMismatch if Spark's checkpoint is gone: Spark would number batches from 0 again."""
    if lake.batches() and not (lake.checkpoint / "offsets").is_dir():
        raise StoreMismatch(
            f"{lake.checkpoint} is gone: it is no longer known how far the lake in {lake.root} has read. "
            "Restore it from a backup, or ingest into a new directory."
        )


# The same log ---------------------------------------------------------------------------------------------------


def _check_log(opened: OpenStore, lake: Lake, plan: IngestPlan, *, known: bool) -> None:
    """Raise StoreMismatch unless the lake holds the beginning of the store's log."""
    offset = lake.read_up_to()
    if offset is None:
        return
    try:
        opened.run(_bounds(opened, offset))
    except EventsTrimmed as gap:
        ends = zip(positions(plan.store, gap.from_), positions(plan.store, gap.to), strict=True)
        if not any(start < end for start, end in ends):
            raise StoreMismatch(f"the lake in {lake.root} has read up to {offset}, which {_OTHER}") from None
        # The log was trimmed: the query raises that, and says how to continue.
    except InvalidOption:
        raise StoreMismatch(f"the lake in {lake.root} has read up to {offset}, which {_OTHER}") from None
    found = [_same(opened, plan.store, *last) for last in _last_events(lake)]
    if False in found:
        raise StoreMismatch(f"the last event that the lake in {lake.root} has read {_OTHER}")
    if not known and True not in found and not plan.accept_gap:
        raise StoreMismatch(
            f"it cannot be shown that the lake in {lake.root} has read this store's log: the store does not know the "
            "lake's reader, and no longer keeps what was read last. If it is another store, or was recreated, use "
            "another --lake. If its reader was dropped and its log trimmed since, continue with --accept-gap."
        )


async def _bounds(opened: OpenStore, offset: str) -> None:
    await opened.log.bounds(offset)


def _same(opened: OpenStore, url: str, shard: int, offset: str, event: tuple[Any, ...]) -> bool | None:
    """Whether the store has exactly this event at this offset; None if it no longer keeps that offset."""
    try:
        page = opened.run(_read(opened, LogRange(shard, offset_before(url, shard, offset), offset)))
    except EventsTrimmed:
        return None
    except InvalidOption:
        return False
    if not page.events and any(gap.tenant == event[1] for gap in page.gaps):
        return None
    found = [(e.kind, e.tenant, e.queue, e.job_id, e.at, e.attempt, e.token) for e in page.events]
    return found == [event]


async def _read(opened: OpenStore, log_range: LogRange) -> LogPage:
    return await opened.log.read(log_range, 1)


def _last_events(lake: Lake) -> Iterator[tuple[int, str, tuple[Any, ...]]]:
    """The last event of each shard in the last batch with events: shard, offset, and the fields that identify it."""
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
    from pyarrow import dataset  # pyright: ignore[reportMissingTypeStubs]

    arrow, data = cast("Any", pa), cast("Any", dataset)
    complete = {batch.batch for batch in lake.batches()}
    files: dict[int, list[str]] = {}
    for file in lake.path("events").glob("date=*/batch=*/*.parquet"):
        if (batch := int(file.parent.name.partition("=")[2])) in complete:
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
        (fields,) = row.to_pylist()
        yield (
            end["shard"],
            fields["offset"],
            (*(fields[name] for name in columns[1:5]), ms, fields["attempt"], fields["token"]),
        )


# The reader -----------------------------------------------------------------------------------------------------


def _is_known(opened: OpenStore, origin: Origin) -> bool:
    return any(reader.name == origin.reader for reader in opened.run(_readers(opened, origin)))


async def _readers(opened: OpenStore, origin: Origin) -> list[Reader]:
    return list(await opened.store.readers(origin.tenant))


def _register(opened: OpenStore, lake: Lake, origin: Origin) -> None:
    """Register the lake, so that trimming waits for it, and record what was trimmed before."""

    async def register() -> None:
        start, _ = await opened.log.bounds(None)
        if start.strip("0.") and not lake.batches():
            lake.record_gap("", start)
        await opened.store.set_reader(Reader(origin.tenant, origin.reader, start))

    opened.run(register())
