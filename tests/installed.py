"""A package of stores as another project would install it: a module, and entry points that name its openers."""

import contextlib
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.kinds import GROUP, find_opener


@contextlib.contextmanager
def installed(module, source, **openers):
    """The package is there inside this block. Each opener is given by its scheme."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        (Path(place) / f"{module}.py").write_text(source, encoding="utf-8")
        described = Path(place) / f"{module}-1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{scheme} = {module}:{opener}" for scheme, opener in openers.items()]
        (described / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        patch.syspath_prepend(place)
        find_opener.cache_clear()
        try:
            yield
        finally:
            sys.modules.pop(module, None)
            find_opener.cache_clear()
