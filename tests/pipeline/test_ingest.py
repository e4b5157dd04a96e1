"""The log into the lake: each event once, whatever happens in between."""

import json
import shutil

import pytest
from msgspec.structs import replace

from holdfast.core.errors import EventsTrimmed, InvalidOption, StoreBusy, StoreMismatch
from holdfast.core.names import OPERATOR
from holdfast.pipeline import ingest as ingesting
from holdfast.pipeline.audit import audit
from holdfast.pipeline.batches import Batch
from holdfast.pipeline.comparing import store_jobs
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.origin import read_origin
from holdfast.service.proofs import LeaseKeys
from tests.log import all_events
from tests.pipeline.settings import only_full
from tests.pipeline.traffic import as_rows, make_traffic, of_store


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake", create=True)


def taken_in(spark, lake):
    return as_rows(lake.read(spark, "events").collect())


def readers(url):
    return of_store(url, lambda store: store.readers(None))


def test_the_lake_has_the_log_and_continues_from_its_last_event(spark, url, lake):
    of_store(url, lambda store: make_traffic(store, 50))
    reported = []
    plan = IngestPlan(url, max_events=100, per_partition=60, payloads="hash")
    done = ingest(spark, lake, plan, lambda done: reported.append(done.events))
    events = of_store(url, all_events)
    assert taken_in(spark, lake) == as_rows(events)
    assert done.events == reported[-1] == len(events)
    assert done.batches == len(reported) == len(lake.batches()) > 1
    assert max(batch.events for batch in lake.batches()) <= 100 + 3 * 40
    assert (done.payloads, done.missing_payloads) == (50, 0)
    assert lake.read(spark, "payloads").where("payload IS NULL AND length(payload_sha256) = 64").count() == 50
    of_store(url, lambda store: make_traffic(store, 10, seed=2))
    more = ingest(spark, lake, plan)
    assert taken_in(spark, lake) == as_rows(of_store(url, all_events))
    # Trimming waits for what is not in the lake, and for no more.
    (reader,) = readers(url)
    assert reader.offset == more.offset == of_store(url, lambda store: store.last_offset())


def forget_commit(lake):
    """As a driver leaves it that dies before Spark notes that the batch has ended."""
    (lake.checkpoint / "commits" / "0").unlink()
    (lake.checkpoint / "commits" / ".0.crc").unlink()


def test_a_lake_has_one_ingest_and_one_store_and_each_batch_once(spark, file_url, lake, tmp_path, monkeypatch):
    of_store(file_url, lambda store: make_traffic(store, 30))
    with lake.lock("ingest"), pytest.raises(StoreBusy, match="already running on this lake: process"):
        ingest(spark, lake, IngestPlan(file_url))
    ingest(spark, lake, IngestPlan(file_url))
    want = taken_in(spark, lake)
    assert want == as_rows(of_store(file_url, all_events))

    # A batch that was all there is not read again.
    forget_commit(lake)
    files = sorted(lake.path("events").rglob("*.parquet"))
    ingest(spark, lake, IngestPlan(file_url))
    assert sorted(lake.path("events").rglob("*.parquet")) == files

    # One that is begun, and of which some is there, and nothing says so, is written anew.
    forget_commit(lake)
    (lake.root / "_batches" / "00000000.json").unlink()
    (written,) = lake.path("events").glob("date=*/batch=0/*.parquet")
    shutil.copy(written, written.with_name("part-9.parquet"))
    assert lake.unfinished_batches() == [0]
    assert taken_in(spark, lake) == []
    done = ingest(spark, lake, IngestPlan(file_url))
    assert (done.batches, lake.unfinished_batches()) == (1, [])
    assert taken_in(spark, lake) == want

    other = f"file:{tmp_path / 'other'}"
    of_store(other, lambda store: make_traffic(store, 5))
    with pytest.raises(StoreMismatch, match="--moved"):
        ingest(spark, lake, IngestPlan(other))
    with pytest.raises(StoreMismatch, match="events of all tenants"):
        ingest(spark, lake, IngestPlan(file_url, tenant="acme"))

    # A store that was made anew while it was read does not know the reader. One line says what stops a query.
    of_store(file_url, lambda store: make_traffic(store, 5, seed=2))
    with monkeypatch.context() as patch:
        patch.setattr(ingesting, "establish_origin", lambda *_: replace(read_origin(lake), reader="nobody"))
        with pytest.raises(StoreMismatch, match="no longer knows the reader") as error:
            ingest(spark, lake, IngestPlan(file_url))
    assert "\n" not in str(error.value)
    assert taken_in(spark, lake) == want
    ingest(spark, lake, IngestPlan(file_url))
    assert taken_in(spark, lake) == as_rows(of_store(file_url, all_events))

    offsets = lake.checkpoint / "offsets" / "1"
    offsets.write_text(offsets.read_text().replace('{"offset": "', '{"offset": "9'))
    with pytest.raises(StoreMismatch, match="which is not in the log of the store"):
        ingest(spark, lake, IngestPlan(file_url))
    shutil.rmtree(lake.checkpoint)
    with pytest.raises(StoreMismatch, match="is gone"):
        ingest(spark, lake, IngestPlan(file_url))


@only_full
def test_a_gap_in_the_log_is_reported_recorded_and_passed(spark, valkey_url, lake):
    url = f"{valkey_url}&keep_events=0"
    of_store(url, lambda store: make_traffic(store, 20))
    ingest(spark, lake, IngestPlan(url))
    before = taken_in(spark, lake)
    (reader,) = readers(url)

    async def cut(store):
        await store.drop_reader(None, reader.name)
        await make_traffic(store, 20, seed=2)
        while (await store.prune(1000)).more:
            pass

    of_store(url, cut)
    of_store(url, lambda store: make_traffic(store, 5, seed=3))
    with pytest.raises(StoreMismatch, match="it cannot be shown that"):
        ingest(spark, lake, IngestPlan(url))
    # As if trimming had not waited any longer, and the reader were still there.
    of_store(url, lambda store: store.set_reader(reader))
    with pytest.raises(EventsTrimmed) as error:
        ingest(spark, lake, IngestPlan(url))
    assert "--accept-gap" in error.value.__notes__[0]
    assert taken_in(spark, lake) == before
    (gap,) = lake.gaps()
    assert (gap.from_, gap.to) == (reader.offset, error.value.to)
    ingest(spark, lake, IngestPlan(url, accept_gap=True))
    assert taken_in(spark, lake) == sorted(before + as_rows(of_store(url, all_events)))
    assert lake.gaps() == [gap]
    # The table has it shard by shard, in positions.
    first = min(lake.read(spark, "gaps").collect(), key=lambda row: row.shard)
    assert int(first["from"]) == int(gap.from_.split(".")[first.shard])


def test_a_lake_of_another_format_is_not_changed(tmp_path):
    with pytest.raises(InvalidOption, match="there is no lake in"):
        Lake(tmp_path / "lake")
    Lake(tmp_path / "lake", create=True)
    mark = tmp_path / "lake" / "_holdfast.json"
    mark.write_text(json.dumps({"format": 7, "made_by": "9.9"}))
    with pytest.raises(StoreMismatch, match=r"format 7, made by holdfast 9\.9"):
        Lake(tmp_path / "lake", create=True)
    mark.write_text("half a wo")
    with pytest.raises(StoreMismatch, match="damaged"):
        Lake(tmp_path / "lake")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    with pytest.raises(InvalidOption, match="neither a lake nor empty"):
        Lake(tmp_path / "home", create=True)


def test_batches_are_recorded_whole(lake):
    lake.record_batch(Batch(3, 10))
    assert lake.batches() == [Batch(3, 10)]
    assert lake.batch(4) is None
    (lake.root / "_batches" / "00000003.json").write_text("{}")
    with pytest.raises(StoreMismatch, match="damaged"):
        lake.batch(3)


def test_records_of_the_operator_are_not_jobs_in_the_lake(spark, file_url, lake):
    """Their payloads are keys; and an audit finds them in the log, but not among the jobs of the store."""
    of_store(file_url, lambda store: make_traffic(store, 10))
    of_store(file_url, lambda store: LeaseKeys(store).rotate())
    done = ingest(spark, lake, IngestPlan(file_url, payloads="full"))
    assert (done.payloads, done.missing_payloads) == (10, 0)
    assert lake.read(spark, "events").where(f"tenant = '{OPERATOR}'").count() == 2
    assert lake.read(spark, "payloads").where(f"tenant = '{OPERATOR}'").count() == 0
    found = audit(spark, lake, store=store_jobs(spark, lake, file_url, payloads="full"))
    assert found.total == 0, found.text()
