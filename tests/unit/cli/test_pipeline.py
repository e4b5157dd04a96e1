"""What `holdfast pipeline` says before Spark is started."""

import csv
import io
import socket
import sys
from importlib.util import find_spec

import pytest

from holdfast.cli import main, pipeline_tables
from holdfast.pipeline import session
from holdfast.pipeline.errors import cause
from holdfast.pipeline.lake import Lake


@pytest.fixture
def say(capsys):
    def run(*args):
        with pytest.raises(SystemExit) as end:
            main(["pipeline", *args])
        return end.value.code, capsys.readouterr().err

    return run


def test_without_pyspark_the_command_says_what_to_install(say, monkeypatch, tmp_path):
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "pyspark" else find_spec(name))
    code, said = say("ingest", "--store", "file:x", "--lake", str(tmp_path))
    assert (code, said) == (2, "Error: pipeline: it needs pyspark; install it with: pip install 'holdfast[spark]'\n")


@pytest.fixture
def java(tmp_path, monkeypatch):
    """Puts a Java of some version on the PATH; None removes it."""

    def put(version):
        home = tmp_path / "java"
        (home / "bin").mkdir(parents=True)
        monkeypatch.setenv("JAVA_HOME", str(home))
        if version is not None:
            program = home / "bin" / "java"
            program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
            program.chmod(0o755)

    return put


@pytest.mark.parametrize(
    "version, said",
    [
        ("1.8.0_392", "is Java 8"),
        ("11.0.2", "is Java 11"),
        (None, "does not run"),
        ("", "does not print its version"),
        ("17.0.9", None),
        ("21", None),
    ],
)
def test_an_unsupported_java_is_named_with_the_cure(java, version, said):
    java(version)
    if said is None:
        session.check_java()
        return
    with pytest.raises(session.InvalidOption, match=said) as error:
        session.check_java()
    if sys.platform == "linux":
        assert "apt-get install openjdk-17-jre-headless" in str(error.value)


def test_a_missing_java_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(session.InvalidOption, match="there is none"):
        session.check_java()


def test_a_missing_store_is_named_and_no_lake_is_created(say, tmp_path):
    code, said = say("ingest", "--store", f"file:{tmp_path / 'nothing'}", "--lake", str(tmp_path / "lake"))
    assert code == 1
    assert "there is no store in" in said
    code, said = say("ingest", "--store", "memory:", "--lake", str(tmp_path / "lake"))
    assert code == 2
    assert "a memory: store exists in one process" in said
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("args", [("build",), ("compact",), ("retain", "--days", "3")])
def test_another_writer_of_the_lake_is_named_before_spark_starts(say, java, monkeypatch, tmp_path, args):
    java("17.0.9")
    monkeypatch.setattr(session, "make_session", None)
    lake = Lake(tmp_path / "lake", create=True)
    with lake.lock("build"):
        code, said = say(*args, "--lake", str(lake.root))
    assert (code, "Error: build is already running on this lake: process" in said) == (1, True)


def test_wrong_arguments_are_named(say, tmp_path):
    lake = ("--lake", str(tmp_path / "lake"), "--store", "file:x")
    assert "'some' is not 'none', 'hash' or 'full'" in say("ingest", *lake, "--payloads", "some")[1]
    with pytest.raises(session.InvalidOption, match="not both"):
        session.make_session("local", "sc://x")


@pytest.fixture
def port():
    """An address where a server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_an_address_where_no_spark_answers_is_named_at_once(port, closed_port):
    for address in ("local[2]", "k8s://nowhere.invalid", f"sc://127.0.0.1:{port}/;token=x"):
        session.check_reachable("master", address)
    # Of several masters one is enough.
    session.check_reachable("master", f"spark://127.0.0.1:{closed_port},127.0.0.1:{port}")
    with pytest.raises(session.InvalidOption, match=rf"no Spark master answers at 127\.0\.0\.1 port {closed_port} \("):
        session.make_session(f"spark://127.0.0.1:{closed_port}")
    with pytest.raises(session.InvalidOption, match="no Spark Connect server answers at 127"):
        session.make_session(remote=f"sc://127.0.0.1:{closed_port}/;user_id=me")
    for wrong in ("sc://", "sc://host:many"):
        with pytest.raises(session.InvalidOption, match="is not like sc://host:15002"):
            session.check_reachable("remote", wrong)


FAILED = """An error occurred while calling o57.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2935)
Caused by: java.lang.RuntimeException: file:/lake/x.parquet is not a Parquet file. Expected magic number at tail
\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:643)
\t... 22 more
"""


def test_an_error_of_spark_is_shown_without_its_traceback():
    said = str(cause("answer", FAILED))
    assert said == (
        "Spark could not answer: RuntimeException: file:/lake/x.parquet is not a Parquet file. "
        "Expected magic number at tail"
    )
    assert str(cause("answer", "[DIVIDE_BY_ZERO] Division by zero.\n== SQL ==\n1/0\n")) == (
        "Spark could not answer: [DIVIDE_BY_ZERO] Division by zero."
    )
    ours = "Traceback\nholdfast.core.errors.StoreBusy: the store is busy\n\tat org.apache.spark"
    assert repr(cause("answer", ours)) == "StoreBusy('the store is busy')"


def test_cells_that_a_spreadsheet_would_compute_are_quoted_and_numbers_are_not(capsys):
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "a=1", "", "'=1"]
    pipeline_tables._write_csv(["=cmd|' /C calc'!A0", "n"], [[text, 1] for text in texts] + [[-1, -2.5], [None, True]])
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert rows[0] == ["'=cmd|' /C calc'!A0", "n"]
    quoted = ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\r=1", "a=1", "", "'=1"]
    assert rows[1:] == [*([text, "1"] for text in quoted), ["-1", "-2.5"], ["", "True"]]


def test_a_csv_table_on_a_terminal_has_no_control_characters(capsys, monkeypatch):
    monkeypatch.setattr(pipeline_tables, "on_terminal", lambda: True)
    pipeline_tables._write_csv(["id"], [["\x1b[2J\u202e"]])
    assert capsys.readouterr().out == "id\n\\x1b[2J\\u202e\n"
