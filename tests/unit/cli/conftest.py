"""The command on a file store of its own: in this process where that tells as much, else as a process."""

import asyncio
import io
import sys

import pytest

from holdfast.cli import main
from holdfast.opening import open_store
from tests.unit.cli.support import Answer, Processes


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A directory and an environment of the test's own, with a store and a tenant named in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", f"file:{tmp_path}/data")
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    monkeypatch.delenv("HOLDFAST_BLOBS", raising=False)
    asyncio.run(_make(f"file:{tmp_path}/data"))
    return tmp_path


async def _make(url: str) -> None:
    await (await open_store(url)).close()


@pytest.fixture
def url(place):
    return f"file:{place}/data"


@pytest.fixture
def cli(capsys, monkeypatch):
    """Run a command in this process; standard input and output are no terminals."""

    def run(*args: str, stdin: str = "") -> Answer:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as end:
            main(args)
        printed = capsys.readouterr()
        return Answer(int(end.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def processes():
    """Start commands as processes; those that still run at the end are killed."""
    with Processes() as started:
        yield started
