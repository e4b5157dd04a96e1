"""What the README and the how-to pages say to type, typed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.servers import ValkeyServer

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
SERVER = "redis://localhost:6379/0"
"""Where the pages say that a server is."""


@pytest.fixture(scope="module")
def server():
    with ValkeyServer() as server:
        yield server.url()


def write_files(page: Path, folder: Path, said: str = "", place: str = "") -> list[str]:
    """Write the files of a page, with `place` where it said something else."""
    names = []
    for name, text in FILE.findall(page.read_text(encoding="utf-8")):
        (folder / name).write_text(text.replace(said, place) if said else text, encoding="utf-8")
        names.append(name)
    return names


def run(folder: Path, *command: str, **settings: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **settings}, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("store", ["file:./data", "redis"])
def test_the_quick_start_works_as_written(tmp_path, store, request):
    """And with the URL of a server instead, as it says."""
    readme = ROOT / "README.md"
    url = request.getfixturevalue("server") if store == "redis" else store
    assert write_files(readme, tmp_path, "file:./data", url) == ["shop.py", "signup.py"]
    assert run(tmp_path, sys.executable, "signup.py") == "queued email-123\nduplicate ready\n"
    command = [HOLDFAST, "worker", "shop", "--store", url, "--tenant", "acme"]
    worker = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    settings = {"HOLDFAST_STORE": url, "HOLDFAST_TENANT": "acme"}
    try:
        result = run(tmp_path, HOLDFAST, "result", "email-123", "--queue", "emails", "--wait", "30", **settings)
    finally:
        worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert "welcome -> a@example.com" in result
    assert "completed" in run(tmp_path, HOLDFAST, "status", "email-123", "--queue", "emails", **settings)
    assert "emails" in run(tmp_path, HOLDFAST, "stats", "emails", **settings)
    run(tmp_path, HOLDFAST, "dlq", "list", "--queue", "emails", **settings)
    assert "email-123" in run(tmp_path, HOLDFAST, "events", **settings)


def test_the_readmes_test_passes(tmp_path):
    write_files(ROOT / "README.md", tmp_path)
    (test,) = (block for block in BLOCK.findall((ROOT / "README.md").read_text()) if "async def test_" in block)
    (tmp_path / "test_signup.py").write_text(test)
    output = run(
        tmp_path,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_mode=auto",
        "test_signup.py",
    )
    assert "1 passed" in output


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_the_files_of_a_how_to_page_run(page, tmp_path, request):
    needs_server = f'"{SERVER}"' in page.read_text(encoding="utf-8")
    place = request.getfixturevalue("server") if needs_server else SERVER
    for name in write_files(page, tmp_path, SERVER, place):
        run(tmp_path, sys.executable, name)


def test_a_large_payload_arrives(tmp_path):
    write_files(ROOT / "docs/howto/large-payloads.md", tmp_path)
    assert run(tmp_path, sys.executable, "thumbnails.py") == "1000000\n"


def test_the_redis_page_prints_what_it_shows(tmp_path, server):
    page = ROOT / "docs/howto/redis.md"
    assert write_files(page, tmp_path, SERVER, server) == ["on_redis.py", "own_client.py", "with_a_server.py"]
    assert run(tmp_path, sys.executable, "on_redis.py").splitlines() == [
        "sent to a@example.com",
        "nothing is kept: a restart loses every job",
    ]
    assert run(tmp_path, sys.executable, "own_client.py") == "queued\n"
    assert "email-1 ready" in run(tmp_path, sys.executable, "with_a_server.py")


def test_the_user_of_the_redis_page_has_the_rights_it_needs(tmp_path):
    page = ROOT / "docs/howto/redis.md"
    (line,) = re.findall(r"^ACL SETUSER .*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    with ValkeyServer() as server:
        server.command(*line.split())
        url = server.url().replace("//", "//jobs:PASSWORD@")
        write_files(page, tmp_path, SERVER, url)
        assert "sent to a@example.com" in run(tmp_path, sys.executable, "on_redis.py")
        run(tmp_path, HOLDFAST, "doctor", url)
        server.command("ACL", "SETUSER", "jobs", "+config|get")
        assert "nothing is kept" in run(tmp_path, HOLDFAST, "doctor", url)


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
