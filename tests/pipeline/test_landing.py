"""Files that tasks write: by day, whole or not at all, and in a table only when the driver knows of them."""

from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace

import pytest
from pyarrow import parquet

from holdfast.pipeline import landing, reader
from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.reader import EventFilter
from tests.log import all_events
from tests.pipeline.traffic import as_rows, make_traffic, of_store

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def piece(file_url, monkeypatch):
    """A store, a piece that is all of its log, over two days, and pages that are shorter than either."""
    monkeypatch.setattr(reader, "PAGE", 7)
    monkeypatch.setattr(landing, "GROUP_ROWS", 20)
    url = f"{file_url}?test_clock=1"

    async def fill(store):
        await make_traffic(store, 20)
        await store.shift_clock(DAY_MS)
        await make_traffic(store, 20, seed=2)

    of_store(url, fill)
    with OpenStore(url) as opened:
        (whole,) = opened.run(opened.log.split(*opened.run(opened.log.bounds(None)), 10_000))
    return url, whole


def test_a_task_writes_a_file_for_each_day_and_lists_them(piece, tmp_path):
    url, whole = piece
    events = of_store(url, all_events)
    reported = list(landing.land(url, whole, EventFilter(), str(tmp_path / "here")))
    days = {datetime.fromtimestamp(event.at / 1000, UTC).date() for event in events}
    assert len(days) == 2
    assert {day for day, *_ in reported} == days
    assert {name for _, name, *_ in reported} == {path.name for path in (tmp_path / "here").iterdir()}
    found = []
    for day, name, rows, _, _ in reported:
        table = parquet.read_table(tmp_path / "here" / name)
        assert table.num_rows == rows
        assert {at.date() for at in table["at"].to_pylist()} == {day}
        found += [SimpleNamespace(**row) for row in table.to_pylist()]
    assert as_rows(found) == as_rows(events)


def test_a_task_that_fails_leaves_no_file(piece, tmp_path, monkeypatch):
    def breaks(*args):
        for number, batch in enumerate(reader.read_range(*args)):
            if number == 5:
                assert list(tmp_path.glob("here/*.parquet"))
                raise OSError("the store is gone")
            yield batch

    monkeypatch.setattr(landing, "read_range", breaks)
    with pytest.raises(OSError, match="is gone"):
        list(landing.land(*piece, EventFilter(), str(tmp_path / "here")))
    assert list((tmp_path / "here").iterdir()) == []


def test_a_batch_has_exactly_the_files_that_its_tasks_listed(tmp_path):
    lake = Lake(tmp_path / "lake", create=True)
    today = date(2030, 1, 31)
    for day in (today, today - timedelta(days=1)):
        half = lake.path("events") / f"date={day}" / "batch=3"
        half.mkdir(parents=True)
        (half / "part-of-a-killed-driver.parquet").touch()
    other = lake.path("events") / f"date={today}" / "batch=2" / "part-0.parquet"
    other.parent.mkdir()
    other.touch()
    lake.landing.mkdir()
    for name in ("known", "also", "of-a-task-that-ran-twice"):
        (lake.landing / name).touch()
    lake.take_files("events", 3, [(today, "known"), (today, "also")])
    files = sorted(path.relative_to(lake.path("events")) for path in lake.path("events").rglob("part-*"))
    assert [str(path) for path in files] == [
        "date=2030-01-31/batch=2/part-0.parquet",
        "date=2030-01-31/batch=3/part-also",
        "date=2030-01-31/batch=3/part-known",
    ]
    lake.clear_landing()
    assert not lake.landing.exists()
