"""The commands, one after another on one store and lake, as an operator would use them."""

import csv
import io
import json
import os
import signal
import subprocess
import sys

import pytest

from holdfast.cli import main, pipeline
from holdfast.core.job import JobState
from holdfast.pipeline import session
from holdfast.pipeline.lake import Lake
from tests.pipeline.failing import make_dead, replays
from tests.pipeline.settings import only_full
from tests.pipeline.traffic import make_traffic, of_store

JOBS = """
from holdfast import job

@job
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def cli(spark, capsys, monkeypatch, tmp_path):
    """Run a command in this process, on the session that is there."""
    # A command stops its session at the end; this one is needed on.
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*args, code=0):
        with pytest.raises(SystemExit) as end:
            main(["pipeline", *args])
        printed = capsys.readouterr()
        assert int(end.value.code or 0) == code, printed.out + printed.err
        return printed.out, printed.err

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@only_full
def test_from_a_log_to_answers(cli, spark, file_url, tmp_path):
    of_store(file_url, lambda store: make_traffic(store, 40))
    of_store(file_url, lambda store: make_dead(store, 10))
    lake = ("--lake", str(tmp_path / "lake"))
    _, said = cli("build", *lake, code=2)
    assert "there is no lake" in said
    cli("ingest", *lake, "--store", file_url, "--max-events", "60")
    assert "built everything" in cli("build", *lake)[0]
    assert "built 0 new batches" in cli("build", *lake)[0]
    assert json.loads(cli("audit", *lake, "--store", file_url, "--json")[0])["total"] == 0
    found = json.loads(cli("triage", *lake, "--json", "--where", "tenant = 'acme'")[0])
    assert found["total"] == sum(cause["count"] for cause in found["causes"]) > 0
    assert "no luck with" in cli("triage", *lake)[0]
    out, _ = cli("report", *lake, "--out", str(tmp_path / "report.html"))
    assert "report.html" in out
    assert "<html" in (tmp_path / "report.html").read_text()

    ask = "SELECT queue, count(*) AS n FROM job_runs GROUP BY queue ORDER BY queue"
    assert "QUEUE" in cli("query", ask, *lake)[0]
    rows = json.loads(cli("query", ask, *lake, "--format", "json")[0])
    assert list(csv.reader(io.StringIO(cli("query", ask, *lake, "--format", "csv")[0]))) == [
        ["queue", "n"], *([row["queue"], str(row["n"])] for row in rows)
    ]  # fmt: skip
    assert "only a SELECT" in cli("query", "DROP VIEW events", *lake, code=2)[1]
    assert json.loads(cli("compact", *lake, "--json")[0])["files_before"] > 1
    assert json.loads(cli("query", ask, *lake, "--format", "json")[0]) == rows
    assert "Nothing is older" in cli("retain", *lake, "--days", "1")[1]
    assert json.loads(cli("retain", *lake, "--days", "1", "--yes", "--json")[0])["dropped"]["days"] == {}

    # The log without its claims.
    place = Lake(tmp_path / "lake")
    place.replace("events", place.read(spark, "events").where("kind <> 'claimed'"), ["date", "batch"])
    assert "violation" in cli("audit", *lake, code=1)[0]


def test_a_stopped_ingest_ends_with_a_message_and_the_next_continues(cli, spark, file_url, tmp_path, monkeypatch):
    def start_spark(*_, **__):
        # As SparkContext does it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return spark

    def stop_after_a_batch(number):
        monkeypatch.setattr(pipeline, "_print_batch", lambda done: done.batches == 1 and os.kill(os.getpid(), number))

    monkeypatch.setattr(session, "make_session", start_spark)
    of_store(file_url, lambda store: make_traffic(store, 40))
    args = ("ingest", "--lake", str(tmp_path / "lake"), "--store", file_url, "--max-events", "20")
    stop_after_a_batch(signal.SIGINT)
    out, said = cli(*args, "--follow", "--interval", "1s")
    assert (" batch" in out, said) == (True, "stopping; a second signal ends it at once\n")
    stop_after_a_batch(signal.SIGTERM)
    out, said = cli(*args, "--json", code=1)
    assert json.loads(out)["stopped"] is True
    assert said.startswith("stopping; a second signal ends it at once\nStopped before the end of the log")
    monkeypatch.undo()
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    done = json.loads(cli(*args[:-2], "--json")[0])
    assert (done["stopped"], done["offset"]) == (False, of_store(file_url, lambda store: store.last_offset()))


@only_full
def test_replaying_shows_the_jobs_first_and_runs_with_yes(cli, file_url, tmp_path):
    of_store(file_url, lambda store: make_dead(store, 10))
    args = ("replay", "--store", file_url, "--where", "error_type = 'ValueError'", "--tasks", "1")
    args = (*args, "--receipt", str(tmp_path / "receipt"))
    out, _ = cli(*args)
    assert "would replay 5" in out
    assert not of_store(file_url, replays)
    reported = json.loads(cli(*args, "--yes", "--json")[0])
    assert (reported["agrees"], reported["answers"], reported["check"]["found"]) == (True, {"replayed": 5}, 5)
    assert "replayed 5 of 5" in cli(*args, "--yes")[0]
    assert set(of_store(file_url, replays).values()) == {1}
    assert "where: " in cli("replay", "--store", file_url, "--where", "nonsense = 1", code=2)[1]


def test_a_file_becomes_jobs_and_workers_on_spark_do_them(cli, file_url, tmp_path):
    of_store(file_url, lambda store: store.tenants())
    (tmp_path / "people.csv").write_text("person,name\n1,Ada\n2,Grace\n3,Edsger\n")
    (tmp_path / "greeting_jobs.py").write_text(JOBS)
    to = ("--store", file_url, "--tenant", "acme")
    put_in = ("enqueue", "--from", "people.csv", "--id", "person", "--type", "greet", "--write", "first", *to)
    assert "enqueued 3 rows" in cli(*put_in)[0]
    cli(*put_in)
    assert "there is no column" in cli("enqueue", "--from", "people.csv", "--id", "nobody", *to, code=2)[1]
    assert "is unknown" in cli("enqueue", "--from", "people", *to, code=2)[1]
    reported = json.loads(cli("work", "greeting_jobs", *to, "--tasks", "1", "--until-empty", "--json")[0])
    assert (reported["totals"]["completed"], reported["left"]["ready"]) == (3, 0)
    counts = of_store(file_url, lambda store: store.stats("acme"))[0].counts
    assert counts.get(JobState.COMPLETED) == 3, counts


def test_an_invalid_query_gets_an_error_of_one_line(cli, tmp_path):
    Lake(tmp_path / "lake", create=True)
    for sql, code, said in (
        ("SELECT nope FROM events", 2, "Error: query: [UNRESOLVED_COLUMN"),
        ("SELECT 1 / 0", 1, "Error: Spark could not answer: [DIVIDE_BY_ZERO]"),
        ("SELECT CAST('no luck' AS INT)", 1, "no luck"),
    ):
        out, reported = cli("query", sql, "--lake", str(tmp_path / "lake"), code=code)
        assert (out, said in reported, reported.count("\n")) == ("", True, 1), reported


def test_help_does_not_start_spark():
    loaded = "import sys, holdfast.cli.app; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
