"""How soon a program is there: `import holdfast`, and all of `holdfast --help`; compiled, as users have it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.measure import HELP, IMPORT, OURS, Figures

TIMES = 5
TIMED = "import time; began = time.perf_counter(); import holdfast; print((time.perf_counter() - began) * 1000)"


def starts(figures: Figures, times: int = TIMES) -> None:
    importing = (sys.executable, "-c", TIMED)
    helping = (str(Path(sys.executable).with_name("holdfast")), "--help")
    _run(importing)
    _run(helping)
    for _ in range(times):
        figures.add(IMPORT, OURS, float(_run(importing)))
        began = time.perf_counter()
        _run(helping)
        figures.add(HELP, OURS, (time.perf_counter() - began) * 1000)


def _run(command: tuple[str, ...]) -> str:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()
