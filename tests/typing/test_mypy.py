"""What is typed for pyright is typed for mypy, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_flows_type_under_mypy(tmp_path: Path) -> None:
    checked = Path(__file__).with_name("check_flows.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}", checked]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
