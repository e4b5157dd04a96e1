"""Questions in SQL on the tables of a lake."""

import pytest
from pyspark.errors import AnalysisException

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.judge import FUNCTIONS
from holdfast.pipeline.lake import LAYER
from holdfast.pipeline.query import make_views, query, select
from holdfast.pipeline.transforms.sketches import merged, percentile
from holdfast.pipeline.triage import quoted
from tests.pipeline.hostile import JOBS


def test_every_table_can_be_queried_by_its_name(spark, history):
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


def test_rows_beyond_the_limit_are_left_out_with_a_note(spark, history):
    sql = "WITH e AS (SELECT * FROM events) SELECT position FROM e ORDER BY position -- all"
    answer = query(spark, history, sql, 3)
    assert (len(answer.rows), answer.more) == (3, True)
    assert answer.rows == sorted(answer.rows)


SAME = (
    "SELECT state, count(*) AS n FROM job_runs GROUP BY ALL ORDER BY ALL",
    "SELECT kind, count(DISTINCT job_id) AS n, max(at) AS last FROM events GROUP BY kind HAVING n > 1 ORDER BY kind",
    "SELECT tenant, count(*) FILTER (WHERE state = 'failed') AS n FROM job_runs GROUP BY tenant ORDER BY 1 NULLS LAST",
    "SELECT sum(wait_ms) OVER (PARTITION BY queue ORDER BY claimed_at ROWS 3 PRECEDING) FROM attempts ORDER BY 1",
    "SELECT date_trunc('HOUR', at) AS hour, extract(HOUR FROM max(at)) AS h FROM events GROUP BY 1 ORDER BY 1",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY run_ms) AS p, percentile(run_ms, 0.9) AS q FROM attempts",
    "WITH events AS (SELECT 1 AS a) SELECT a, e.* FROM events JOIN (SELECT min(run_ms) AS b FROM attempts, events) e",
    "SELECT * FROM VALUES (1, 'a'), (2, NULL) AS t(n, s) LEFT ANTI JOIN range(2) r ON t.n = r.id",
    "SELECT x, p FROM VALUES (array(3, 4)) AS t(xs) LATERAL VIEW posexplode(xs) v AS p, x ORDER BY x",
    "SELECT filter(xs, (x, i) -> x > i), exists(xs, x -> x = 1) FROM VALUES (array(1, 2, 3)) AS t(xs)",
    "SELECT transform(array(1, 2), x -> x * 2), aggregate(array(1, 2), 0, (a, x) -> a + x)",
    "SELECT CAST('7' AS INT), '7'::INT, 7L, 7D, 1.50BD, 1e3, -7 DIV 2, 7 % 4, 5 & 3, 5 | 3, 5 ^ 3, ~5, 7 / 2",
    "SELECT DATE'2026-01-31' + INTERVAL 1 MONTH, TIMESTAMP'2026-01-31 12:00:00' - INTERVAL '90' MINUTE",
    "SELECT map('a', 1)['a'], array(1, 2)[1], named_struct('a', 1).a, struct(1 AS a).a",
    r"""SELECT 'a\'b', 'a\\b', 'a\nb', '\u0041', 'a\%b' LIKE 'a\%b', 'a_b' RLIKE '^a.b$', r'a\b', "it's", X'1F' """,
    "SELECT NULL <=> NULL, 1 IS NOT NULL AND NOT false, 2 BETWEEN 1 AND 3, 1 IN (1, 2), CASE 1 WHEN 1 THEN 'a' END",
    "SELECT 1 AS `a b`, 2 AS `c``d` UNION ALL SELECT 3, 4 EXCEPT SELECT 5, 6 INTERSECT SELECT 7, 8",
    "SELECT kind, queue, count(*) AS n FROM events GROUP BY ROLLUP (kind, queue) ORDER BY ALL",
    "SELECT * EXCEPT (at) FROM events ORDER BY position LIMIT 2 OFFSET 1",
)


def test_a_rewritten_query_gives_the_same_result(spark, history):
    make_views(spark, history)
    for sql in SAME:
        asked, written = spark.sql(sql), select(spark, sql)
        assert [kind for _, kind in written.dtypes] == [kind for _, kind in asked.dtypes], sql
        assert [tuple(row) for row in written.collect()] == [tuple(row) for row in asked.collect()], sql


def test_every_allowed_function_exists_in_spark(spark, history):
    make_views(spark, history)
    known = {row[0] for row in spark.sql("SHOW FUNCTIONS").collect()}
    assert not {name for name in FUNCTIONS if name not in known}


def test_a_string_literal_is_the_same_in_spark(spark):
    texts = [
        "it's",
        "\\",
        "\\'",
        "'; DROP VIEW events; --",
        "a\\nb",
        "\n\t\r\x00",
        "\u2028é😀",
        "`",
        '"',
        "\\u0041",
        "%_",
        "$ {a}",
    ]
    row = select(spark, f"SELECT {', '.join(map(quoted, texts))}").collect()[0]
    assert list(row) == texts


REFUSED = (
    "SELECT TRANSFORM (kind) USING 'touch {mark}' FROM events",
    "FROM events MAP kind USING 'touch {mark}'",
    "SELECT * FROM text.`{secret}`",
    "SELECT * FROM events LATERAL VIEW explode(array(1)) `t UNION SELECT value, value FROM text.``{secret}``` AS x",
    "SELECT java_method('java.lang.System', 'setProperty', 'holdfast', 'here')",
    "INSERT OVERWRITE DIRECTORY '{mark}' USING csv SELECT 1",
    "DROP VIEW events",
    "SELECT 1; DROP VIEW events",
    "SELECT '${{spark.app.name}}'",
    "SELECT nothing FROM events",
    "SELECT * FROM no_such_table",
)


def test_a_refused_query_leaves_no_trace(spark, history, tmp_path):
    (tmp_path / "secret").write_text("hidden")
    names = {"mark": tmp_path / "mark", "secret": tmp_path / "secret"}
    for sql in REFUSED:
        with pytest.raises(InvalidOption, match="query: ") as refused:
            query(spark, history, sql.format(**names))
        assert "hidden" not in str(refused.value)
        assert not (tmp_path / "mark").exists()
        assert select(spark, "SELECT count(*) FROM events").collect()[0][0] > 0


def test_a_session_reads_no_file_as_a_table_even_without_the_checks(spark, tmp_path):
    (tmp_path / "secret").write_text("hidden")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM text.`{tmp_path}/secret`").collect()
    assert spark.sql("SELECT '${spark.app.name}'").collect()[0][0] == "${spark.app.name}"
