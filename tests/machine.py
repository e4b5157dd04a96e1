"""What this machine has, of the programs that no wheel brings."""

import os
import shutil
from pathlib import Path

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.session import check_java


def must_have_all():
    """Whether a missing program is a failure: in CI, and where `make test` installs it."""
    release = Path("/etc/os-release")
    debian = release.exists() and "ID=debian" in release.read_text().splitlines()
    return bool(os.environ.get("CI")) or (debian and os.geteuid() == 0)


def lacks_java():
    """Why Spark cannot run here, or ""."""
    try:
        check_java()
    except InvalidOption as error:
        return str(error)
    return ""


def skip_for(lack):
    """The reason to skip what cannot run here, or "": run it, and let it fail where nothing may be missing."""
    return "" if must_have_all() else lack


def chromium():
    """Debian's Chromium, or None."""
    return shutil.which("chromium")
