"""The directory of a lake: tables that are swapped, notes that are damaged. None of this needs Spark."""

from pathlib import Path

import pytest

from holdfast.core.errors import InvalidOption, StoreBusy, StoreMismatch
from holdfast.pipeline import replay
from holdfast.pipeline.batches import Batch
from holdfast.pipeline.build import progress
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.origin import read_origin


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake", create=True)


def put(place, text):
    place.mkdir(parents=True)
    (place / "part.parquet").write_text(text)
    return place


def test_a_reader_during_a_swap_sees_the_old_table_and_does_not_block_it(lake, monkeypatch):
    place = put(lake.path("hourly"), "old")
    fresh = put(place.with_name(".hourly.new-x"), "new")
    seen = []
    rename = Path.rename

    def look_in_between(path, target):
        if path == fresh:
            found = Lake(lake.root).found("hourly")
            seen.append((found / "part.parquet").read_text())
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", look_in_between)
    lake.swap(place, fresh)
    assert seen == ["old"]
    assert (lake.found("hourly") / "part.parquet").read_text() == "new"
    assert [path.name for path in place.parent.iterdir()] == ["hourly"]


def test_the_next_writer_restores_a_table_that_a_dead_writer_left(lake):
    old = put(lake.path("hourly").with_name(".hourly.old-x"), "old")
    with lake.lock("ingest"):
        assert lake.found("hourly") == old
    with lake.lock("build"):
        assert lake.found("hourly") == lake.path("hourly")
    # One that died a step later has only left rubbish.
    put(old, "older")
    with lake.lock("build"):
        assert not old.exists()
    assert (lake.path("hourly") / "part.parquet").read_text() == "old"


NOTES = {
    "_batches/00000003.json": Lake.batches,
    "_build.json": progress,
    "_origin.json": read_origin,
    "bronze/gaps/x.json": Lake.gaps,
    "_checkpoint/offsets/2": Lake.read_up_to,
    "receipt.json": lambda lake: replay.read_receipt(lake.root),
}


@pytest.mark.parametrize("text", [b"", b'{"ba', b"[]", b"\xff\xfe"])
@pytest.mark.parametrize("name", NOTES)
def test_a_damaged_record_is_named_with_what_to_do(lake, name, text):
    lake.record_batch(Batch(2, 10))
    note = lake.root / name
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_bytes(text)
    with pytest.raises(StoreMismatch, match=f"{note.name} is damaged: .+[.] (Restore|Build|Start) ") as error:
        NOTES[name](lake)
    assert "\n" not in str(error.value)


def test_a_reader_of_the_lock_sees_its_owner(lake):
    lake.check_free("ingest", "build")
    with lake.lock("build"):
        lake.check_free("ingest")
        with pytest.raises(StoreBusy, match="build is already running on this lake: process"):
            lake.check_free("ingest", "build")
    lake.check_free("build")


def test_a_lake_cannot_be_a_file_or_in_one(tmp_path):
    (tmp_path / "letter.txt").touch()
    with pytest.raises(InvalidOption, match=r"letter\.txt is a file; name a directory"):
        Lake(tmp_path / "letter.txt", create=True)
    with pytest.raises(InvalidOption, match="cannot be created: Not a directory"):
        Lake(tmp_path / "letter.txt" / "lake", create=True)
