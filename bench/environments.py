"""An environment for each peer, made on first use under bench/out/peers, with the versions that are pinned here."""

from __future__ import annotations

import os
import platform
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
    "celery": ("celery[redis]==5.7.0", "hiredis==3.5.0", "fastapi==0.162.4", "uvicorn[standard]==0.54.0"),
    "rq": ("rq==2.12.0", "redis==8.1.0", "hiredis==3.5.0"),
    "arq": ("arq==0.28.0", "hiredis==3.5.0", "uvloop==0.23.0"),
    "saq": ("saq[hiredis]==0.26.4", "typing_extensions==4.16.0", "uvloop==0.23.0"),
    "streaq": ("streaq==7.2.0", "uvloop==0.23.0"),
    "platformatic": ("@platformatic/job-queue@0.5.0", "iovalkey@0.2.2"),
    "graphile": ("graphile-worker@0.18.0",),
    "pgboss": ("pg-boss@12.35.0",),
}
NODE = {"bullmq": 18, "graphile": 18, "platformatic": 22, "pgboss": 22}
"""The least Node for each. Where the machine has an older one, npm brings NEWER_NODE."""
NEWER_NODE = "22.23.3"
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
        (_npm if name in NODE else _pip)(here, PINNED[name], NODE.get(name, 0))
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
    if name not in NODE:
        return str(WHERE / name / "bin" / command)
    brought = WHERE / name / "node_modules" / _node_package() / "bin" / "node"
    return str(brought) if brought.exists() else "node"


def variables(name: str) -> dict[str, str]:
    """What a process in the peer's environment needs to find the peer's code."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**inherited, "NODE_PATH": str(WHERE / name / "node_modules"), "NODE_ENV": "production"}


def _wanted(name: str) -> str:
    return "\n".join(PINNED[name])


def _pip(here: Path, packages: tuple[str, ...], _: int) -> None:
    _run(sys.executable, "-m", "venv", str(here))
    _run(str(here / "bin" / "python"), "-m", "pip", "install", "-qq", *packages)


def _npm(here: Path, packages: tuple[str, ...], least: int) -> None:
    version = _run("node", "--version").removeprefix("v")
    if int(version.partition(".")[0]) < least:
        packages += (f"{_node_package()}@{NEWER_NODE}",)
    (here / "package.json").write_text('{"private": true}\n')
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
    _run("npm", "install", *quiet, "--prefix", str(here), *packages)


def _node_package() -> str:
    """What the package `node` would install here, by a script of its own."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"node-{platform.system().lower()}-{machine}"


def _run(*command: str) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL
    )
    return done.stdout
