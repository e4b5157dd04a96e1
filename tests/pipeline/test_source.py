"""The data source: what Spark reads is what the store has."""

import json
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan, StringStartsWith
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.core.errors import InvalidOption
from holdfast.core.job import JobState
from holdfast.opening import absolute, parse_url
from holdfast.pipeline import ingest, replay, work
from holdfast.pipeline.reader import EventFilter
from holdfast.pipeline.schemas import EVENTS
from holdfast.pipeline.sink import WriteOptions
from holdfast.pipeline.source import EventsReader
from holdfast.pipeline.source_options import ReadOptions
from tests.log import all_events
from tests.pipeline.settings import only_full
from tests.pipeline.traffic import as_rows, make_traffic, of_store

WRITTEN = StructType([StructField("id", StringType()), StructField("payload", StringType())])


def load(spark, url, **options):
    return spark.read.format("holdfast").options(store=url, **options).load()


def ms(at):
    return None if at is None else round(at.replace(tzinfo=UTC).timestamp() * 1000)


def test_spark_reads_the_events_that_the_store_has(spark, url):
    of_store(url, lambda store: make_traffic(store, 50))
    events = of_store(url, all_events)
    found = load(spark, url, eventsPerPartition="40").collect()
    assert as_rows(found) == as_rows(events)
    # Within a shard, positions sort as the log does.
    order = {}
    for row in sorted(found, key=lambda row: (row.shard, row.position)):
        order.setdefault((row.tenant, row.queue, row.job_id), []).append((row.kind, row.token))
    for event in events:
        assert order[event.tenant, event.queue, event.job_id].pop(0) == (event.kind, event.token)


def test_the_data_of_an_event_is_in_columns(spark, file_url):
    of_store(file_url, lambda store: make_traffic(store, 80))
    for row in load(spark, file_url).collect():
        data = json.loads(row.data)
        error = data.get("error", {})
        assert (row.priority, row.max_attempts) == (data.get("priority"), data.get("max_attempts"))
        assert (ms(row.visible_at), ms(row.deadline)) == (data.get("visible_at"), data.get("deadline"))
        assert row.reason == data.get("reason")
        assert (row.error_type, row.error_message) == (error.get("type"), error.get("message"))
        assert row.fingerprint == error.get("fingerprint")


def test_filters_and_a_custom_schema_are_applied(spark, file_url):
    of_store(file_url, lambda store: make_traffic(store, 60))
    events = of_store(file_url, all_events)
    middle = datetime.fromtimestamp(events[len(events) // 2].at / 1000, UTC)
    want = [e for e in events if e.kind in ("claimed", "failed") and e.tenant == "acme" and e.at >= ms(middle)]
    frame = spark.read.format("holdfast").schema("job_id string, kind string, tenant string, at timestamp")
    frame = frame.option("store", file_url).load()
    found = frame.where(f.col("kind").isin("claimed", "failed") & (f.col("tenant") == "acme") & (f.col("at") >= middle))
    assert sorted((row.job_id, row.kind) for row in found.collect()) == sorted((e.job_id, e.kind) for e in want)


def test_filters_are_pushed_down_if_possible():
    reader = EventsReader(ReadOptions({"store": "file:x", "tenant": "acme,globex"}), EVENTS)
    since = datetime(2030, 1, 1, tzinfo=UTC)
    mine = [EqualTo(("tenant",), "acme"), In(("kind",), ("failed", "retried"))]
    shared = [GreaterThanOrEqual(("at",), since), LessThan(("at",), since)]
    foreign = [StringStartsWith(("job_id",), "x"), EqualTo(("attempt",), 2)]
    assert list(reader.pushFilters([*mine, *shared, *foreign])) == [*shared, *foreign]
    instant = round(since.timestamp() * 1000)
    kinds = frozenset({"failed", "retried"})
    assert reader._event_filter == EventFilter(frozenset({"acme"}), None, kinds, since=instant, until=instant + 1)


@only_full
def test_a_stream_reads_bounded_batches_and_continues_from_its_checkpoint(spark, valkey_url, tmp_path):
    # The other stores: test_ingest.py.
    url = valkey_url
    of_store(url, lambda store: make_traffic(store, 60))

    def run():
        stream = spark.readStream.format("holdfast").options(store=url, maxEventsPerBatch="100").load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]

    first = run()
    assert len(first) > 1
    assert max(first) <= 100 + 3 * 40
    of_store(url, lambda store: make_traffic(store, 10, seed=2))
    run()
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert as_rows(found) == as_rows(of_store(url, all_events))


def test_spark_reads_the_current_jobs(spark, url):
    of_store(url, lambda store: make_traffic(store, 40))
    jobs = load(spark, url, table="jobs", payload="true")
    found = {(row.tenant, row.queue, row.id): row for row in jobs.collect()}
    assert len(found) == 40
    failed = load(spark, url, table="jobs", states="failed,canceled").where("tenant = 'acme'").collect()
    want = {key for key, row in found.items() if row.state in ("failed", "canceled") and row.tenant == "acme"}
    assert {(row.tenant, row.queue, row.id) for row in failed} == want
    for (_, _, id_), row in found.items():
        assert row.payload == b'{"n":"%s"}' % id_.encode()
        assert row.size == len(row.payload)
        assert row.state in set(JobState)


def test_a_relative_directory_is_made_absolute_for_executors(tmp_path, monkeypatch):
    place = tmp_path / "with space"
    place.mkdir()
    monkeypatch.chdir(place)
    here = f"file:{tmp_path}/with%20space/store?create=0"
    assert ReadOptions({"store": "file:./store?create=0"}).store == here
    assert WriteOptions({"store": "file:store?create=0", "tenant": "acme"}, WRITTEN, overwrite=False).store == here
    for plan in (ingest.IngestPlan, work.WorkPlan, lambda store: replay.ReplayPlan(store, "true")):
        assert plan("file:./store?create=0").store == here
    assert parse_url(here).rest == str(place / "store")
    for url in ("file:/data?create=0", "file:///data", "redis://localhost/0", "postgresql://localhost/shop"):
        assert absolute(url) == url
    assert work.WorkPlan(here, stop_file="stop").stop_file == str(place / "stop")


def test_an_invalid_option_is_named_without_the_password():
    for options, said in [
        ({}, "store: not given"),
        ({"store": "secret-word"}, "that is not a store URL"),
        ({"store": "file:x", "tabel": "jobs"}, "tabel: there is no such option"),
        ({"store": "file:x", "table": "job"}, "'job' is neither"),
        ({"store": "file:x", "kind": "claimed,done"}, "'done' is unknown"),
        ({"store": "file:x", "states": "dead"}, "'dead' is unknown"),
        ({"store": "file:x", "eventsPerPartition": "0"}, "whole number above 0"),
    ]:
        with pytest.raises(InvalidOption) as error:
            ReadOptions(options)
        assert said in str(error.value)
        assert "secret-word" not in str(error.value)


@pytest.mark.parametrize(
    "url, said",
    [
        ("memory:", "a memory: store exists in one process"),
        ("file:/nowhere/at/all", "there is no store in /nowhere/at/all"),
        ("postgresql://someone:secret-word@127.0.0.1:1/x?connect_timeout_s=1", "127.0.0.1:1"),
        ("ftp://someone:secret-word@x", "no store is registered for ftp:"),
    ],
)
def test_an_unreadable_store_is_named_without_the_password(spark, url, said):
    with pytest.raises(Exception, match=r"holdfast\.core\.errors") as error:
        load(spark, url).count()
    assert said in str(error.value)
    assert "secret-word" not in str(error.value)
