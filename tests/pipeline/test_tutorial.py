"""The pages about the pipeline: the tutorial typed from top to bottom, its lake read by others, tables as they are."""

import io
import re
import shlex
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pyarrow.dataset
import pytest

from holdfast.cli import main
from holdfast.pipeline import sink, source_options
from holdfast.pipeline.schemas import GAPS, JOBS_WITH_PAYLOAD, TABLES

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorials/from-queue-to-chart.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
RUN = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)
STEP = re.compile(r"(?:<!-- (run|file: \S+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def typed(spark, capsys, monkeypatch):
    """Run a command in this process, on the session that is there; what it printed."""
    # A command stops its session at the end; this one is needed on.
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*args):
        with pytest.raises(SystemExit) as end:
            main(list(args))
        printed = capsys.readouterr()
        assert not end.value.code, printed.out + printed.err
        return printed.out

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def commands(text):
    """What a page has typed, each with what it shows."""
    for block in BLOCK.findall(text):
        yield from _typed_in(block)


def _typed_in(block):
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield shlex.split(command), shown.splitlines()


def words(line):
    return line.replace("/home/you", str(Path.cwd())).split()


@pytest.mark.timeout(300)
def test_the_tutorial_works_as_written_and_others_read_its_lake(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ((name, text),) = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", TUTORIAL, re.DOTALL)
    Path(name).write_text(text)
    ran = []
    for command, shown in commands(TUTORIAL):
        if command[0] == "python":
            subprocess.run([sys.executable, *command[1:]], check=True, timeout=100)
        elif command[0] == "holdfast":
            ran.append(command[2])
            printed = [words(line) for line in typed(*command[1:]).splitlines()]
            for line in shown:
                assert words(line) in printed, line
    assert ran == ["ingest", "build", "audit", "query", "query", "triage", "replay", "replay", "report"]
    assert "<svg" in Path("report.html").read_text()
    said = [_printed(code) for code in RUN.findall((DOCS / "howto/read-the-lake.md").read_text(encoding="utf-8"))]
    for printed in said[:3]:
        assert re.search(r"acme\W+completed\W+180", printed), printed
    assert re.fullmatch(r"95 % waited \d+ ms or less\n", said[3])


def _printed(code):
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "read-the-lake.md", "exec"), {})
    return out.getvalue()


@pytest.fixture
def follow_page(typed, tmp_path, monkeypatch):
    """Do what a page says, from top to bottom: its files, programs and commands; what they printed."""
    monkeypatch.chdir(tmp_path)

    def type_in(program, *args, shown):
        if program == "export":
            for pair in args:
                monkeypatch.setenv(*pair.split("=", 1))
        # A program that follows the log does not end.
        if program == "holdfast" and "--follow" not in args:
            answer = typed(*args)
            assert set(shown) <= set(answer.splitlines())
            yield answer

    return lambda page: [*_followed((DOCS / page).read_text(encoding="utf-8"), type_in)]


def _followed(text, type_in):
    for what, kind, block in STEP.findall(text):
        if what.startswith("file: "):
            Path(what.removeprefix("file: ")).write_text(block)
        elif what == "run":
            # The Spark of these tests was started elsewhere.
            yield _printed(block.replace("./", f"{Path.cwd()}/"))
        elif kind == "console":
            for command, shown in _typed_in(block):
                yield from type_in(*command, shown=shown)


@pytest.mark.timeout(300)
def test_the_pages_about_jobs_the_data_source_and_lakes_work_as_written(follow_page):
    assert len(follow_page("howto/feed-and-work-on-spark.md")) == 4
    read, streamed, written = follow_page("reference/spark-source.md")
    assert re.search(r"invoices\W+5\W", read)
    assert re.search(r"order-17\W+completed\W+\{\"customer\":\"Barbara\",\"amount\":300\}", read)
    assert (streamed, written) == ("5 done\n", "")
    *_, moved, forgotten = follow_page("howto/look-after-a-lake.md")
    assert "0 events" in moved
    assert forgotten == "True\n"
    runs = pyarrow.dataset.dataset("lake/silver/job_runs", partitioning="hive").to_table().to_pylist()
    assert {(run["job_id"], run["state"]) for run in runs} == {
        *((id_, "completed") for id_ in ("i-1", "i-2", "i-3", "order-17", "order-18")), ("w-1", "ready")
    }  # fmt: skip


def test_the_reference_has_every_option_and_column_of_the_data_source():
    text = (DOCS / "reference/spark-source.md").read_text(encoding="utf-8")
    _, reading, writing = re.split(r"^## (?:Read|Write)$", text, flags=re.MULTILINE)
    columns, options = writing.split("| option |")
    assert tuple(re.findall(r"^\| `(\w+)` \|", columns, re.MULTILINE)) == sink.COLUMNS
    for said, known in ((reading, source_options._READING), (options, sink._WRITING)):
        assert {name.lower() for name in re.findall(r"^\| `(\w+)` \|", said, re.MULTILINE)} == known - {"path"}


def test_the_reference_has_every_column_of_every_table():
    text = (DOCS / "reference/tables.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    tables = {**TABLES, "gaps": GAPS, "jobs": JOBS_WITH_PAYLOAD}
    assert list(sections) == list(tables)
    for name, schema in tables.items():
        said = re.findall(r"^\| `(\w+)` \| (.*?) \|", sections[name], re.MULTILINE)
        null = {True: " or null", False: ""}
        assert said == [(one.name, one.dataType.simpleString() + null[one.nullable]) for one in schema], name
