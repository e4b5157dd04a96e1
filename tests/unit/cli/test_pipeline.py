"""What `holdfast pipeline` says before Spark is started."""

import sys
from importlib.util import find_spec

import pytest

from holdfast.cli import main
from holdfast.pipeline import session


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
    assert (code, said) == (2, "Error: pipeline: needs pyspark; install it with: pip install 'holdfast[spark]'\n")


@pytest.fixture
def java(tmp_path, monkeypatch):
    """Puts a Java of some version where one is looked for; None: takes it away."""

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
    [("1.8.0_392", "is Java 8"), ("11.0.2", "is Java 11"), (None, "does not run"), ("17.0.9", None), ("21", None)],
)
def test_a_java_that_spark_does_not_run_on_is_told_with_the_cure(java, version, said):
    java(version)
    if said is None:
        session.check_java()
        return
    with pytest.raises(session.InvalidOption, match=said) as error:
        session.check_java()
    if sys.platform == "linux":
        assert "apt-get install openjdk-17-jre-headless" in str(error.value)


def test_no_java_at_all_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(session.InvalidOption, match="there is none"):
        session.check_java()


def test_a_missing_store_is_told_and_no_lake_is_made(say, tmp_path):
    code, said = say("ingest", "--store", f"file:{tmp_path / 'nothing'}", "--lake", str(tmp_path / "lake"))
    assert code == 1
    assert "there is no store in" in said
    code, said = say("ingest", "--store", "memory:", "--lake", str(tmp_path / "lake"))
    assert code == 2
    assert "memory: lives in one process" in said
    assert not (tmp_path / "lake").exists()


def test_wrong_words_are_told(say, tmp_path):
    lake = ("--lake", str(tmp_path / "lake"), "--store", "file:x")
    assert "'some' is not 'none', 'hash' or 'full'" in say("ingest", *lake, "--payloads", "some")[1]
    with pytest.raises(session.InvalidOption, match="not both"):
        session.make_session("local", "sc://x")
