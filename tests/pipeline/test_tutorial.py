"""The pages about the pipeline: the tutorial typed from top to bottom, its lake read by others, tables as they are."""

import io
import re
import shlex
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.pipeline.schemas import GAPS, JOBS_WITH_PAYLOAD, TABLES

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorials/from-queue-to-chart.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
RUN = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)


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


def test_the_reference_has_every_column_of_every_table():
    text = (DOCS / "reference/tables.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    tables = {**TABLES, "gaps": GAPS, "jobs": JOBS_WITH_PAYLOAD}
    assert list(sections) == list(tables)
    for name, schema in tables.items():
        said = re.findall(r"^\| `(\w+)` \| (.*?) \|", sections[name], re.MULTILINE)
        null = {True: " or null", False: ""}
        assert said == [(one.name, one.dataType.simpleString() + null[one.nullable]) for one in schema], name
