"""What the README and the how-to pages say to type, typed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


def write_files(page: Path, folder: Path) -> list[str]:
    names = []
    for name, text in FILE.findall(page.read_text(encoding="utf-8")):
        (folder / name).write_text(text, encoding="utf-8")
        names.append(name)
    return names


def run(folder: Path, *command: str, **settings: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **settings}, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_quick_start_works_as_written(tmp_path):
    readme = ROOT / "README.md"
    assert write_files(readme, tmp_path) == ["shop.py", "signup.py"]
    assert run(tmp_path, sys.executable, "signup.py") == "queued email-123\nduplicate ready\n"
    command = [HOLDFAST, "worker", "shop", "--store", "file:./data", "--tenant", "acme"]
    worker = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    settings = {"HOLDFAST_STORE": "file:./data", "HOLDFAST_TENANT": "acme"}
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
def test_the_files_of_a_how_to_page_run(page, tmp_path):
    for name in write_files(page, tmp_path):
        run(tmp_path, sys.executable, name)


def test_a_large_payload_arrives(tmp_path):
    write_files(ROOT / "docs/howto/large-payloads.md", tmp_path)
    assert run(tmp_path, sys.executable, "thumbnails.py") == "1000000\n"


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
