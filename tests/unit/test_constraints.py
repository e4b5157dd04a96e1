"""What a service image installs: by version and hash, as tested, and without a word on where it was downloaded."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

TOP = Path(__file__).parents[2]
LINES = (TOP / "constraints/service.txt").read_text().replace("\\\n", "").splitlines()
PINS = [line for line in LINES if line and not line.startswith("#")]


def test_every_package_is_pinned_and_hashed():
    assert len(PINS) > 20
    for line in PINS:
        assert re.fullmatch(r"[a-z0-9.-]+==\S+( ;[^#]*?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", line), line[:80]


def test_no_requirement_names_its_source():
    text = "\n".join(LINES)
    for word in ("://", "--index", "--extra-index", "--find-links", "--trusted-host", "@", "/tmp", "/home"):
        assert word not in text


def test_versions_are_those_that_the_tests_run_with():
    command = [sys.executable, TOP / "scripts/tested-versions", "libraries"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    tested = dict(line.lower().split("==") for line in said.splitlines())
    pinned = dict(line.split()[0].split("==") for line in PINS)
    assert {"fastapi", "uvicorn", "pyjwt", "redis", "asyncpg"} <= pinned.keys()
    assert {name: version for name, version in pinned.items() if name in tested and tested[name] != version} == {}


def test_pre_commit_has_the_ruff_of_the_checks():
    lint = tomllib.loads((TOP / "pyproject.toml").read_text())["dependency-groups"]["lint"]
    (ruff,) = [pin.partition("==")[2] for pin in lint if pin.startswith("ruff==")]
    assert f"rev: v{ruff} " in (TOP / ".pre-commit-config.yaml").read_text()
