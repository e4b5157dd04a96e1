"""DataFrames as jobs: one job for each row, whatever happens to the tasks."""

import threading
import time
from collections import Counter

import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.core.errors import InvalidName, InvalidOption, InvalidPayload, QuotaExceeded
from holdfast.core.job import ClaimRequest, Finish, JobKey, JobState
from holdfast.pipeline.connection import OpenStore
from holdfast.pipeline.sink import Sink, WriteOptions
from holdfast.store import TenantSettings
from tests.log import all_events
from tests.pipeline.traffic import of_store


def texts(names):
    """Columns of strings."""
    return StructType([StructField(name, StringType()) for name in names.split()])


TEXT = texts("id payload")


def write(frame, url, **options):
    options = {"tenant": "acme", "queue": "mail", "type": "send", **options}
    frame.write.format("holdfast").options(store=url, **options).mode("append").save()


def make_store(url):
    async def nothing(store):
        pass

    of_store(url, nothing)


def enqueued(url):
    return Counter(event.job_id for event in of_store(url, all_events) if event.kind == "enqueued")


def job(url, id_, queue="mail"):
    (found,) = of_store(url, lambda store: store.get([JobKey("acme", queue, id_)]))
    return found


def rows(spark, count):
    return spark.range(count).select(f.concat(f.lit("row-"), "id").alias("id"), f.struct("id").alias("payload"))


def test_each_row_is_one_job_although_tasks_fail_and_run_again(spark, url, tmp_path):
    seen = tmp_path / "seen"
    make_store(url)

    def fail_at_first(batches):
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().attemptNumber() == 0:
            with OpenStore(url) as opened:
                until = time.monotonic() + 30
                while time.monotonic() < until and not seen.exists():
                    if opened.run(opened.store.events(None, None, 1)).events:
                        seen.touch()
                    time.sleep(0.05)
            raise RuntimeError("this attempt fails when jobs of it are in the store")

    # Long rows in small batches, so that what was handed on does not wait in a buffer.
    long = f.struct("id", f.lit("x" * 5000).alias("text")).alias("payload")
    frame = spark.range(0, 600, 1, 2).select(f.concat(f.lit("row-"), "id").alias("id"), long)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        write(frame.mapInArrow(fail_at_first, frame.schema), url)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert seen.exists()
    assert enqueued(url) == {f"row-{n}": 1 for n in range(600)}


def test_rows_say_what_their_jobs_are(spark, file_url):
    make_store(file_url)
    frame = spark.sql("""
        SELECT * FROM VALUES
            ('a', NULL, '{"n":1}', NULL, NULL, 9, 2, NULL),
            (NULL, 'key-1', '[1,2]', 'other', 'resize', NULL, NULL, timestamp'2100-01-01 00:00:00')
        AS t (id, idempotency_key, payload, queue, type, priority, max_attempts, run_at)
    """)
    write(frame, file_url)
    a, b = job(file_url, "a"), job(file_url, "key-1", "other")
    assert (a.envelope.type, a.envelope.payload, a.envelope.priority, a.envelope.max_attempts) == (
        "send", b'{"n":1}', 9, 2,
    )  # fmt: skip
    assert (b.envelope.type, b.envelope.idempotency.key, b.state) == ("resize", "key-1", JobState.SCHEDULED)
    assert b.visible_at == 4102444800000


def test_a_stream_of_rows_becomes_jobs(spark, file_url, tmp_path):
    make_store(file_url)
    rows(spark, 20).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(rows(spark, 0).schema).parquet(str(tmp_path / "in"))
    writer = stream.writeStream.format("holdfast").options(store=file_url, tenant="acme", queue="mail")
    for _ in range(2):
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        query.awaitTermination()
    assert enqueued(file_url) == {f"row-{n}": 1 for n in range(20)}


def test_a_write_waits_for_a_full_quota(spark, file_url):
    make_store(file_url)
    of_store(file_url, lambda store: store.set_tenant("acme", TenantSettings(max_waiting=50)))
    stop = threading.Event()

    def work():
        with OpenStore(file_url) as opened:
            while not stop.wait(0.01):
                claimed = opened.run(opened.store.claim(ClaimRequest("acme", ("mail",), 50, 60_000, "w")))
                opened.run(opened.store.finish([Finish(job.key, job.token, "complete") for job in claimed.jobs]))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        write(rows(spark, 300).coalesce(1), file_url)
    finally:
        stop.set()
        worker.join()
    assert enqueued(file_url) == {f"row-{n}": 1 for n in range(300)}


def test_a_quota_that_stays_full_fails_the_write_with_the_reason(file_url):
    import pyarrow as pa

    make_store(file_url)
    of_store(file_url, lambda store: store.set_tenant("acme", TenantSettings(max_waiting=5)))
    sink = Sink({"store": file_url, "tenant": "acme", "patience": "0.2"}, TEXT, overwrite=False)
    batch = pa.RecordBatch.from_pydict({"id": [f"r{n}" for n in range(8)], "payload": ["{}"] * 8})
    with pytest.raises(QuotaExceeded) as error:
        sink.write(iter([batch]))
    assert "3 rows of this task were not enqueued after 0.2 s" in error.value.__notes__[0]
    assert len(enqueued(file_url)) == 5


def test_no_row_is_kept_beyond_the_ceiling_of_the_store(file_url):
    """[KEEP-1]"""
    import pyarrow as pa

    make_store(file_url)
    sink = Sink({"store": file_url, "tenant": "acme", "resultTtl": str(31 * 86400)}, TEXT, overwrite=False)
    batch = pa.RecordBatch.from_pydict({"id": ["a"], "payload": ["{}"]})
    with pytest.raises(InvalidOption, match="over the ceiling of 30 days"):
        sink.write(iter([batch]))
    assert enqueued(file_url) == {}


def test_a_second_write_with_the_same_name_enqueues_no_job_again(file_url):
    import pyarrow as pa

    from holdfast.core.job import Cancel

    make_store(file_url)
    batch = pa.RecordBatch.from_pydict({"id": ["a", "b"], "payload": ["{}", "{}"]})

    def again(**options):
        sink = Sink({"store": file_url, "tenant": "acme", "queue": "mail", **options}, TEXT, overwrite=False)
        return sink.write(iter([batch]))

    again(write="monday")
    of_store(file_url, lambda store: store.cancel([Cancel(JobKey("acme", "mail", "a"))]))
    again(write="monday")
    assert enqueued(file_url) == {"a": 1, "b": 1}
    # Another write finds b there, and a free to be enqueued anew.
    written = again()
    assert (written.queued, written.duplicates) == (1, 1)


@pytest.mark.parametrize(
    "ids, payloads, error, said",
    [
        ([None], ["{}"], InvalidOption, "neither an id nor"),
        (["a\n"], ["{}"], InvalidName, "control characters"),
        (["a"], ["{"], InvalidPayload, "not readable as json"),
        (["a"], [None], InvalidPayload, "the payload is null"),
    ],
)
def test_a_row_that_cannot_be_a_job_is_named(file_url, ids, payloads, error, said):
    import pyarrow as pa

    make_store(file_url)
    sink = Sink({"store": file_url, "tenant": "acme"}, TEXT, overwrite=False)
    with pytest.raises(error, match=said) as raised:
        sink.write(iter([pa.RecordBatch.from_pydict({"id": ids, "payload": payloads})]))
    assert f"id {ids[0]!r}" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    "columns, options, said",
    [
        ("id", {}, "payload: the column is missing"),
        ("payload", {}, "a column id or idempotency_key is required"),
        ("id payload colour", {}, "column colour: jobs have no such column"),
        ("id payload delay run_at", {}, "run_at or delay, not both"),
        ("id payload", {"tenant": ""}, "tenant"),
        ("id payload", {"quque": "x"}, "quque: there is no such option"),
        ("id payload", {"idempotency": "ttl"}, "is not 'until_terminal'"),
    ],
)
def test_an_invalid_write_is_refused_before_it_begins(columns, options, said):
    with pytest.raises((InvalidOption, InvalidName), match=said):
        WriteOptions({"store": "file:x", "tenant": "acme", **options}, texts(columns), overwrite=False)
    with pytest.raises(InvalidOption, match="never replaced"):
        WriteOptions({"store": "file:x", "tenant": "acme"}, TEXT, overwrite=True)
