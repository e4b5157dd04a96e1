"""What SQL is let through to Spark, and as what. No Spark is needed to say so.

Invariants verified:
- a statement that could run a program, call Java, read a file, write, or name anything but the lake's tables is refused
- a condition has no subquery and ends where it ends
- what is let through is written anew, and reading that gives the same again
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.judge import FUNCTIONS, condition, statement
from holdfast.pipeline.lake import LAYER
from holdfast.pipeline.triage import condition as cause_condition

PATH_TABLE = "``/etc/passwd``"

PROGRAMS = (
    "SELECT TRANSFORM (kind) USING 'id' FROM events",
    "SELECT TRANSFORM(kind) USING 'id' AS (a STRING) FROM events",
    "SELECT TRANSFORM(*) ROW FORMAT SERDE 'x' USING 'id' FROM events",
    "FROM events SELECT TRANSFORM(kind) USING 'id'",
    "SELECT * FROM (SELECT TRANSFORM(kind) USING 'id' FROM events)",
    "WITH e AS (SELECT TRANSFORM(kind) USING 'id' FROM events) SELECT * FROM e",
    "FROM events MAP kind USING 'cat'",
    "FROM events REDUCE kind USING 'cat'",
    "FROM (FROM events MAP kind USING 'cat' AS a) REDUCE a USING 'cat'",
    "SELECT MAP(kind, kind) USING 'id' FROM events",
)
FILES = (
    *(
        f"SELECT * FROM {form}.`/etc/passwd`"
        for form in ("text", "parquet", "json", "csv", "orc", "binaryFile", "`text`")
    ),
    "SELECT * FROM spark_catalog.text.`/etc/passwd`",
    "SELECT * FROM events JOIN text.`/etc/passwd`",
    "SELECT * FROM events, text.`/etc/passwd`",
    "SELECT (SELECT max(value) FROM text.`/etc/passwd`)",
    "SELECT * FROM events WHERE kind IN (SELECT value FROM text.`/etc/passwd`)",
    "SELECT * FROM events WHERE EXISTS (SELECT 1 FROM text.`/etc/passwd`)",
    "SELECT * FROM events ORDER BY (SELECT max(value) FROM text.`/etc/passwd`)",
    "SELECT * FROM events UNION ALL SELECT value FROM text.`/etc/passwd`",
    "WITH text AS (SELECT 1) SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM (VALUES (1)) t, LATERAL (SELECT value FROM text.`/etc/passwd`)",
    "SELECT * FROM events |> UNION ALL (SELECT value FROM text.`/etc/passwd`)",
    "TABLE text.`/etc/passwd`",
    "SELECT * FROM read_files('/etc/passwd')",
    "SELECT * FROM text('/etc/passwd')",
    "SELECT * FROM events, LATERAL read_files(kind)",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "SELECT * FROM IDENTIFIER('text' || '.' || '`/etc/passwd`')",
    "SELECT * FROM TABLE(text.`/etc/passwd`)",
    # The name of a lateral view is written as it is: text that would become SQL is judged again.
    f"SELECT x FROM events LATERAL VIEW explode(array(1)) `t AS x UNION SELECT value FROM text.{PATH_TABLE} --` AS x",
    f"SELECT x FROM events LATERAL VIEW explode(array(1)) `t AS x UNION SELECT value FROM text.{PATH_TABLE}` AS x",
    "SELECT x FROM events LATERAL VIEW explode(array(1)) `t /* */` AS x",
)
FUNCTIONS_OF_THE_MACHINE = (
    "java_method('java.lang.System', 'getenv', 'HOME')",
    "reflect('java.lang.System', 'getenv', 'HOME')",
    "try_reflect('java.lang.System', 'getenv', 'HOME')",
    "`java_method`('java.lang.System', 'getProperties')",
    "JAVA_METHOD ('java.lang.System', 'getProperties')",
    "java_method /* sqlglot.anonymous */ ('java.lang.System', 'getProperties')",
    "system.builtin.reflect('java.lang.System', 'getenv', 'HOME')",
    "spark_catalog.default.count(1)",
    "IDENTIFIER('java_method')('java.lang.System', 'getenv', 'HOME')",
    "IDENTIFIER('kind')",
    "input_file_name()",
    "version()",
    "current_user()",
    "current_user",
    "session_user",
    "current_database()",
    "from_protobuf(kind, 'a', '/etc/passwd')",
    "from_avro(kind, '{}')",
    "xpath('<a/>', 'a')",
    "from_xml('<a/>', 'a INT')",
    "schema_of_xml('<a/>')",
    "ai_query('a', 'b')",
    "secret('a', 'b')",
    "raise_error('a')",
    "no_such_function(1)",
    "filter(array(1), x -> reflect('a', 'b') = x)",
    "transform(array(1), x -> java_method('a', x))",
    "max(reflect('a', 'b')) OVER (PARTITION BY reflect('a', 'b'))",
    "CASE WHEN reflect('a', 'b') = 'c' THEN 1 END",
    "CAST(reflect('a', 'b') AS INT)",
    "array(1)[reflect('a', 'b')]",
    "struct(reflect('a', 'b') AS c)",
    "INTERVAL (reflect('a', 'b')) DAY",
)
OTHER_STATEMENTS = (
    "DROP VIEW events",
    "INSERT INTO events VALUES (1)",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1",
    "FROM events INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT *",
    "WITH a AS (SELECT 1) INSERT INTO events SELECT * FROM a",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMPORARY FUNCTION count AS 'a.b.C' USING JAR '/tmp/x.jar'",
    "SELECT * INTO t FROM events",
    "SET spark.sql.shuffle.partitions = 1",
    "SET VAR x = 1",
    "DECLARE x INT",
    "ADD JAR '/tmp/x.jar'",
    "ADD FILE '/etc/passwd'",
    "LIST FILES",
    "DESCRIBE events",
    "EXPLAIN SELECT 1",
    "SHOW TABLES",
    "CACHE TABLE events",
    "REFRESH TABLE events",
    "USE default",
    "CALL a.b()",
    "MERGE INTO events USING job_runs ON true WHEN MATCHED THEN DELETE",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "EXECUTE IMMEDIATE 'SELECT ?' USING 1",
    "BEGIN SELECT 1; END",
    "SELECT 1; DROP VIEW events",
    "SELECT 1; SELECT 2",
    "SELEC 1",
    "SELECT (1",
    "SELECT 1)",
    "",
    " ;",
    "/* nothing */",
)
NAMES = (
    "SELECT * FROM no_such_table",
    "SELECT * FROM default.events",
    "SELECT * FROM global_temp.events",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM `events `",
    "SELECT * FROM STREAM events",
    "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a",
    "WITH a AS (SELECT * FROM a) SELECT * FROM a",
    "WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM a) SELECT * FROM a",
    "SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) JOIN a",
    "SELECT * FROM events VERSION AS OF 1",
    "SELECT * FROM events TIMESTAMP AS OF '2026-01-01'",
    "SELECT * FROM events@v1",
    "SELECT /*+ BROADCAST(events) */ * FROM events",
    "SELECT /*+ REPARTITION(1000000) */ * FROM events",
    "SELECT :name",
    "SELECT ?",
    "SELECT @name",
    "SELECT @@name",
    "SELECT {{name}}",
    "SELECT ${system:user.name}",
    "SELECT '${env:HOME}'",
    "SELECT 1 AS `${env:HOME}`",
    r"SELECT '$\u007benv:HOME}'",
    "SELECT 'it''s'",
    "SELECT 'a' 'b'",
    f"SELECT {'(' * 5000}1{')' * 5000}",
)


@pytest.mark.parametrize(
    "sql",
    [
        *PROGRAMS,
        *FILES,
        *OTHER_STATEMENTS,
        *NAMES,
        *(f"SELECT {call} FROM events" for call in FUNCTIONS_OF_THE_MACHINE),
    ],
)
def test_a_statement_other_than_a_query_is_refused(sql):
    with pytest.raises(InvalidOption, match=r"\Aquery: "):
        statement(sql)


CONDITIONS = (
    "true; DROP VIEW events",
    "true) OR (1 = 1",
    "1 = 1) UNION SELECT * FROM text.`/etc/passwd` WHERE (1 = 1",
    "(1 = 1",
    "type IN (SELECT value FROM text.`/etc/passwd`)",
    "type = (SELECT 1)",
    "type = ANY (SELECT 1)",
    "EXISTS (SELECT 1)",
    "EXISTS (FROM events)",
    "type IN (TABLE events)",
    "type IN (VALUES ('a'))",
    "SELECT 1",
    "true UNION SELECT 1",
    "true ORDER BY type",
    "true LIMIT 1",
    "true AS a",
    "a = 1, b = 2",
    "type = '${env:HOME}'",
    "type = :type",
    "/*+ HINT */",
    "error_type = ",
    "DROP VIEW events",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "",
    *FUNCTIONS_OF_THE_MACHINE,
)


@pytest.mark.parametrize("sql", CONDITIONS)
def test_a_condition_with_further_clauses_is_refused(sql):
    with pytest.raises(InvalidOption, match=r"\Awhere: "):
        condition(sql)


ASKED = {
    "SELECT * FROM events;": "SELECT * FROM `events`",
    "select Kind from EVENTS -- all\n": "SELECT `Kind` FROM `EVENTS`",
    "SELECT /* why */ count(*) FROM `events`": "SELECT count(*) FROM `events`",
    "WITH events AS (SELECT 1) SELECT * FROM events": "WITH `events` AS (SELECT 1) SELECT * FROM `events`",
    "WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b, A": (
        "WITH `a` AS (SELECT 1), `b` AS (SELECT * FROM `a`) SELECT * FROM `b` CROSS JOIN `A`"
    ),
    "SELECT * FROM range(3)": "SELECT * FROM range(3)",
    "SELECT filter(xs, x -> x > 1) FROM events": "SELECT filter(`xs`, `x` -> `x` > 1) FROM `events`",
    "SELECT transform(xs, x -> x + 1) FROM events": "SELECT TRANSFORM(`xs`, `x` -> `x` + 1) FROM `events`",
    "SELECT * FROM events LATERAL VIEW explode(a) t AS x": "SELECT * FROM `events` LATERAL VIEW explode(`a`) t AS `x`",
    "SELECT array(1, 2)[0], list[0] FROM events": "SELECT array(1, 2)[0], `list`[0] FROM `events`",
    r"SELECT 'it\'s \\ `; --', `a``; b` FROM events": r"SELECT 'it\'s \\ `; --', `a``; b` FROM `events`",
}


def test_a_query_is_rewritten():
    for sql, written in ASKED.items():
        assert statement(sql) == written
    for table in LAYER:
        assert statement(f"SELECT * FROM {table}") == f"SELECT * FROM `{table}`"
    assert condition("Type = 'a' AND attempts > 1 -- twice") == "`Type` = 'a' AND `attempts` > 1"
    assert condition("finished_at > now() - INTERVAL 1 DAY") == "`finished_at` > now() - INTERVAL '1' DAY"


@given(st.text())
def test_the_condition_of_a_cause_is_accepted_for_any_type_name(type):
    sql = cause_condition("abc", type)
    if "${" in type:
        with pytest.raises(InvalidOption, match=r"\$\{"):
            condition(sql)
    else:
        assert condition(condition(sql)) == condition(sql)


def test_a_refusal_says_what_can_be_used():
    with pytest.raises(InvalidOption, match=r"the function java_method is not allowed .*docs/reference/query\.md"):
        statement("SELECT java_method('a', 'b')")
    with pytest.raises(
        InvalidOption, match=r"text.`/etc/passwd` is not a table of the lake: they are events, payloads"
    ):
        statement("SELECT * FROM text.`/etc/passwd`")
    with pytest.raises(InvalidOption, match="runs a program"):
        statement(PROGRAMS[0])
    with pytest.raises(InvalidOption, match="only a SELECT is allowed"):
        statement("DROP VIEW events")
    with pytest.raises(InvalidOption, match="line 2, column"):
        statement("SELECT 1\nFROM events WHERE")
    assert not FUNCTIONS & {"java_method", "reflect", "try_reflect", "input_file_name", "version", "identifier"}


def test_the_docs_list_the_functions_that_can_be_used():
    page = (Path(__file__).parents[3] / "docs/reference/query.md").read_text()
    assert page.partition("```text")[2].partition("```")[0].split() == sorted(FUNCTIONS)
