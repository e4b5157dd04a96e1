"""Questions in SQL on the tables of a lake."""

import pytest

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.lake import LAYER
from holdfast.pipeline.query import make_views, query, select
from holdfast.pipeline.transforms.sketches import merged, percentile
from tests.pipeline.hostile import JOBS


def test_every_table_can_be_asked_by_its_name(spark, history):
    make_views(spark, history)
    for table in LAYER:
        assert "count" in select(spark, f"SELECT count(*) AS count FROM {table}").columns
    answer = query(spark, history, "SELECT state, count(*) AS jobs FROM job_runs GROUP BY state ORDER BY jobs DESC;  ")
    counts = [row[1] for row in answer.rows]
    assert answer.columns == ["state", "jobs"]
    assert sum(counts) == JOBS
    assert counts == sorted(counts, reverse=True)
    assert not answer.more


def test_percentiles_are_those_of_the_histograms(spark, history):
    answer = query(spark, history, "SELECT wait_histogram, wait_p50_ms, wait_p95_ms, run_p99_ms FROM hourly")
    assert answer.rows
    for histogram, p50, p95, _ in answer.rows:
        assert p50 == pytest.approx(percentile(histogram, 50))
        assert p95 == pytest.approx(percentile(histogram, 95))
    rolled = query(spark, history, "SELECT percentile_ms(merged(collect_list(wait_histogram)), 95D) FROM hourly")
    assert rolled.rows[0][0] == pytest.approx(percentile(merged(row[0] for row in answer.rows), 95))
    values = "SELECT percentile_ms(map(-1, 3L, 10, 1L), 50), percentile_ms(CAST(map() AS MAP<INT, BIGINT>), 50)"
    assert query(spark, history, values).rows == [[0.0, None]]


def test_rows_beyond_the_limit_are_left_out_and_that_is_said(spark, history):
    sql = "WITH e AS (SELECT * FROM events) SELECT position FROM e ORDER BY position -- all"
    answer = query(spark, history, sql, 3)
    assert (len(answer.rows), answer.more) == (3, True)
    assert answer.rows == sorted(answer.rows)


REFUSED = (
    "DROP VIEW events",
    "INSERT INTO events VALUES (1)",
    "CREATE TABLE t AS SELECT 1",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1",
    "SET spark.sql.shuffle.partitions = 1",
    "SELECT 1; DROP VIEW events",
    "SELECT nothing FROM events",
    "SELECT * FROM no_such_table",
    "SELEC 1",
    "",
    " ;",
)


def test_only_a_select_is_run(spark, history):
    make_views(spark, history)
    for sql in REFUSED:
        with pytest.raises(InvalidOption, match="query: "):
            select(spark, sql)
        assert select(spark, "SELECT count(*) FROM events").collect()[0][0] > 0
    with pytest.raises(InvalidOption, match="query: "):
        query(spark, history, REFUSED[0])
