"""A lake goes on with the log that it has the beginning of, and with no other. None of this needs Spark."""

import json
from pathlib import Path

import pytest

from holdfast.core.errors import StoreMismatch
from holdfast.opening import parse_url
from holdfast.pipeline.batches import batch_of
from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.ingest import IngestPlan
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.landing import land
from holdfast.pipeline.origin import check_known, establish_origin
from holdfast.pipeline.reader import EventFilter
from holdfast.testing.conformance import Spaces
from tests.pipeline.traffic import make_traffic, of_store
from tests.stores.file.test_restore import copy

PRUNED = "&keep_events=0"


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake", create=True)


def origin_of(lake, url, **options):
    """What an ingest settles before it begins."""
    with OpenStore(url) as opened:
        return establish_origin(opened, lake, IngestPlan(url, **options))


def take_in(lake, url):
    """One batch with all that the log has more, as an ingest leaves it."""
    origin = origin_of(lake, url)
    number = len(lake.batches())
    with OpenStore(url) as opened:
        start, end = opened.run(opened.log.bounds(lake.read_up_to()))
        stretches = opened.run(opened.log.split(start, end, 100))
        files = [file for log_range in stretches for file in land(url, log_range, EventFilter(), str(lake.landing))]
        check_known(opened, origin)
    files = [file for file in files if file[1]]
    lake.take_files("events", number, [(day, name) for day, name, *_ in files])
    (lake.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (lake.checkpoint / "offsets" / str(number)).write_text(json.dumps({"offset": end}))
    lake.record_batch(batch_of(number, [(day, rows, checksum) for day, _, rows, checksum, _ in files]))
    return origin


@pytest.fixture(params=["file", "valkey"])
def made_anew(request, lake):
    """A lake, and a store that is not the one it has read."""
    url = request.getfixturevalue(f"{request.param}_url")
    of_store(url, lambda store: make_traffic(store, 40))
    take_in(lake, url)
    return Spaces(url).url("anew")


@pytest.mark.parametrize("jobs", [5, 200])
def test_an_ingest_does_not_continue_from_a_recreated_store(made_anew, lake, jobs):
    of_store(made_anew, lambda store: make_traffic(store, jobs, seed=2))
    before = (lake.root / "_origin.json").read_bytes()
    with pytest.raises(StoreMismatch, match=r"is not in the log of the store.* Ingest it into another --lake"):
        origin_of(lake, made_anew, moved=True)
    with pytest.raises(StoreMismatch, match="is not in the log of the store"):
        origin_of(lake, made_anew, moved=True, accept_gap=True)
    assert (lake.root / "_origin.json").read_bytes() == before
    assert of_store(made_anew, lambda store: store.readers(None)) == []


def test_a_lake_that_has_read_past_its_last_event_notices_an_older_backup(file_url, lake, tmp_path):
    """As the lake of a tenant that had none of the events which are gone."""
    database = Path(parse_url(file_url).rest) / "holdfast.db"
    of_store(file_url, lambda store: make_traffic(store, 20))
    take_in(lake, file_url)
    copy(database, tmp_path / "backup.db")
    of_store(file_url, lambda store: make_traffic(store, 20, seed=2))
    end = of_store(file_url, lambda store: store.last_offset())
    (lake.checkpoint / "offsets" / "0").write_text(json.dumps({"offset": end}))
    assert origin_of(lake, file_url)
    copy(tmp_path / "backup.db", database)
    for _ in range(2):
        for accept_gap in (False, True):
            with pytest.raises(StoreMismatch, match=r"has read up to .* is not in the log of the store"):
                origin_of(lake, file_url, accept_gap=accept_gap)
        of_store(file_url, lambda store: make_traffic(store, 40, seed=3))


def test_a_store_that_lost_ingested_events_is_recognised_by_its_reader(valkey_url, lake):
    url = valkey_url + PRUNED
    of_store(url, lambda store: make_traffic(store, 20))
    name = take_in(lake, url).reader

    async def prune(store):
        await make_traffic(store, 20, seed=2)
        while (await store.prune(1000)).more:
            pass

    async def drop(store):
        await store.drop_reader(None, name)
        await prune(store)

    of_store(url, prune)
    assert origin_of(lake, url).reader == name
    of_store(url, drop)
    with pytest.raises(StoreMismatch, match=r"it cannot be shown that .* continue with --accept-gap"):
        origin_of(lake, url)
    assert origin_of(lake, url, accept_gap=True).reader == name
    assert [reader.name for reader in of_store(url, lambda store: store.readers(None))] == [name]


def test_a_dropped_reader_is_registered_again_if_the_log_is_the_same(url, lake):
    of_store(url, lambda store: make_traffic(store, 30))
    take_in(lake, url)
    of_store(url, lambda store: make_traffic(store, 10, seed=2))
    origin = take_in(lake, url)
    of_store(url, lambda store: store.drop_reader(None, origin.reader))
    with OpenStore(url) as opened, pytest.raises(StoreMismatch, match="no longer knows the reader"):
        check_known(opened, origin)
    assert origin_of(lake, url) == origin
    with OpenStore(url) as opened:
        check_known(opened, origin)


def test_a_lake_without_an_origin_ingests_nothing(file_url, lake):
    of_store(file_url, lambda store: make_traffic(store, 5))
    take_in(lake, file_url)
    (lake.root / "_origin.json").unlink()
    with pytest.raises(StoreMismatch, match=r"_origin\.json is gone"):
        origin_of(lake, file_url)
