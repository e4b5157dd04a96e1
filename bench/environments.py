"""An environment for each peer, made on first use under bench/out/peers, with the versions that are pinned here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

WHERE = Path(__file__).parent / "out" / "peers"
PINNED = {
    "dramatiq": ("dramatiq==2.2.1", "redis==8.1.0", "hiredis==3.5.0"),
    "taskiq": ("taskiq==0.13.0", "taskiq-redis==1.2.4", "redis==8.1.0", "hiredis==3.5.0", "uvloop==0.23.0"),
    "huey": ("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"),
    "bullmq": ("bullmq@6.7.0", "ioredis@5.11.1"),
    "pgqueuer": ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
    "procrastinate": ("procrastinate==3.10.0", "psycopg[binary]==3.3.8"),
    "celery": ("celery[redis]==5.7.0", "fastapi==0.162.4", "uvicorn[standard]==0.54.0"),
    "graphile": ("graphile-worker@0.18.0",),
}
NODE = frozenset({"bullmq", "graphile"})
TIMEOUT = 300
STAMP = "installed"


class NotInstalled(Exception):
    """This peer cannot be measured here; says why."""


def ready(name: str) -> bool:
    """Whether the environment is there, as pinned."""
    stamp = WHERE / name / STAMP
    return stamp.exists() and stamp.read_text() == _wanted(name)


def prepare(name: str) -> None:
    """Make the environment."""
    here = WHERE / name
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    try:
        (_npm if name in NODE else _pip)(here, PINNED[name])
    except FileNotFoundError as error:
        raise NotInstalled(f"{error.filename} is missing") from error
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "").strip().splitlines()
        raise NotInstalled(lines[-1] if lines else str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"installing took more than {TIMEOUT} s") from error
    (here / STAMP).write_text(_wanted(name))


def program(name: str, command: str) -> str:
    """Where a command of the peer's environment is."""
    return "node" if name in NODE else str(WHERE / name / "bin" / command)


def variables(name: str) -> dict[str, str]:
    """What a process in the peer's environment needs to find the peer's code."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**inherited, "NODE_PATH": str(WHERE / name / "node_modules"), "NODE_ENV": "production"}


def _wanted(name: str) -> str:
    return "\n".join(PINNED[name])


def _pip(here: Path, packages: tuple[str, ...]) -> None:
    _run(sys.executable, "-m", "venv", str(here))
    _run(str(here / "bin" / "python"), "-m", "pip", "install", "-qq", *packages)


def _npm(here: Path, packages: tuple[str, ...]) -> None:
    _run("node", "--version")
    (here / "package.json").write_text('{"private": true}\n')
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
    _run("npm", "install", *quiet, "--prefix", str(here), *packages)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
